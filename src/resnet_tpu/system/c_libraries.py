"""The optional C libraries: how they are compiled, and what turns them off.

The build hook (hatch_build.py) uses this module before the dependencies are installed, so it imports none of them.
"""

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SWITCH = "RESNET_TPU_NATIVE"
"""Environment variable: 0 turns all of them off."""


def are_off() -> bool:
    """Whether the user has turned them off."""
    return os.environ.get(SWITCH) == "0"


class BuildError(Exception):
    """A failure to compile or load a library, with the message of the compiler or the loader."""


def compile_library(
    folder: Path, output: Path, flags: Sequence[str], libraries: Sequence[str], *, loads: bool = True
) -> Path:
    """Compiles the sources in `folder` to `output`, replacing what is there. Raises BuildError.

    With `loads`, also raises BuildError when the result cannot be loaded, as when another library lacks a symbol. CC,
    CPPFLAGS, CFLAGS and LDFLAGS of the environment are used; `flags` override CFLAGS.
    """
    compiler = [*(_words_in("CC") or ["cc"]), *_words_in("CPPFLAGS"), *_words_in("CFLAGS"), *flags, "-fPIC", "-shared"]
    sources = [str(path) for path in sorted(folder.glob("*.c"))]
    try:
        with tempfile.TemporaryDirectory(dir=output.parent) as temporary:
            made = Path(temporary) / output.name
            command = [*compiler, "-o", str(made), *sources, *_words_in("LDFLAGS"), *libraries]
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - the user's compiler
            if loads:
                ctypes.CDLL(str(made))
            made.replace(output)  # atomic: other processes may be using the present one
    except subprocess.CalledProcessError as error:
        raise BuildError(error.stderr) from None
    except OSError as error:
        raise BuildError(str(error)) from None
    return output


def _words_in(variable: str) -> list[str]:
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise BuildError(f"{variable} in the environment: {error}") from None
