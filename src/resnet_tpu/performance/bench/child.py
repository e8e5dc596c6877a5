"""Measures in processes of their own: runs a program, reads the figures that it prints, leaves no process behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple, NoReturn

from resnet_tpu.errors import UserError
from resnet_tpu.system.program import run_program

_PATIENCE = 10.0
"""Seconds for a command to end after it is told to."""


def command_of(module: str, *words: str) -> list[str]:
    """The command that runs a module of this package as a program, with these words."""
    return [sys.executable, "-m", module, *words]


def print_figures(measure: Callable[..., Mapping[str, Any]]) -> NoReturn:
    """The main program of a module that `command_of` runs: prints what `measure` returns for the words, for `run`."""
    sys.exit(run_program(lambda words: print(json.dumps(measure(*words)), flush=True)))


def run(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The figures that the command prints; see `run_to_end`. Raises UserError when it fails or prints no figures."""
    ended = run_to_end(command, environment)
    if ended.code == 0 and ended.output:
        with contextlib.suppress(ValueError):
            if isinstance(figures := json.loads(ended.output[-1]), dict):
                return figures
    raise UserError(
        f"Benchmark of {name}",
        "\n".join([f"exit code {ended.code}", *ended.errors[-30:], ""]),
        "exit code 0 and a line with a JSON object",
        "Its messages say why.",
    )


class Ended(NamedTuple):
    """How a command ended: its exit code, None if it ran out of time, and the lines it wrote."""

    code: int | None
    output: list[str]
    errors: list[str]


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> Ended:
    """Runs a command for at most `seconds` in a session of its own. No process of the session survives."""
    # files, not pipes: a pipe ends only when the last process that inherited it does
    with _text_file() as output, _text_file() as errors:
        process = subprocess.Popen(  # noqa: S603  # the caller's own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
        code = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # so that it can end children with sessions of their own
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # workers that it left, or the whole session after Ctrl-C
            process.wait()
        return Ended(code, _read(output), _read(errors))


def _text_file() -> IO[str]:
    """A temporary file for the output of a command, which need not be valid UTF-8."""
    return tempfile.TemporaryFile("w+", errors="replace")


def _read(file: IO[str]) -> list[str]:
    file.seek(0)
    return file.read().strip().splitlines()
