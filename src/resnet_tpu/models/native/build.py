"""Compiles the library, for the build hook (hatch_build.py), which runs this file before the package is there.

Needs a C compiler, and nothing of oneDNN or JAX.
"""

from pathlib import Path

from resnet_tpu.c_libraries import BuildError, compile_library

__all__ = ["LIBRARY", "BuildError", "build"]

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "layers.so"
_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math")


def build(output: Path = LIBRARY, *flags: str) -> Path:
    """Compiles the sources beside this file to `output`, replacing what is there. Raises BuildError."""
    return compile_library(FOLDER, output, (*_FLAGS, *flags), ("-lpthread", "-ldl"), loads=not flags)
