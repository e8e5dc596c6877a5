"""The options with which XLA compiles a step, by device."""

import contextlib
import functools
import logging
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from resnet_tpu.system.accelerators import TPU_GENERATIONS

log = logging.getLogger(__name__)

_WITHOUT_YNNPACK = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Makes XLA compute everything itself on a CPU. By default, from jaxlib 0.10.2 to 0.12.0.1 at least, it hands groups of
operations to YNNPACK, and a constant that such a group broadcasts over an array may be read as arbitrary memory
(benchmarks/faults.md, "The compiler")."""

_ADD_UP_PRODUCTS = {"xla_tpu_enable_multi_level_output_dot_dot_fusion": "true"}
"""Fuses two convolutions whose results are added, such as the gradients through a block's first convolution and
through its projection. Otherwise one result is written to memory and read again. The compiler does not choose this by
itself, although it estimates 10 % fewer cycles for a step on a v5e. No TPU has run it."""

_FETCH_WHOLE = {"xla_tpu_sliced_prefetch_max_slices": "0"}
"""Prefetches values into a chip's fast memory as a whole, not in slices. By the compiler's estimate, a step gains 0.7 %
from this on a v4, and loses 1 % on a v6e."""


def _vector_memory(mib: int) -> dict[str, str]:
    """The option for how much of a core's vector memory one operation may use.

    By default, the compiler leaves most of it to values that stay there between operations. In a convolutional network
    these are too large for that, and larger windows save 3 to 9 % of the step by the compiler's estimate
    (benchmarks/tpu_step.md).
    """
    return {"xla_tpu_scoped_vmem_limit_kib": str(mib * 1024)}


_BY_GENERATION = {
    "v4": _FETCH_WHOLE,
    "v5e": _vector_memory(48),
    "v5p": _vector_memory(48),
    "v6e": _vector_memory(64),
}
"""Options that make the steps of each generation of TPUs faster by the compiler's estimate."""


def compiler_options_for(device: Any = None) -> dict[str, str] | None:
    """The compiler options that may make a training step faster on `device`, and those that the step needs.

    device: None means JAX's first. None is returned if there are no such options.
    """
    device = device or jax.devices()[0]
    if device.platform != "tpu":
        return required_options_for(device)
    generation = TPU_GENERATIONS.get(device.device_kind, "")
    return accepted_options(device, _ADD_UP_PRODUCTS | _BY_GENERATION.get(generation, {}))


def required_options_for(device: Any = None) -> dict[str, str] | None:
    """The compiler options that a program needs on `device` to compute correctly; None if it needs none.

    device: None means JAX's first. Every program is compiled with them. An option that the user sets in XLA_FLAGS is
    left as it is.
    """
    device = device or jax.devices()[0]
    if device.platform != "cpu":
        return None
    chosen = os.environ.get("XLA_FLAGS", "")
    options = {name: value for name, value in _WITHOUT_YNNPACK.items() if name not in chosen}
    return accepted_options(device, options) or None


def accepted_options(device: Any, options: Mapping[str, str]) -> dict[str, str]:
    """The options that the device's compiler accepts.

    No option is guaranteed to exist: another version of the compiler may lack it and would then refuse the step. A
    refused option is logged and left out.
    """
    # each host tests the options on a device of its own, because none can compile for another host's device alone
    own = device if device.process_index == jax.process_index() else jax.local_devices()[0]
    return {name: value for name, value in options.items() if _is_accepted(own, name, value)}


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Keeps programs that are compiled in this block out of JAX's compilation cache.

    Programs compiled for devices that are not attached cannot be read back: JAX would warn, and compile again.
    """
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


@functools.cache
def _is_accepted(device: Any, name: str, value: str) -> bool:
    nothing = jax.ShapeDtypeStruct((), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        with uncached():
            jax.jit(lambda x: x).lower(nothing).compile({name: value})
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        log.warning(
            "The compiler for this %s does not accept %s=%s, which is left out: %s",
            device.device_kind,
            name,
            value,
            error,
        )
        return False
    return True
