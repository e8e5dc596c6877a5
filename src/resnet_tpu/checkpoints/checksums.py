"""Checksums of the files of a checkpoint: Orbax and TensorStore keep none, for arrays or for JSON.

`<step>/checksums.json` holds the size and the CRC32C of every other file. It is not written in a bucket, which keeps
checksums itself.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c

from resnet_tpu import storage
from resnet_tpu.storage import checked_json
from resnet_tpu.storage.files import raise_unless_gone

FILE = "checksums.json"
"""Missing if the writer was killed before it wrote this file."""

_READ_BYTES = 1 << 22
_OPEN_AT_ONCE = 32


def write(path: str) -> None:
    """Writes the checksums of the checkpoint at `path`, which must be complete."""
    if not storage.is_remote(path):
        found = {name: _describe(file) for name, file in sorted(_files(path, ""))}
        storage.write_text(storage.join(path, FILE), json.dumps(found, indent=1) + "\n")


def check(path: str, part: str) -> None:
    """Raises ValueError when the folder or file `part` of the checkpoint at `path` differs from what was written.

    A checkpoint without checksums (an old one, or one whose writer was killed before it wrote them) is not checked.
    """
    if storage.is_remote(path) or not storage.exists(manifest := storage.join(path, FILE)):
        return
    written = checked_json.as_kind(dict[str, list[int]], checked_json.parse(storage.read_text(manifest)), FILE)
    names = sorted(name for name in written if name.split("/")[0] == part)  # other programs may have added files
    files = dict(_files(path, part))
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: _describe(files[name]) if name in files else None, names)
        for name, description in zip(names, found, strict=True):
            if description != written[name]:
                raise ValueError(f"{name}, whose content has changed since it was written")


def open_all(path: str) -> None:
    """Opens every file of the checkpoint at `path`, on a disk, some at once as Orbax does, and closes them.

    Raises the OSError of one that cannot be opened.
    """
    with contextlib.ExitStack() as opened:
        for number, (_, file) in enumerate(_files(path, "")):
            if number % _OPEN_AT_ONCE == 0:
                opened.close()
            opened.enter_context(file.open("rb"))


def _files(path: str, part: str) -> Iterator[tuple[str, Path]]:
    """(name in the checkpoint, path) of each file in a part of the checkpoint. part: '' for all of it."""
    folder = Path(path)
    found = folder / part
    below = (Path(place, name) for place, _, names in os.walk(found, onerror=raise_unless_gone) for name in names)
    for file in [found] if found.is_file() else below:
        if file.is_file() and file.name != FILE:
            yield file.relative_to(folder).as_posix(), file


def _describe(file: Path) -> list[int]:
    """[size, CRC32C]"""
    checksum, size = google_crc32c.Checksum(), 0
    with file.open("rb") as opened:
        while data := opened.read(_READ_BYTES):
            checksum.update(data)
            size += len(data)
    return [size, int.from_bytes(checksum.digest(), "big")]
