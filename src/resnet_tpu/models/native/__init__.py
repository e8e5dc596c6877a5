"""The optional library in C: the layers of a training on a CPU, its convolutions those of oneDNN.

It is there when a C compiler was when the package was installed (build.py). oneDNN 3 comes with the extra `cpu`, or
with the system. Both are used unless the environment says RESNET_TPU_NATIVE=0.
"""

import ctypes
import ctypes.util
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from resnet_tpu.c_libraries import are_off
from resnet_tpu.models.native.build import LIBRARY

TARGETS = ("conv_forward", "conv_backward", "join_forward", "join_backward", "pool_forward", "pool_backward")
_INTERFACE = 1
_ONEDNN = "libdnnl.so.3"


@functools.cache
def load() -> frozenset[str]:
    """Makes the library's functions known to XLA. The types of activations that it can do; none where it is not."""
    if are_off():
        return frozenset()
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return frozenset()
    if library.interface_version() != _INTERFACE:
        return frozenset()
    able = library.load_onednn(locate_onednn())
    types = frozenset(name for bit, name in enumerate(("float32", "bfloat16")) if able >> bit & 1)
    for name in TARGETS if types else ():
        jax.ffi.register_ffi_target(_name(name), jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return types


def locate_onednn() -> bytes:
    """What the loader has to be asked for: the library of the extra `cpu`, or else the system's."""
    beside_python = Path(sys.prefix) / "lib" / _ONEDNN  # where pip puts it
    return os.fsencode(beside_python if beside_python.exists() else _ONEDNN)


def _name(target: str) -> str:
    return f"resnet_tpu_{target}"


def call(
    target: str, results: list[tuple[tuple[int, ...], DTypeLike]], *arguments: jax.Array, settings: list[int]
) -> Sequence[jax.Array]:
    """The results, of these shapes and types, of one of TARGETS."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    return jax.ffi.ffi_call(_name(target), shapes)(*arguments, settings=np.array(settings, np.int64))
