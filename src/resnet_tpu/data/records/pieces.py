"""Byte ranges of files in a bucket, read in big pieces, many at once, and kept on this machine if there is room.

Training reads the records in a new order in every epoch, so neighbours in a file are not needed at the same time. Each
piece is therefore fetched whole, once, and kept on the disk: in the first epoch one request serves all images of a
piece, and later epochs need none. If the disk is too small, nothing is kept, and one request serves only neighbours
that are asked for together, which the training order `data_order` pieces ensures.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from resnet_tpu import storage
from resnet_tpu.data.records.tfrecord import RecordFile
from resnet_tpu.errors import UserError

log = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
"""Bytes of a piece: large enough for efficient requests, small enough for short waits."""

_AT_ONCE = 4  # pieces a thread fetches at a time, and holds in memory
_GAP = 64 << 10  # bytes: up to this, a gap between two records is read too, to save a second request
_GB = 1e9
_LEFT_SECS = 3600.0  # after this, an unfinished piece counts as abandoned


class ByteRange(NamedTuple):
    """The bytes [start, stop) of a file."""

    file: RecordFile
    start: int
    stop: int


def first_records(files: Sequence[RecordFile]) -> np.ndarray:
    """The number, counted over all files, of the first record that begins in each piece: int64 [pieces]."""
    starts, count = [np.zeros(0, np.int64)], 0
    for file in files:
        numbers = file.offsets // PIECE_BYTES
        starts.append(count + np.flatnonzero(np.diff(numbers, prepend=-1)))
        count += len(file)
    return np.concatenate(starts)


class DirectReader:
    """Reads byte ranges of files from their bucket, neighbours together."""

    keeps = False
    """Whether the bytes that it reads stay on this machine."""

    def read(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of each range; fewer if the file ends earlier. Thread-safe."""
        order = sorted(range(len(wanted)), key=lambda i: (wanted[i].file.path, wanted[i].start))
        groups: list[list[int]] = []
        for i in order:
            if groups and _is_near(wanted[groups[-1][0]], wanted[groups[-1][-1]], wanted[i]):
                groups[-1].append(i)
            else:
                groups.append([i])
        spans = [(wanted[group[0]].file.path, wanted[group[0]].start, wanted[group[-1]].stop) for group in groups]
        found = [b""] * len(wanted)
        for group, (_, first, _), data in zip(groups, spans, storage.read_ranges(spans), strict=True):
            for i in group:
                found[i] = data[wanted[i].start - first : wanted[i].stop - first]
        return found

    def forget(self, span: ByteRange) -> None:
        """Does nothing, as nothing is kept."""


def _is_near(first: ByteRange, last: ByteRange, new: ByteRange) -> bool:
    return first.file is new.file and new.start - last.stop <= _GAP and new.stop - first.start <= storage.BLOCK


