"""TFRecord files: written whole, read in order or at random, every byte covered by a checksum.

A record is its length (8 bytes), a checksum of the length (4), the payload and a checksum of the payload (4), all
little endian; a checksum is a masked CRC32C.
"""

import contextlib
import functools
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import google_crc32c
import numpy as np

from resnet_tpu import storage
from resnet_tpu.data.records.index import CHECKSUM, HEADER, read_index, save_index
from resnet_tpu.errors import UserError

OVERHEAD = HEADER.size + CHECKSUM.size
"""Bytes of a record besides its payload."""

_SEARCHED_BYTES = 1 << 20  # at a time, for the next header
_DO = "Write the file again, or pass --skip_bad_records to count damaged records and continue."


class RecordError(UserError):
    """A damaged record: the file, the record's number (from 0) and the offset of its first byte."""

    def __init__(self, path: str, record: int, offset: int, got: str, expected: str) -> None:
        self.path, self.record, self.offset = path, record, offset
        super().__init__(f"Record {record} of {path} at byte {offset}", got, expected, _DO)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.record, self.offset, str(self.got), self.expected)


def masked_crc(data: bytes | np.ndarray) -> int:
    """The CRC32C of `data`, rotated and shifted as TFRecord files store it."""
    return _masked(google_crc32c.value(data))


def _masked(crc: Any) -> Any:
    """CRCs as they are stored; they are whole numbers or arrays of int64."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(payload: bytes) -> tuple[bytes, ...]:
    """A record as it is in a TFRecord file, in parts: length, checksum, payload, checksum."""
    length = struct.pack("<Q", len(payload))
    return length, CHECKSUM.pack(masked_crc(length)), payload, CHECKSUM.pack(masked_crc(payload))


class RecordWriter:
    """Writes a TFRecord file that appears at `path`, with its index next to it, only if the `with` block succeeds."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sha256 = hashlib.sha256()  # of what was written so far
        self._rows: list[tuple[int, int]] = []
        self.num_bytes = 0
        self._stack = contextlib.ExitStack()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "RecordWriter":
        self._file = self._stack.enter_context(storage.write_whole(self.path))
        return self

    def write(self, payload: bytes) -> None:
        """Appends one record."""
        if self._file is None:
            raise ValueError("write outside of the with block")
        for part in framed(payload):
            self._file.write(part)
            self.sha256.update(part)
        self._rows.append((self.num_bytes + HEADER.size, len(payload)))
        self.num_bytes += len(payload) + OVERHEAD

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None
        self._stack.__exit__(kind, error, trace)
        if kind is None:
            save_index(self.path, _as_index(self._rows))


def read_records(path: str) -> Iterator[bytes]:
    """The payloads of a TFRecord file in order, each checked, in one pass.

    Raises RecordError at the first damaged record, after all records before it, and UserError when the file cannot be
    read.
    """
    with open_records(path) as file:
        for record, step in enumerate(_walk(file, path)):
            if isinstance(step, RecordError):
                raise step
            start, length = step
            yield _payload(path, record, start, length, file.read(length + CHECKSUM.size))


class RecordFile:
    """Random access to the payloads of one TFRecord file, from any number of threads; each is checked when read.

    With `skip_bad`, stretches without readable records are left out and kept in `damage`. Otherwise raises RecordError
    when the file is damaged or truncated. Raises UserError when it cannot be read.
    """

    def __init__(self, path: str, *, skip_bad: bool = False, state: storage.FileState | None = None) -> None:
        """`state`: the file's, if it is known already."""
        self.path, self.name = path, Path(path).name
        self.damage: list[RecordError] = []
        self.state = state or state_of(path)
        self._index = load_index(path, on_bad=self.damage.append if skip_bad else None, state=self.state)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.state.size

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> bytes:
        """The payload of record `i`. Raises RecordError when its checksum is wrong."""
        start, stop = self.span(i)
        return self.check(i, self._read(start, stop - start))

    def span(self, i: int) -> tuple[int, int]:
        """Where the payload of record `i` and its checksum lie in the file: bytes [start, stop)."""
        start, length = self._index[i].tolist()
        return start, start + length + CHECKSUM.size

    def check(self, i: int, data: bytes) -> bytes:
        """The payload of record `i` in `data`, read from its span. Raises RecordError when its checksum is wrong."""
        record = range(len(self))[i]
        start, length = self._index[record].tolist()
        return _payload(self.path, record, start, length, data)

    @property
    def offsets(self) -> np.ndarray:
        """Where each record begins in the file, its header included, in bytes: int64 [n]."""
        return self._index[:, 0] - HEADER.size

    def offset(self, i: int) -> int:
        """Where record `i` begins, as in `offsets`."""
        return int(self._index[i, 0]) - HEADER.size

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    def _read(self, start: int, size: int) -> bytes:
        """The `size` bytes from `start`; fewer if the file has become shorter."""
        try:
            if storage.is_remote(self.path):
                return storage.read_range(self.path, start, start + size)
            # Not a memory map, which would crash the program if the file had been truncated.
            file = _opened(self.path, self.state)
            return os.pread(file.descriptor, size, start)
        except OSError as error:
            raise _unreadable(self.path, error) from None


