"""Compiles the C library, for the build hook (hatch_build.py), which runs this file before the package is installed.

Needs a C compiler and jaxlib's headers, but not oneDNN.
"""

import importlib.util
from pathlib import Path

from resnet_tpu.system.c_libraries import BuildError, compile_library

__all__ = ["LIBRARY", "BuildError", "build", "locate_headers"]

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "layers.so"
_FLAGS = ("-std=gnu11", "-O3", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math")


def build(output: Path = LIBRARY, *flags: str, headers: Path | None = None) -> Path:
    """Compiles the sources next to this file to `output`, replacing what is there. Raises BuildError."""
    every = (*_FLAGS, f"-I{headers or locate_headers()}", *flags)
    return compile_library(FOLDER, output, every, ("-lpthread", "-ldl"), loads=not flags)


def locate_headers() -> Path:
    """The folder with XLA's headers, that of `jax.ffi.include_dir()`, without importing JAX. Raises BuildError."""
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or not jaxlib.submodule_search_locations:
        raise BuildError("jaxlib, which has XLA's headers, is not installed")
    return Path(jaxlib.submodule_search_locations[0]) / "include"
