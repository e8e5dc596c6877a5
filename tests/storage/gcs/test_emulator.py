"""Records in a bucket on a third-party server: the same as on disk."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resnet_tpu import storage
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordFile, RecordWriter, read_records
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.options.config import DataConfig

pytestmark = pytest.mark.peer("gcp-storage-emulator")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of the emulator, accessed by the real client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = ["-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, *start, "--default-bucket=peer"], stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path
        )
    until = time.monotonic() + 60
    while True:
        with socket.socket() as client:
            if not client.connect_ex(("127.0.0.1", port)):
                break
        if server.poll() is not None or time.monotonic() > until:
            pytest.fail((tmp_path / "log").read_text())
        time.sleep(0.1)
    yield "gs://peer"
    server.kill()
    server.wait()


def test_records_are_as_on_the_disk(place: str, tmp_path: Path) -> None:
    payloads = [encode_example({"image/encoded": os.urandom(5000), "image/class/label": 1 + i % 5}) for i in range(40)]
    (tmp_path / "near").mkdir()
    for folder in (place, str(tmp_path / "near")):
        with RecordWriter(storage.join(folder, "train-00000-of-00001")) as writer:
            for payload in payloads:
                writer.write(payload)
    assert list(read_records(f"{place}/train-00000-of-00001")) == payloads
    assert list(RecordFile(str(tmp_path / "near" / "train-00000-of-00001"))) == payloads
    far, near = (
        open_source(DataConfig(data_dir=folder, num_label_classes=5), "train")
        for folder in (place, str(tmp_path / "near"))
    )
    assert [(far[i].encoded, far[i].label) for i in range(40)] == [(near[i].encoded, near[i].label) for i in range(40)]