class KeepingReader(DirectReader):
    """Reads byte ranges of files in whole pieces, which it keeps in a local folder, for later processes too."""

    keeps = True

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._is_full = False
        self._lock = threading.Lock()
        self._coming: dict[Path, Future[bytes]] = {}

    def __reduce__(self) -> tuple[Any, ...]:  # in another process, none of its reads is under way
        return type(self), (self.folder,)

    def read(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        parts: list[dict[int, bytes]] = [{} for _ in wanted]  # of each range, by piece
        needed: dict[tuple[RecordFile, int], list[int]] = {}
        for i, span in enumerate(wanted):
            for number in range(span.start // PIECE_BYTES, -(-span.stop // PIECE_BYTES)):
                needed.setdefault((span.file, number), []).append(i)
        missing = []
        for (file, number), users in needed.items():
            for i in users:
                data = self._kept(wanted[i], number)
                if data is None:
                    missing.append((file, number))
                    break
                parts[i][number] = data
        direct: dict[int, bytes] = {}
        if self._is_full:  # whole pieces are fetched only to be kept
            lacking = sorted({i for piece in missing for i in needed[piece]})
            direct = dict(zip(lacking, super().read([wanted[i] for i in lacking]), strict=True))
            missing = []
        for k in range(0, len(missing), _AT_ONCE):
            for (file, number), piece in self._fetch(missing[k : k + _AT_ONCE]):
                for i in needed[file, number]:
                    low, high = _within(wanted[i], number)
                    parts[i][number] = piece[low:high]
        joined = (b"".join(part[number] for number in sorted(part)) for part in parts)
        return [direct.get(i, data) for i, data in enumerate(joined)]

    def forget(self, span: ByteRange) -> None:
        """Deletes the kept pieces that hold any part of a damaged range."""
        for number in range(span.start // PIECE_BYTES, -(-span.stop // PIECE_BYTES)):
            self._path_of(span.file, number).unlink(missing_ok=True)

    def _path_of(self, file: RecordFile, number: int) -> Path:
        return Path(self.folder, _name(file), str(number))

    def _kept(self, span: ByteRange, number: int) -> bytes | None:
        """The part of a range that a piece on the disk holds; None if the piece is missing."""
        low, high = _within(span, number)
        try:
            with self._path_of(span.file, number).open("rb") as piece:
                return os.pread(piece.fileno(), high - low, low)
        except FileNotFoundError:
            return None

    def _fetch(self, pieces: Sequence[tuple[RecordFile, int]]) -> Iterable[tuple[tuple[RecordFile, int], bytes]]:
        """Fetches pieces from the bucket; waits for those that another thread is fetching."""
        ours: dict[Path, tuple[RecordFile, int]] = {}
        futures: list[Future[bytes]] = []
        with self._lock:
            for file, number in pieces:
                path = self._path_of(file, number)
                if path not in self._coming:
                    self._coming[path] = Future()
                    ours[path] = (file, number)
                futures.append(self._coming[path])
        try:
            spans = [(file.path, n * PIECE_BYTES, min((n + 1) * PIECE_BYTES, file.size)) for file, n in ours.values()]
            for path, data in zip(ours, storage.read_ranges(spans), strict=True):
                self._keep(path, data)
                self._coming[path].set_result(data)
        except BaseException as error:
            for path in ours:
                if not self._coming[path].done():
                    self._coming[path].set_exception(error)
            raise
        finally:
            with self._lock:
                for path in ours:
                    del self._coming[path]
        return [(piece, future.result()) for piece, future in zip(pieces, futures, strict=True)]

    def _keep(self, path: Path, data: bytes) -> None:
        if self._is_full:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            try:
                aside.write_bytes(data)
                aside.replace(path)
            finally:
                aside.unlink(missing_ok=True)
        except OSError as error:
            self._is_full = True
            log.warning("%s cannot keep more of the data: %s. Images are read one by one.", self.folder, error.strerror)


def _within(span: ByteRange, number: int) -> tuple[int, int]:
    """Where in a piece the bytes of a range lie."""
    return max(span.start - number * PIECE_BYTES, 0), min(span.stop - number * PIECE_BYTES, PIECE_BYTES)


def _name(file: RecordFile) -> str:
    size, version = file.state
    return f"{_stem(file)}-{size:x}-{version:x}"


def _stem(file: RecordFile) -> str:
    return hashlib.sha256(os.fsencode(file.path)).hexdigest()[:24]


def open_reader(cache_folder: str, files: Sequence[RecordFile]) -> DirectReader:
    """The reader for files in a bucket: one that keeps what it reads, if there is room for all of it.

    cache_folder: where to keep it; empty for the user's cache; 'none' to keep nothing.
    Raises UserError for a folder that is not on this machine.
    """
    if storage.is_remote(cache_folder):
        raise UserError("cache_folder", cache_folder, "a folder on this machine", "Give one, or none to keep nothing.")
    if cache_folder == "none":
        return DirectReader()
    folder = Path(cache_folder or storage.join(storage.cache_dir(), "pieces"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = sum(_kept_bytes(folder, file) for file in files)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        log.warning("%s cannot keep the data: %s.", folder, error.strerror)
        return DirectReader()
    missing = sum(file.size for file in files) - kept
    if missing > free // 2:
        log.warning(
            "The data are read from the bucket again in each epoch: %.1f GB of them would take more than half of the "
            "%.1f GB that are free in %s. Set cache_folder to a folder with more room.",
            missing / _GB, free / _GB, folder,
        )  # fmt: skip
        return DirectReader()
    log.info("Data that are read are kept in %s: %.1f GB still to come.", folder, missing / _GB)
    return KeepingReader(str(folder))


def _kept_bytes(folder: Path, file: RecordFile) -> int:
    """How many bytes of a file are kept already. Deletes pieces of earlier versions of it, and half-written ones."""
    name = _name(file)
    for old in folder.glob(f"{_stem(file)}-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        sizes = 0
        for entry in os.scandir(folder / name):
            with contextlib.suppress(OSError):  # renamed by its writer, or another user's
                state = entry.stat()
                if not entry.name.startswith("."):
                    sizes += state.st_size
                elif time.time() - state.st_mtime > _LEFT_SECS:  # left by a process that was killed
                    Path(entry.path).unlink()
        return sizes
    return 0
