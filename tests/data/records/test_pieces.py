"""Pieces of files in a bucket, kept on the disk: what is there is read there, whatever else could not be kept."""

import errno
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pytest

from resnet_tpu import storage
from resnet_tpu.data.records import pieces
from resnet_tpu.data.records.pieces import PIECE_BYTES, ByteRange, KeepingReader, open_reader

PATH = "memory://pieces/train-0"


class File(NamedTuple):
    """A file as far as a reader of pieces looks at it."""

    path: str
    size: int
    state: tuple[int, int]


@pytest.fixture
def file() -> Any:
    """A file of three pieces in a bucket."""
    content = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 1000)
    fsspec.filesystem("memory").pipe(PATH.removeprefix("memory:/"), content)
    return File(PATH, len(content), (len(content), 1))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is asked of the bucket."""
    spans: list[tuple[str, int, int]] = []
    read_ranges = storage.read_ranges
    monkeypatch.setattr(storage, "read_ranges", lambda wanted: spans.extend(wanted) or read_ranges(wanted))
    return spans


def test_what_is_kept_is_read_from_the_disk_when_no_more_can_be(
    file: Any, asked: list[tuple[str, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = storage.read_bytes(PATH)
    reader = KeepingReader(str(tmp_path))
    first, second = ByteRange(file, 10, 20), ByteRange(file, PIECE_BYTES - 5, PIECE_BYTES + 5)
    assert reader.read([first]) == [content[10:20]]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert reader.read([second]) == [content[PIECE_BYTES - 5 : PIECE_BYTES + 5]]
    asked.clear()
    assert reader.read([first, second]) == [content[10:20], content[PIECE_BYTES - 5 : PIECE_BYTES + 5]]
    assert asked == [(PATH, second.start, second.stop)]


def test_pieces_that_were_half_written_when_a_process_was_killed_are_deleted(file: Any, tmp_path: Path) -> None:
    open_reader(str(tmp_path), [file]).read([ByteRange(file, 0, 10)])
    (folder,) = tmp_path.iterdir()
    for name, age in ((".1.4711.140", 2 * pieces._LEFT_SECS), (".1.4712.141", 0)):
        (folder / name).touch()
        then = time.time() - age
        os.utime(folder / name, (then, then))
    open_reader(str(tmp_path), [file])
    assert sorted(path.name for path in folder.iterdir()) == [".1.4712.141", "0"]
