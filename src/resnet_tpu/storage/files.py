"""Files and folders, local or in a bucket: listing, reading, moving and removing them."""

import contextlib
import hashlib
import io
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from resnet_tpu.errors import UserError
from resnet_tpu.storage import buckets, disks
from resnet_tpu.storage.paths import filesystem, is_remote, join

BLOCK = 8 << 20
"""Bytes per request for a file in a bucket, unless only a few are needed."""
_REQUESTS = 16
"""Files in a bucket that are deleted or copied at the same time."""


def _info(path: str) -> dict[str, Any] | None:
    """The store's metadata of a file or folder; None when there is none. Raises UserError when there is no bucket."""
    with contextlib.suppress(FileNotFoundError), buckets.naming(path):
        return cast("dict[str, Any]", filesystem(path).info(path))
    return None


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`."""
    if not is_remote(path):
        return os.path.exists(path)  # noqa: PTH110 - False, not an error, for text too long for a name
    return _info(path) is not None


def check_reachable(path: str) -> None:
    """Raises UserError if a local `path` only seems not to exist.

    That is, if a folder above it may not be entered, or its disk cannot be reached.
    """
    try:
        if not is_remote(path):
            with disks.reaching(path):
                os.stat(path)  # noqa: PTH116
    except PermissionError:
        do = "Change the permissions of the folders above it, or ask their owner to."
        raise UserError(f"Path {path}", "permission denied", "a path that may be read", do) from None
    except (OSError, ValueError):
        return  # nothing is there


def is_dir(path: str) -> bool:
    """Whether `path` is a folder."""
    if not is_remote(path):
        return Path(path).is_dir()
    info = _info(path)
    return info is not None and info["type"] == "directory"


def list_dir(path: str) -> list[str]:
    """The sorted names (not paths) in the folder `path`; empty when it does not exist."""
    if is_remote(path):
        return sorted(entry.name for entry in bucket_entries(path))
    return sorted(entry.name for entry in Path(path).iterdir()) if Path(path).is_dir() else []


class FileState(NamedTuple):
    """Any change of a file's content changes its state."""

    size: int  # bytes
    version: int  # the modification time in ns; in a bucket, a digest of the object's metadata


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in a bucket, with the attributes of os.DirEntry, and its state."""

    name: str
    path: str
    is_folder: bool
    state: FileState

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.is_folder


def bucket_entries(path: str) -> list[Entry]:
    """The entries of a folder in a bucket, at one request per thousand; empty when it does not exist."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), buckets.naming(path):
        found = filesystem(path).ls(path, detail=True)
    full = path.split("://", 1)[1].strip("/")
    below = {entry["name"].strip("/"): entry for entry in found}
    return [
        Entry(name := full_name.rpartition("/")[2], join(path, name), entry["type"] == "directory", _state(entry))
        for full_name, entry in below.items()
        if full_name != full
    ]


def files_below(path: str) -> list[str]:
    """The sorted paths of all files in the folder `path` and below it; each begins with `path`.

    Links to folders are followed, each folder once: under its own name if it has one here, else under that of a link.
    Hidden files and folders are left out.
    """
    names = _names_below(path) if is_remote(path) else _local_names_below(path)
    return sorted(join(path, name) for name in names if not any(part.startswith(".") for part in name.split("/")))


def _names_below(path: str) -> list[str]:
    from fsspec.core import strip_protocol

    with buckets.naming(path):
        found = filesystem(path).find(path)
    start = len(strip_protocol(path).rstrip("/")) + 1
    return [str(file)[start:] for file in found]


def _local_names_below(path: str) -> Iterator[str]:
    seen: set[str] = set()
    starts = [path]
    for start in starts:  # which grows: the folders that links lead to come last, as they may have names of their own
        for folder, folders, files in os.walk(start, onerror=raise_unless_gone):
            if (real := os.path.realpath(folder)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))  # the same order on every disk
            starts += [join(folder, name) for name in folders if Path(folder, name).is_symlink()]
            yield from (os.path.relpath(join(folder, file), path) for file in files)


def raise_unless_gone(error: OSError) -> None:
    """For `os.walk`, which would silently leave out a folder that cannot be read."""
    if not isinstance(error, FileNotFoundError):
        raise error


def open_read(path: str) -> IO[bytes]:
    """Opens a file for reading bytes; one in a bucket is read a few megabytes at a time."""
    if is_remote(path):
        return cast("IO[bytes]", io.BufferedReader(_RemoteFile(path), BLOCK))
    return Path(path).open("rb")


class _RemoteFile(io.RawIOBase):
    """A file in a bucket, of which only the parts asked for are read."""

    def __init__(self, path: str) -> None:
        self._path, self._size, self._position = path, file_state(path).size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(memoryview(buffer).cast("B")))
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._next(self._size)

    def _next(self, size: int) -> bytes:
        data = read_range(self._path, self._position, min(self._position + size, self._size))
        self._position += len(data)
        return data


def read_range(path: str, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of a file; fewer if it ends earlier. Long ranges in a bucket are read in parallel."""
    if not is_remote(path):
        with Path(path).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)
    edges = [*range(start, stop, BLOCK), stop]
    return b"".join(read_ranges([(path, low, high) for low, high in itertools.pairwise(edges)]))


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """`read_range` of each (path, start, stop), all in one bucket, at the same time."""
    wanted = [(path, start, stop) for path, start, stop in ranges if stop > start]
    if not wanted:
        return [b""] * len(ranges)
    paths, starts, stops = (list(column) for column in zip(*wanted, strict=True))
    with buckets.naming(paths[0]):
        found = map(_content, filesystem(paths[0]).cat_ranges(paths, starts, stops, on_error="return"))
        return [next(found) if stop > start else b"" for _, start, stop in ranges]


def _content(answer: bytes | BaseException) -> bytes:
    """What a range of a file in a bucket holds: nothing if the file ends before it. Raises any other error."""
    if getattr(answer, "code", None) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return b""
    if isinstance(answer, BaseException):
        raise answer
    return answer


def file_state(path: str) -> FileState:
    """The present state of a file."""
    if not is_remote(path):
        stat = os.stat(path)  # noqa: PTH116  # a million Path objects take seconds
        return FileState(stat.st_size, stat.st_mtime_ns)
    with buckets.naming(path):
        return _state(filesystem(path).info(path))


def generation_of(path: str) -> int:
    """The generation of an object, which Google Cloud Storage increases with each write; 0 where there is none."""
    info = _info(path)
    return int(info.get("generation") or 0) if info else 0


def _state(info: dict[str, Any]) -> FileState:
    marks = repr([info.get(key) for key in ("generation", "etag", "ETag", "updated", "mtime", "created")])
    return FileState(int(info["size"] or 0), int.from_bytes(hashlib.sha256(marks.encode()).digest()[:7], "big"))


def remove(path: str) -> None:
    """Deletes a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if not is_remote(path):
            Path(path).unlink()
            return
        with buckets.naming(path, is_write=True):
            filesystem(path).rm_file(path)


def remove_dir(path: str) -> None:
    """Deletes a folder and everything in it, or a file or link, if it exists."""
    if is_remote(path):
        _for_each(remove, _all_in(path))
    elif is_dir(path) and not Path(path).is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    else:
        remove(path)


def _all_in(path: str) -> list[str]:
    """The files in a folder of a bucket and in those below it, or the file `path` itself.

    Clients can delete and move folders too, but treat a name such as run[12] as a pattern that other names match.
    """
    return [join(path, name) if name else path for name in _names_below(path)]


def _for_each(use: Callable[[str], None], files: list[str]) -> None:
    """Calls `use` on each file in a bucket, several at a time."""
    with ThreadPoolExecutor(_REQUESTS) as threads:
        list(threads.map(use, files))


def is_stream(path: str) -> bool:
    """Whether `path` is a device, a pipe or a socket, which no file may replace."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def read_bytes(path: str) -> bytes:
    """The whole of a small file, in one request. Raises UserError if its disk or bucket cannot be reached."""
    if not is_remote(path):
        with disks.reaching(path):
            return Path(path).read_bytes()
    with buckets.naming(path):
        return cast("bytes", filesystem(path).cat_file(path))


def read_image(path: str) -> bytes:
    """The whole of an image file. Raises OSError for a pipe, a socket or a device as well: these may have no end."""
    if not is_remote(path) and is_stream(path):
        raise OSError("a pipe or a device")
    return read_bytes(path)


def read_text(path: str) -> str:
    """The whole of a UTF-8 text file."""
    return read_bytes(path).decode()


def read_names(path: str) -> list[str]:
    """The names in a text file, one per line. Raises UserError when it is not UTF-8."""
    try:
        return [line.strip() for line in read_bytes(path).decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise UserError(
            "Names", f"{path}, which is not text", "UTF-8, a name on each line", "Check the path."
        ) from None


def move(path: str, target: str) -> None:
    """Renames a file or a folder. In a bucket, files are copied, and deleted once all copies exist."""
    if not is_remote(path):
        shutil.move(path, target)
        return
    files, store = _all_in(path), filesystem(path)
    if not files:
        raise FileNotFoundError(path)
    with buckets.naming(path, is_write=True):
        _for_each(lambda file: store.cp_file(file, target + file[len(path) :]), files)
    _for_each(remove, files)
