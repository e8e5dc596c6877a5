"""Files on the local disk and in buckets behind one interface. A path is a string, local or `gs://...`."""

import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import os
import posixpath
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import fsspec

from resnet_tpu import buckets
from resnet_tpu.errors import UserError

_EFFECTIVE_IDS = os.access in os.supports_effective_ids

BLOCK = 8 << 20
"""Bytes of a file in a bucket that are asked for at a time, where more than a few are needed."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room on the disk, for this user, in one file


def cache_dir() -> str:
    """The folder of this user for what can be made or fetched again."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"), "resnet_tpu")  # noqa: PTH118


def is_remote(path: str) -> bool:
    """Whether `path` is in a bucket rather than on this machine."""
    return "://" in path


def _filesystem(path: str) -> fsspec.AbstractFileSystem:
    if buckets.is_bucket(path):
        return buckets.filesystem(path)
    try:
        return fsspec.core.url_to_fs(path)[0]
    except (ImportError, ValueError):
        do = "Copy it to one of them."
        raise UserError("Path", path, "a folder of this machine, or a bucket's, gs://...", do) from None


def join(path: str, *parts: str) -> str:
    """The path of something below `path`."""
    return posixpath.join(path, *parts) if is_remote(path) else os.path.join(path, *parts)  # noqa: PTH118


def absolute(path: str) -> str:
    """The path independent of the working directory."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)  # noqa: PTH100


def _info(path: str) -> dict[str, Any] | None:
    """What a store says of a file or folder; None when there is none. Raises UserError when its bucket is not there."""
    with contextlib.suppress(FileNotFoundError), buckets.naming(path):
        return cast("dict[str, Any]", _filesystem(path).info(path))
    return None


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`."""
    if not is_remote(path):
        return os.path.exists(path)  # noqa: PTH110 - of text that is no name at all, too long for one, it says no
    return _info(path) is not None


def is_dir(path: str) -> bool:
    """Whether `path` is a folder."""
    if not is_remote(path):
        return Path(path).is_dir()
    info = _info(path)
    return info is not None and info["type"] == "directory"


def make_dir(path: str) -> None:
    """Makes the folder `path` and its parents where they do not exist. In a bucket every folder is there."""
    if buckets.is_bucket(path):
        return
    try:
        _filesystem(path).makedirs(path, exist_ok=True)
    except FileExistsError:
        check_writable(path)  # which says that it is a file
        raise


def check_writable(path: str) -> None:
    """Raises UserError where the folder `path` cannot be written to or, where there is none, be made.

    Because it is a file or below one, because we must not, or because there is no such bucket.
    """
    if not is_remote(path):
        place = Path(path).absolute()
        try:
            there = next(folder for folder in (place, *place.parents) if folder.exists() or folder.is_symlink())
            if not there.is_dir():
                got = "a file" if there == place else f"a folder below the file {there}"
                raise UserError(f"Writing to {path}", got, "a folder", "Choose another place, or remove the file.")
            is_refused = not os.access(there, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE_IDS)
        except PermissionError:  # of a folder above it
            is_refused = True
        if is_refused:
            do = "Change its permissions, or choose another folder."
            raise UserError(f"Writing to {path}", "permission denied", "a folder that may be written to", do)
        return
    if not buckets.is_bucket(path):
        return
    probe = join(path, f".writable-{uuid.uuid4().hex}")
    write_text(probe, "")
    remove(probe)


def check_room(folder: str, num_bytes: int) -> None:
    """Raises UserError when the local disk of `folder`, which exists, has less free space than that."""
    if not is_remote(folder) and (free := shutil.disk_usage(folder).free) < num_bytes:
        raise UserError(
            f"Disk of {folder}", f"{free / 1e6:.1f} MB of free space", f"at least {num_bytes / 1e6:.1f} MB",
            "Make room, then run the same command again.",
        )  # fmt: skip


def list_dir(path: str) -> list[str]:
    """The sorted names (not paths) in the folder `path`; empty when it does not exist."""
    if is_remote(path):
        return sorted(states_in(path))
    return sorted(entry.name for entry in Path(path).iterdir()) if Path(path).is_dir() else []


