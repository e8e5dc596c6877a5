"""Files on the local disk and in buckets behind one interface. A path is a string, local or `gs://...`."""

import contextlib
import hashlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import fsspec

from resnet_tpu.errors import missing_extra


def cache_dir() -> str:
    """The folder of this user for what can be made or fetched again."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"), "resnet_tpu")  # noqa: PTH118


def is_remote(path: str) -> bool:
    """Whether `path` is in a bucket rather than on this machine."""
    return "://" in path


def _filesystem(path: str) -> fsspec.AbstractFileSystem:
    try:
        return fsspec.core.url_to_fs(path)[0]
    except ImportError:
        protocol = path.split("://")[0]
        raise missing_extra(f"Path {path}", {"gs": "gcsfs"}.get(protocol, protocol), "gcp") from None


def join(path: str, *parts: str) -> str:
    """The path of something below `path`."""
    return posixpath.join(path, *parts) if is_remote(path) else os.path.join(path, *parts)  # noqa: PTH118


def absolute(path: str) -> str:
    """The path independent of the working directory."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)  # noqa: PTH100


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`."""
    return _filesystem(path).exists(path)


def is_dir(path: str) -> bool:
    """Whether `path` is a folder."""
    return _filesystem(path).isdir(path)


def make_dir(path: str) -> None:
    """Makes the folder `path` and its parents where they do not exist."""
    _filesystem(path).makedirs(path, exist_ok=True)


def list_dir(path: str) -> list[str]:
    """The sorted names (not paths) in the folder `path`; empty when it does not exist."""
    filesystem = _filesystem(path)
    if not filesystem.isdir(path):
        return []
    return sorted(posixpath.basename(name.rstrip("/")) for name in filesystem.ls(path, detail=False))


def glob(pattern: str) -> list[str]:
    """The sorted paths that match `pattern`."""
    filesystem = _filesystem(pattern)
    found = sorted(str(path) for path in filesystem.glob(pattern))
    return [str(filesystem.unstrip_protocol(path)) for path in found] if is_remote(pattern) else found


def open_read(path: str) -> IO[bytes]:
    """Opens a file for reading bytes."""
    return cast("IO[bytes]", _filesystem(path).open(path, "rb")) if is_remote(path) else Path(path).open("rb")


def read_range(path: str, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of a file; fewer where it ends before."""
    if is_remote(path):
        return cast("bytes", _filesystem(path).cat_file(path, start, stop))
    with Path(path).open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def file_state(path: str) -> tuple[int, int]:
    """(size in bytes, version) of a file: whoever changes its content changes one of them.

    The version is the local modification time in ns, or a digest of what the bucket says of the object.
    """
    if not is_remote(path):
        stat = Path(path).stat()
        return stat.st_size, stat.st_mtime_ns
    info = _filesystem(path).info(path)
    marks = repr([info.get(key) for key in ("generation", "etag", "ETag", "updated", "mtime", "created")])
    return int(info["size"]), int.from_bytes(hashlib.sha256(marks.encode()).digest()[:7], "big")


def remove(path: str) -> None:
    """Deletes a file, where there is one."""
    with contextlib.suppress(FileNotFoundError):
        _filesystem(path).rm_file(path)


def read_text(path: str) -> str:
    """The whole of a UTF-8 text file."""
    with open_read(path) as file:
        return file.read().decode()


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears under its name only when whole: written aside, synced, renamed.

    When the block raises, nothing is left at `path` that was not there before.
    """
    if is_remote(path):  # uploaded when whole: not every store keeps back what was sent of an upload that broke off
        with tempfile.TemporaryFile() as aside:
            yield aside
            aside.seek(0)
            with _filesystem(path).open(path, "wb") as remote:
                shutil.copyfileobj(aside, cast("IO[bytes]", remote))
        return
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    descriptor, aside = tempfile.mkstemp(prefix=f".{name}.", suffix=".partial", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(aside).chmod(0o666 & ~umask)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def move(path: str, target: str) -> None:
    """Renames a file or a folder."""
    _filesystem(path).mv(path, target, recursive=True)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 text file whole or not at all."""
    with write_whole(path) as file:
        file.write(text.encode())
