"""Writes files and folders, local or in a bucket, that appear whole or not at all."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from resnet_tpu.errors import UserError
from resnet_tpu.storage import buckets, disks
from resnet_tpu.storage.files import exists, generation_of, is_dir, is_stream, list_dir, read_bytes, remove
from resnet_tpu.storage.paths import filesystem, is_remote, join, parent_of

_EFFECTIVE_IDS = os.access in os.supports_effective_ids


def make_dir(path: str) -> None:
    """Makes the folder `path` and its parents where they do not exist. In a bucket every folder exists."""
    if buckets.is_bucket(path):
        return
    if is_remote(path):
        filesystem(path).makedirs(path, exist_ok=True)
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        check_writable(path)  # its error says that `path` is a file
        raise


def check_writable(path: str, instead: str = "choose another folder") -> None:
    """Raises UserError when the folder `path` cannot be written to or, if it does not exist, cannot be made.

    The reason is a file at or above `path`, missing permission, or a bucket that does not exist.
    instead: the advice for a missing permission, besides granting it.
    """
    if not is_remote(path):
        absolute = Path(path).absolute()
        try:
            there = next(folder for folder in (absolute, *absolute.parents) if folder.exists() or folder.is_symlink())
            if not there.is_dir():
                got = "a file" if there == absolute else f"a folder below the file {there}"
                raise UserError(f"Writing to {path}", got, "a folder", "Choose another place, or remove the file.")
            is_refused = not os.access(there, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE_IDS)
        except PermissionError:  # of a folder above it
            is_refused = True
        if is_refused:
            do = f"Change its permissions, or {instead}."
            raise UserError(f"Writing to {path}", "permission denied", "a folder that may be written to", do)
        return
    if not buckets.is_bucket(path):
        return
    probe = join(path, f".writable-{uuid.uuid4().hex}")
    write_text(probe, "")
    remove(probe)


def check_file(path: str) -> None:
    """Raises UserError when the file `path` cannot be written: it is a folder or a link into a folder that is missing,
    or `check_writable` says so.

    For files that are written at the end of long work. An empty path means no file.
    """
    if not path:
        return
    if path.endswith("/") or is_dir(path):
        raise UserError(f"Writing {path}", "a folder", "a file", "Add the name of a file.")
    if not is_remote(path) and Path(path).is_symlink() and not is_stream(path):
        folder = parent_of(os.path.realpath(path))  # where `write_whole` writes
        if not is_dir(folder):
            got = f"a link into {folder}, which is no folder"
            raise UserError(f"Writing {path}", got, "a file or a link to one", "Make that folder, or remove the link.")
        check_writable(folder)
    elif not is_stream(path):
        check_writable(parent_of(path))
    elif not os.access(path, os.W_OK, effective_ids=_EFFECTIVE_IDS):
        raise UserError(f"Writing {path}", "permission denied", "a file that may be written", "Choose another.")


def check_room(folder: str, num_bytes: int) -> None:
    """Raises UserError when the local disk of `folder`, which must exist, has less free space than `num_bytes`."""
    if is_remote(folder):
        return
    size, _, free = shutil.disk_usage(folder)
    if size and free < num_bytes:  # some file systems in user space report 0 for everything
        raise UserError(
            f"Disk of {folder}", f"{free / 1e6:.3f} MB of free space", f"at least {num_bytes / 1e6:.3f} MB",
            "Make room, then run the same command again.",
        )  # fmt: skip


@contextlib.contextmanager
def write_whole(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears under its name only when whole: written aside, synced, renamed.

    If the block raises, `path` stays as it was. If `path` is a link, its target is replaced. If it is a device such as
    /dev/null, or a pipe, it is written to directly.
    """
    if is_remote(path):  # uploaded when whole: not every store discards the part of an upload that broke off
        with disks.naming(tempfile.gettempdir()), tempfile.NamedTemporaryFile() as whole:
            yield cast("IO[bytes]", whole)
            whole.flush()
            with buckets.naming(path, is_write=True):
                filesystem(path).put_file(whole.name, path)
        return
    if is_stream(path):
        with Path(path).open("wb") as stream:
            yield stream
        return
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    aside = join(folder, f".{name}.{uuid.uuid4().hex}.partial")
    try:
        with disks.naming(path), Path(aside).open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def folder_aside(parent: str, name: str) -> Iterator[str]:
    """A new local folder `parent/.<name>.<random>.partial`, to be renamed when whole; deleted when the block raises.

    Also deletes folders of this name that killed programs left behind. Creates a missing `parent`, and deletes it again
    when the block raises.
    """
    prefix, suffix = f".{name}.", ".partial"
    with _make_folders(parent), contextlib.ExitStack() as stack:
        with _lock(parent, fcntl.LOCK_EX):  # so that no process takes a new folder for a leftover
            for left in list_dir(parent):
                if left.startswith(prefix) and left.endswith(suffix):
                    _delete_unless_locked(join(parent, left))
            aside = join(parent, f"{prefix}{uuid.uuid4().hex}{suffix}")
            Path(aside).mkdir()
            stack.enter_context(_lock(aside, fcntl.LOCK_EX))
        try:
            yield aside
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


@contextlib.contextmanager
def reserved(folder: str) -> Iterator[None]:
    """Reserves a local folder, made if missing, for this process alone, until the block or the process ends.

    Raises UserError while another process has it. Buckets and some file systems have no locks: there it does nothing.
    """
    if is_remote(folder):
        yield
        return
    check_writable(folder)
    with _make_folders(folder), _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_locked:
        if is_locked is False:
            do = "Wait until that one ends, or choose another folder."
            raise UserError(f"Writing to {folder}", "another process that writes there", "one at a time", do)
        yield


@contextlib.contextmanager
def _make_folders(folder: str) -> Iterator[None]:
    """Makes a local folder and its parents; when the block raises, those that it made are deleted if empty."""
    absolute = Path(folder).absolute()
    missing = [path for path in (absolute, *absolute.parents) if not path.exists()]
    make_dir(folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


@contextlib.contextmanager
def _lock(folder: str, operation: int) -> Iterator[bool | None]:
    """Locks a folder until the block or the process ends. Yields whether it could; None if folders have no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
        is_locked = True
    except BlockingIOError:
        is_locked = False
    except OSError:
        is_locked = None
    try:
        yield is_locked
    finally:
        os.close(descriptor)


def _delete_unless_locked(folder: str) -> None:
    with contextlib.suppress(OSError), _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_left:
        if is_left:
            shutil.rmtree(folder)


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file whole or not at all."""
    with write_whole(path) as file:
        file.write(data)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 text file whole or not at all; bytes that are not text, as in file names, are escaped."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def append_text(path: str, text: str) -> None:
    """Adds text to the end of a file, which is made if missing. Text that others add meanwhile is kept.

    Objects in a bucket cannot grow: there the whole file is written again, from its newest content.
    """
    data = text.encode()
    if not is_remote(path):
        with disks.naming(path), Path(path).open("ab") as file:
            file.write(data)
        return
    generation = generation_of(path)
    before = read_bytes(path) if exists(path) else b""
    if not buckets.is_bucket(path):
        write_text(path, (before + data).decode())
        return
    while not buckets.write_unless_changed(path, before + data, generation):
        generation, before = generation_of(path), read_bytes(path)
        if data in before:  # it was written, and only the answer was lost
            return
