"""The index of a TFRecord file, which says where its records begin; kept next to it, or in the user's cache.

An index is int64 [n, 2]: offset and length in bytes of each payload. It is kept as a NumPy array whose first row is the
state of the file that it describes.
"""

import contextlib
import hashlib
import io
import os
import struct
from collections.abc import Iterator

import numpy as np

from resnet_tpu import storage
from resnet_tpu.errors import UserError

HEADER, CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")
"""What precedes and follows a payload."""


def read_index(path: str, state: storage.FileState) -> np.ndarray | None:
    """The kept index of the file at `path`; None if there is none, it is damaged, or the file's state has changed."""
    for candidate, data in kept_copies(path, ".npy"):
        index = _parse(data, state)
        if index is not None:
            if storage.is_remote(candidate):
                save_index(path, index, state)  # on this machine
            return index
    return None


def save_index(path: str, index: np.ndarray, state: storage.FileState | None = None) -> None:
    """Keeps the index of the file at `path` where `read_index` looks.

    state: the file's when it was read; None for a file that was just written, whose index goes next to it.
    """
    data = _npy(np.concatenate([np.array([state or storage.file_state(path)], np.int64), index]))
    keep(path, ".npy", data, with_file=state is None)


def kept_copies(path: str, ending: str) -> Iterator[tuple[str, bytes]]:
    """(place, content) of the kept copies of data about the file or data set at `path`: none, one or two."""
    for candidate in _candidates(path, ending):
        with contextlib.suppress(OSError):
            yield candidate, storage.read_bytes(candidate)


def keep(path: str, ending: str, data: bytes, *, with_file: bool = False) -> None:
    """Keeps `data` in the first writable place where `kept_copies` looks. with_file: next to the file, if possible."""
    candidates = _candidates(path, ending)
    for candidate in sorted(candidates, key=storage.is_remote, reverse=True) if with_file else candidates:
        with contextlib.suppress(OSError, UserError):
            storage.make_dir(os.path.dirname(candidate))  # noqa: PTH120
            storage.write_bytes(candidate, data)
            return


def _candidates(path: str, ending: str) -> list[str]:
    """The places next to the file and in the user's cache, those on this machine first."""
    full = path if storage.is_remote(path) else os.path.realpath(path)
    name = hashlib.sha256(os.fsencode(full)).hexdigest()[:32]
    folder, base = os.path.split(path)
    places = [storage.join(folder, "_index", f"{base}{ending}")]
    with contextlib.suppress(UserError):  # without a home folder there is no cache
        places.append(storage.join(storage.cache_dir(), "index", f"{name}{ending}"))
    return sorted(places, key=storage.is_remote)


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array.astype("<i8"), allow_pickle=False)
    return file.getvalue()


def _parse(data: bytes, state: storage.FileState) -> np.ndarray | None:
    """The index in `data`; None when it is damaged or belongs to another state of the shard."""
    body = data[-(len(data) // 16 * 16 - 128) :] if len(data) >= 128 + 16 else b""
    table = np.frombuffer(body, "<i8").reshape(-1, 2).astype(np.int64)
    if not len(table) or _npy(table) != data or tuple(table[0].tolist()) != state:
        return None
    starts, lengths = table[1:, 0], table[1:, 1]
    ends = np.concatenate([[0], starts + lengths + CHECKSUM.size])
    follow = np.array_equal(starts, ends[:-1] + HEADER.size) and (np.diff(ends) >= HEADER.size + CHECKSUM.size).all()
    whole = follow and ends[-1] == state.size  # overflowing sums would not ascend
    return table[1:] if whole else None