class _OpenFile:
    """A file that stays open as long as anything refers to this object."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


# Bounded: ImageNet has more shards than a process may have open files (on macOS, 256 by default).
@functools.lru_cache(maxsize=128)
def _opened(path: str, state: storage.FileState) -> _OpenFile:  # noqa: ARG001  # a changed file is opened again
    return _OpenFile(os.open(path, os.O_RDONLY))


def load_index(
    path: str, *, on_bad: Callable[[RecordError], None] | None = None, state: storage.FileState | None = None
) -> np.ndarray:
    """(payload offset, payload length) of every record of a TFRecord file: int64 [n, 2].

    Built by one pass over the headers on first use and kept in `_index/` next to the file, or in the user's cache
    if that is in a bucket or not writable. Built again when the file's size or time changed (`state`: both, if known)
    or the index itself is damaged.
    Raises RecordError when a header is damaged or the file ends within a record, or gives it to `on_bad` and continues
    at the next record that can be found; such an index is not kept. Raises UserError when the file cannot be read.
    """
    state = state or state_of(path)
    if (kept := read_index(path, state)) is not None:
        return kept
    rows: list[tuple[int, int]] = []
    damaged = False
    with open_records(path) as file:
        for step in _walk(file, path):
            if not isinstance(step, RecordError):
                rows.append(step)
                continue
            if on_bad is None:
                raise step
            damaged = True
            on_bad(step)
    index = _as_index(rows)
    if not damaged:
        save_index(path, index, state)
    return index


def _as_index(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 2)


def _walk(file: IO[bytes], path: str) -> Iterator[tuple[int, int] | RecordError]:
    """The (payload offset, length) of each record, or an error in its place; continues at the next sound header."""
    size = file.seek(0, os.SEEK_END)
    position, record = 0, 0
    while position < size:
        file.seek(position)
        header = file.read(HEADER.size)
        length = header_length(header)
        if length is not None and position + length + OVERHEAD <= size:
            yield position + HEADER.size, length
            position += length + OVERHEAD
        elif len(header) < HEADER.size or length is not None:
            needed = f"{OVERHEAD if length is None else length + OVERHEAD} bytes"
            yield RecordError(path, record, position, f"a file that ends after {size - position} bytes", needed)
            return
        else:
            got = "gzip-compressed data" if header.startswith(b"\x1f\x8b") else "a wrong checksum of the length"
            yield RecordError(path, record, position, got, "an undamaged, uncompressed TFRecord header")
            position = _find_header(file, position + 1, size)
        record += 1


def begins_with_record(path: str) -> bool:
    """Whether a file begins with the undamaged header of a record. Raises UserError when it cannot be read."""
    with open_records(path) as file:
        return header_length(file.read(HEADER.size)) is not None


def header_length(header: bytes) -> int | None:
    """The payload length in a header, or None when it is short or its checksum is wrong."""
    if len(header) < HEADER.size:
        return None
    length, checksum = HEADER.unpack(header)
    return length if masked_crc(header[:8]) == checksum else None


def _find_header(file: IO[bytes], position: int, size: int) -> int:
    """The offset of the first whole record at or after `position`, or `size`."""
    while position < size:
        file.seek(position)
        for offset, length in _headers(file.read(_SEARCHED_BYTES + HEADER.size - 1)):
            if position + offset + length + OVERHEAD <= size:
                return position + offset
        position += _SEARCHED_BYTES
    return size


def _headers(data: bytes) -> Iterator[tuple[int, int]]:
    """(offset, payload length) of every sound header in `data`, except for payloads of 4 GiB or more.

    Checks all positions at once: one by one, a file that ends in zeros would take a second per megabyte.
    """
    if len(data) < HEADER.size:
        return
    is_zero = np.frombuffer(data, np.uint8) == 0
    of_four = is_zero[:-3] & is_zero[1:-2] & is_zero[2:-1] & is_zero[3:]
    # the upper half of the length is zero, but not all of the header
    starts = np.flatnonzero(of_four[4:-4] & ~(of_four[:-8] & of_four[8:]))
    fours = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 4)
    lengths, checksums = fours[starts], fours[starts + HEADER.size - CHECKSUM.size]
    crcs = np.bitwise_xor.reduce([table[lengths[:, i]] for i, table in enumerate(_crc_tables())])
    is_sound = _masked(crcs) == checksums.view("<u4")[:, 0]
    yield from zip(starts[is_sound].tolist(), lengths.view("<u4")[is_sound, 0].tolist(), strict=True)


@functools.cache
def _crc_tables() -> list[np.ndarray]:
    """Four int64 [256]: if the last 4 of 8 bytes are 0, the XOR of the entries for the first 4 is the CRC32C."""
    zero = google_crc32c.value(bytes(8))
    tables = []
    for i in range(4):
        rows = [google_crc32c.value(bytes(i) + bytes([byte]) + bytes(7 - i)) for byte in range(256)]
        tables.append(np.array(rows, np.int64) ^ (zero if i else 0))
    return tables


def _payload(path: str, record: int, start: int, length: int, data: bytes) -> bytes:
    """The payload in `data`, read from `start` on and followed by its checksum. Raises RecordError for damage."""
    payload, offset = data[:length], start - HEADER.size
    if len(data) < length + CHECKSUM.size:
        got = f"{len(data)} bytes after its header"
        raise RecordError(path, record, offset, got, f"{length + CHECKSUM.size}")
    (expected,) = CHECKSUM.unpack(data[length:])
    if (got := masked_crc(payload)) != expected:
        raise RecordError(path, record, offset, f"a payload with checksum {got:#010x}", f"{expected:#010x}")
    return payload


def state_of(path: str) -> storage.FileState:
    """`storage.file_state`. Raises UserError when the file cannot be read."""
    try:
        return storage.file_state(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def open_records(path: str) -> IO[bytes]:
    """`storage.open_read`. Raises UserError when the file cannot be read."""
    try:
        return storage.open_read(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(f"File {path}", error.strerror or error, "a readable TFRecord file", "Check path and permissions.")
