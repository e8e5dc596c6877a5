"""A fake bucket, in a process of its own, for tests and for the programs that they run."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("server.py")


class Bucket:
    """The bucket of a running server."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.url = "gs://bucket"

    def faults(self, **values: Any) -> None:
        """Sets the faults (none by default) and resets the counters."""
        self._ask("/_control", values)

    def requests(self) -> dict[str, int]:
        """How often each kind of request was made."""
        return self._ask("/_stats")["requests"]

    def num_bytes(self) -> int:
        """Bytes of objects sent."""
        return self._ask("/_stats")["bytes"]

    def names(self) -> list[str]:
        """The names of all objects."""
        return self._ask("/_objects")["names"]

    def environment(self) -> dict[str, str]:
        """The environment of a program that is to use the bucket."""
        aside = {"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"}
        return {name: value for name, value in os.environ.items() if name not in aside} | {
            "STORAGE_EMULATOR_HOST": self.endpoint
        }

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.endpoint + path, data=data)) as reply:
            return json.load(reply)


@pytest.fixture(scope="session")
def _server() -> Iterator[Bucket]:
    pytest.importorskip("gcsfs")
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Bucket(int(process.stdout.readline()))
    process.terminate()
    process.wait()
    process.stdout.close()


@pytest.fixture
def bucket(_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket for this process, without faults; it may contain objects from earlier tests."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", _server.endpoint)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    _server.faults()
    yield _server
    _server.faults()
