"""Runs `resnet-tpu serve` in a process of its own: waits until it is ready, and stops it."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet_tpu.errors import UserError
from resnet_tpu.system.cpu_time import cpu_secs_of_process

_READY = re.compile(r"(http://\S+)/v1/models/([\w.-]+):classify$", re.MULTILINE)  # the address in its log
_START_SECONDS = 120
_STOP_SECONDS = 60
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str  # http://host:port
    model: str  # the first one it serves
    process: subprocess.Popen[bytes]

    def cpu_secs(self) -> float:
        """CPU seconds of the process so far."""
        return cpu_secs_of_process(self.process.pid)


@contextlib.contextmanager
def running(bundles: Sequence[str]) -> Iterator[Server]:
    """A server of these bundles on a free port, ready for requests; it is stopped when the block ends.

    bundles: as for `resnet-tpu serve`. Raises UserError with the server's log when it does not start.
    """
    command = [sys.executable, "-m", "resnet_tpu", "serve", *bundles, "--port=0"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)  # noqa: S603
        try:
            yield _wait_for(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> Server:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := _READY.search(log.read_text(errors="replace")):
            return Server(found[1], found[2], process)
        time.sleep(_POLL_SECONDS)
    lines = log.read_text(errors="replace").splitlines()[-30:]
    raise UserError(
        "resnet-tpu serve", os.linesep.join(["no start", *lines, ""]), "a running server", "Its messages say why."
    )