def states_in(path: str) -> dict[str, tuple[int, int]]:
    """The names in a folder of a bucket with the `file_state` of each, at one request per thousand; empty as above."""
    return {entry.name: entry.state for entry in entries_in(path)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in a bucket, with the attributes of os.DirEntry, and its `file_state`."""

    name: str
    path: str
    is_folder: bool
    state: tuple[int, int]

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.is_folder


def entries_in(path: str) -> list[Entry]:
    """What is in a folder of a bucket, as `states_in`."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), buckets.naming(path):
        found = _filesystem(path).ls(path, detail=True)
    full = path.split("://", 1)[1].strip("/")
    below = {entry["name"].strip("/"): entry for entry in found}
    return [
        Entry(name := full_name.rpartition("/")[2], join(path, name), entry["type"] == "directory", _state(entry))
        for full_name, entry in below.items()
        if full_name != full
    ]


def files_below(path: str) -> list[str]:
    """The sorted paths of the files in the folder `path` and in the folders below it, beginning as `path` does."""
    with buckets.naming(path):
        found = sorted(map(str, _filesystem(path).find(path)))
    start = len(fsspec.core.strip_protocol(path).rstrip("/")) + 1
    return [join(path, file[start:]) for file in found]


def open_read(path: str) -> IO[bytes]:
    """Opens a file for reading bytes; one in a bucket is read a few megabytes at a time."""
    if is_remote(path):
        return cast("IO[bytes]", io.BufferedReader(_RemoteFile(path), BLOCK))
    return Path(path).open("rb")


class _RemoteFile(io.RawIOBase):
    """A file in a bucket, read where it is asked for."""

    def __init__(self, path: str) -> None:
        self._path, (self._size, _), self._position = path, file_state(path), 0

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
    """The bytes [start, stop) of a file; fewer where it ends before. Many of a bucket come in parallel."""
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
        found = iter(_filesystem(paths[0]).cat_ranges(paths, starts, stops, on_error="raise"))
    return [next(found) if stop > start else b"" for _, start, stop in ranges]


def file_state(path: str) -> tuple[int, int]:
    """(size in bytes, version) of a file: whoever changes its content changes one of them.

    The version is the local modification time in ns, or a digest of what the bucket says of the object.
    """
    if not is_remote(path):
        stat = os.stat(path)  # noqa: PTH116  # a million Path objects take seconds
        return stat.st_size, stat.st_mtime_ns
    with buckets.naming(path):
        return _state(_filesystem(path).info(path))


def _state(info: dict[str, Any]) -> tuple[int, int]:
    marks = repr([info.get(key) for key in ("generation", "etag", "ETag", "updated", "mtime", "created")])
    return int(info["size"] or 0), int.from_bytes(hashlib.sha256(marks.encode()).digest()[:7], "big")


def remove(path: str) -> None:
    """Deletes a file, where there is one."""
    with contextlib.suppress(FileNotFoundError), buckets.naming(path, is_write=True):
        _filesystem(path).rm_file(path)


def remove_dir(path: str) -> None:
    """Deletes a folder with all that is in it, where there is one."""
    with contextlib.suppress(FileNotFoundError), buckets.naming(path, is_write=True):
        _filesystem(path).rm(path, recursive=True)


def read_bytes(path: str) -> bytes:
    """The whole of a small file, in one request."""
    if not is_remote(path):
        return Path(path).read_bytes()
    with buckets.naming(path):
        return cast("bytes", _filesystem(path).cat_file(path))


def read_text(path: str) -> str:
    """The whole of a UTF-8 text file."""
    return read_bytes(path).decode()


def read_names(path: str) -> list[str]:
    """The names in a text file, one on a line. Raises UserError when it is no UTF-8."""
    try:
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise UserError(
            "Names", f"{path}, which is not text", "UTF-8, a name on each line", "Check the path."
        ) from None


@contextlib.contextmanager
def naming_full(path: str) -> Iterator[None]:
    """Names `path` in the OSError of a disk that is full, which the system does not."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = path
        raise


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears under its name only when whole: written aside, synced, renamed.

    When the block raises, nothing is left at `path` that was not there before.
    """
    if is_remote(path):  # uploaded when whole: not every store keeps back what was sent of an upload that broke off
        with tempfile.NamedTemporaryFile() as whole:
            yield cast("IO[bytes]", whole)
            whole.flush()
            with buckets.naming(path, is_write=True):
                _filesystem(path).put_file(whole.name, path)
        return
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    descriptor, aside = tempfile.mkstemp(prefix=f".{name}.", suffix=".partial", dir=folder)
    try:
        with naming_full(path), os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _open_to_others(aside, 0o666)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def folder_aside(parent: str, name: str) -> Iterator[str]:
    """A new local folder `parent/.<name>.<random>.partial`, to be renamed when whole; gone when the block raises.

    Also deletes those of this name that were left by programs that were killed. The parent is made where it is missing,
    and gone too then.
    """
    prefix, suffix = f".{name}.", ".partial"
    with _made(parent), contextlib.ExitStack() as stack:
        with _lock(parent, fcntl.LOCK_EX):  # nobody takes a new folder for one that was left
            for left in list_dir(parent):
                if left.startswith(prefix) and left.endswith(suffix):
                    _delete_unless_locked(join(parent, left))
            aside = tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=parent)
            stack.enter_context(_lock(aside, fcntl.LOCK_EX))
        _open_to_others(aside, 0o777)
        try:
            yield aside
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


@contextlib.contextmanager
def _made(folder: str) -> Iterator[None]:
    """Makes a local folder and its parents; when the block raises, those that were missing and are empty go again."""
    place = Path(folder).absolute()
    missing = [path for path in (place, *place.parents) if not path.exists()]
    make_dir(folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def _open_to_others(path: str, mode: int) -> None:
    """Gives what `tempfile` made for this user alone the mode that `open` or `mkdir` would have given it."""
    umask = os.umask(0)
    os.umask(umask)
    Path(path).chmod(mode & ~umask)


@contextlib.contextmanager
def _lock(folder: str, operation: int) -> Iterator[bool]:
    """Whether a folder could be locked, till the end of the block or of the process. Some file systems cannot."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
        is_locked = True
    except OSError:
        is_locked = False
    try:
        yield is_locked
    finally:
        os.close(descriptor)


def _delete_unless_locked(folder: str) -> None:
    with contextlib.suppress(OSError), _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_left:
        if is_left:
            shutil.rmtree(folder)


def move(path: str, target: str) -> None:
    """Renames a file or a folder."""
    with buckets.naming(path, is_write=True):
        _filesystem(path).mv(path, target, recursive=True)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 text file whole or not at all."""
    with write_whole(path) as file:
        file.write(text.encode())
