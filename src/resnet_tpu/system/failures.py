"""Failures of the machine that reach a program as errors of Python or of libraries, in words for the user."""

import errno
import traceback
from pathlib import Path

from resnet_tpu.errors import UserError, first_line, is_lack_of_memory
from resnet_tpu.storage import buckets, disks

_REFUSING = (
    *disks.FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
)  # fmt: skip


def as_user_error(error: Exception) -> UserError | None:
    """The UserError for a low-level error that the user can fix, such as a full disk; None for our own bugs."""
    return (
        buckets.storage_error(error)  # first, as its clients raise OSErrors too
        or _file_error(error)
        or _no_temporary_folder(error)
        or _out_of_memory(error)
        or _no_device(error)
    )


def _file_error(error: Exception) -> UserError | None:
    """The error for a file or a disk that refuses or fails, or a current folder that was deleted; None for others."""
    if isinstance(error, FileNotFoundError) and _is_cwd_deleted():
        return UserError("Current folder", "none: it was deleted", "an existing folder", "Change to another.")
    if isinstance(error, OSError) and error.errno in disks.FAILING:
        do = disks.CONNECT
    elif isinstance(error, OSError) and error.errno in _REFUSING:
        do = "Check the path, its permissions and the free space."
    else:
        return None
    return UserError(str(error.filename or "Files"), error.strerror, "files that can be read and written", do)


def _is_cwd_deleted() -> bool:
    """Whether the current folder was deleted."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _no_temporary_folder(error: Exception) -> UserError | None:
    """The error if no folder can hold temporary files, as in a read-only container; None for other errors."""
    if "No usable temporary directory" not in f"{error.__cause__ or error}":  # Matplotlib raises an error of its own
        return None
    do = "Set TMPDIR to a folder that can be written to."
    return UserError("Temporary files", "no folder that can be written to", "one, as /tmp usually is", do)


def _out_of_memory(error: Exception) -> UserError | None:
    """The error for a device or a machine that has too little memory; None for others."""
    if not is_lack_of_memory(error):
        return None
    do = "Lower train_batch_size or eval_batch_size (max_batch_size of a server), or raise gradient_accumulation_steps."
    if isinstance(error, MemoryError | OSError):
        return UserError("Memory", first_line(error) if str(error) else "none left", "room for the work", do)
    return UserError("Memory of the device", first_line(error), "room for a step", do)


def _no_device(error: Exception) -> UserError | None:
    """The error for devices that JAX cannot use: another program holds them, or there are none; None for others."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    if not isinstance(error, RuntimeError | AssertionError) or not any("xla_bridge" in one.filename for one in frames):
        return None
    do = "Stop the program that holds the device, correct or unset JAX_PLATFORMS, or see `resnet-tpu doctor`."
    said = first_line(error) if str(error) else "no device of the kind that JAX_PLATFORMS asks for"
    return UserError("Devices", said, "devices that JAX can use", do)
