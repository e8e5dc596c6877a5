"""Runs `resnet-tpu serve` as a process of its own: waits until it is ready, and stops it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet_tpu.errors import UserError
from resnet_tpu.system.cpu_time import cpu_secs_of_process

_URL = re.compile(r"^Serving at (http://\S+)$", re.MULTILINE)
_START_SECONDS = 120
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str  # http://host:port
    model: str  # the first one that it serves
    process: subprocess.Popen[bytes]
    log: Path

    def cpu_secs(self) -> float:
        """CPU seconds of the process so far."""
        return cpu_secs_of_process(self.process.pid)

    def stop(self, seconds: float = 60) -> int:
        """Asks it to stop, waits for the end, and returns its exit code; it is killed after `seconds`."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def running(bundles: Sequence[str]) -> Iterator[Server]:
    """A server of these bundles on a free port, ready to answer; it is stopped at the end.

    bundles: as `resnet-tpu serve` takes them. Raises UserError with its log when it does not start.
    """
    command = [sys.executable, "-m", "resnet_tpu", "serve", *bundles, "--port=0"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)  # noqa: S603
        try:
            server = _wait_for(process, log)
            yield server
            if process.poll() is None:
                server.stop()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> Server:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := _URL.search(log.read_text()):
            with urllib.request.urlopen(f"{found[1]}/v1/models", timeout=_START_SECONDS) as answer:  # noqa: S310
                return Server(found[1], json.load(answer)["models"][0]["name"], process, log)
        time.sleep(_POLL_SECONDS)
    lines = log.read_text().splitlines()[-30:]
    raise UserError("resnet-tpu serve", os.linesep.join(["no start", *lines, ""]), "a running server", "Run it alone.")
