"""Compiles the library, for the build hook (hatch_build.py), which runs this file before the package is there.

Needs a C compiler, and libjpeg-turbo with its headers (Debian, Ubuntu: apt-get install gcc libjpeg-dev).
"""

import ctypes
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "crop.so"
# Pixels are to be the same to the bit everywhere: nothing that changes the order or the number of roundings.
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")


class BuildError(Exception):
    """What the compiler or the loader said."""


def build(output: Path = LIBRARY, *flags: str) -> Path:
    """Compiles the sources beside this file to `output`, replacing what is there. Raises BuildError."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    sources = [str(path) for path in sorted(FOLDER.glob("*.c"))]
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder) / output.name
        command = [*compiler, *_FLAGS, *flags, "-o", str(made), *sources, "-ljpeg", "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - the user's compiler
            if not flags:
                ctypes.CDLL(str(made))  # a libjpeg without what is needed fails here only
        except subprocess.CalledProcessError as error:
            raise BuildError(error.stderr) from None
        except OSError as error:
            raise BuildError(str(error)) from None
        made.replace(output)  # at once: other processes may be using the present one
    return output
