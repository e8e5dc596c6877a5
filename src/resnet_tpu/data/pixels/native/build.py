"""Compiles the C library, for the build hook (hatch_build.py), which runs this file before the package is installed.

Needs a C compiler, and libjpeg-turbo with its headers (Debian, Ubuntu: apt-get install gcc libjpeg-dev).
"""

from pathlib import Path

from resnet_tpu.system.c_libraries import BuildError, compile_library

__all__ = ["LIBRARY", "BuildError", "build"]

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "crop.so"
# Pixels must be the same everywhere, bit for bit: no flag that changes the order or the number of roundings.
_FLAGS = ("-std=gnu11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


def build(output: Path = LIBRARY, *flags: str) -> Path:
    """Compiles the sources next to this file to `output`, replacing what is there. Raises BuildError."""
    return compile_library(FOLDER, output, (*_FLAGS, *flags), ("-ljpeg", "-lm"), loads=not flags)
