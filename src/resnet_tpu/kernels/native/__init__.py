"""The optional C library, which computes layers in training on a CPU, with oneDNN's convolutions.

It exists if a C compiler was available when the package was installed (build.py). oneDNN 3 comes from pip where pip has
it, else from the system. Both are used unless RESNET_TPU_NATIVE=0 is set in the environment.
"""

import contextlib
import ctypes
import ctypes.util
import functools
import logging
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from resnet_tpu.errors import first_line
from resnet_tpu.kernels.native.build import LIBRARY
from resnet_tpu.system.c_libraries import are_off

log = logging.getLogger(__name__)

TARGETS = ("conv_forward", "conv_backward", "residual_forward", "residual_backward", "pool_forward", "pool_backward")
_INTERFACE = 3
_DATA_TYPES = {"float32": 11, "bfloat16": 16}
"""The library's types, in the order of the bits that `load_onednn` returns: numbers of XLA_FFI_DataType."""
_ONEDNN = "libdnnl.so.3"


@functools.cache
def load() -> frozenset[str]:
    """Registers the library's functions with XLA. Returns the dtypes that it supports; none if it is missing."""
    if are_off():
        return frozenset()
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return frozenset()
    if library.interface_version() != _INTERFACE:
        return frozenset()
    able = library.load_onednn(locate_onednn())
    types = frozenset(name for bit, name in enumerate(_DATA_TYPES) if able >> bit & 1)
    try:
        jax.devices("cpu")  # until this, JAX only queues the functions, and a refusal by XLA would come too late
        for name in TARGETS if types else ():
            jax.ffi.register_ffi_target(_name(name), jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    except RuntimeError as error:  # compiled for an interface version that this XLA lacks, or no CPU is used
        log.warning(
            "The library in C cannot be used, so training on a CPU is slower. Reinstall resnet-tpu. Reason: %s",
            first_line(error),
        )
        return frozenset()
    return types


@functools.cache
def has_convolution(before: tuple[int, ...], after: tuple[int, ...], size: int, stride: int, dtype: str) -> bool:
    """Whether oneDNN has the convolution [n, h, w, in] -> [n', h', w', out] with its gradients; logs it if not."""
    if dtype not in load():
        raise RuntimeError(f"the library in C is not available for {dtype}")
    library = ctypes.CDLL(str(LIBRARY))
    asked = (*before, *after, size, stride, padding_before(size), _DATA_TYPES[dtype])
    # the number of threads decides how many images a call gets, from one to all of them
    counts = sorted({1, before[0]})
    geometries = ((count, *asked[1:4], count, *asked[5:]) for count in counts)
    if all(library.has_convolution((ctypes.c_int64 * len(each))(*each)) for each in geometries):
        return True
    log.warning(
        "oneDNN has no convolution from %s to %s of size %dx%d, stride %d, in %s: XLA computes it, more slowly.",
        list(before), list(after), size, size, stride, dtype,
    )  # fmt: skip
    return False


def padding_before(size: int) -> int:
    """Pixels of padding on the left and above, as in `layers.conv`."""
    return (size - 1) // 2


def locate_onednn() -> bytes:
    """The path or name of oneDNN for the dynamic loader: the library that pip installed, or else the system's."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("onednn-cpu-gomp") or ():
            if file.name == _ONEDNN and (path := Path(str(file.locate())).resolve()).exists():
                return os.fsencode(path)
    return os.fsencode(_ONEDNN)


def _name(target: str) -> str:
    return f"resnet_tpu_{target}"


def call(
    target: str, results: list[tuple[tuple[int, ...], DTypeLike]], *arguments: jax.Array, settings: list[int]
) -> Sequence[jax.Array]:
    """Calls `target`, one of TARGETS. results: the (shape, dtype) of each array that it returns."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    return jax.ffi.ffi_call(_name(target), shapes)(*arguments, settings=np.array(settings, np.int64))
