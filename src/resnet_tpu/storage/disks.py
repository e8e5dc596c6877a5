"""What the OSErrors of a disk mean: it is full, it is broken, or it cannot be reached."""

import contextlib
import errno
from collections.abc import Iterator

from resnet_tpu.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Codes of a disk without room: for anything, for this user, in one file."""

UNREACHABLE = (errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV)
"""Codes of a disk that was taken away, or whose network is down. No file on it is known to be damaged."""

FAILING = (errno.EIO, *UNREACHABLE)
"""The same, and the code of a disk that is broken, perhaps at this one file."""

CONNECT = "Check the disk and the connection to it, then run the same command again."
"""What to do about these."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Sets `filename` to `path` in the OSError of a full or failing disk, where the system gave none."""
    try:
        yield
    except OSError as error:
        if error.errno in (*FULL, *FAILING) and error.filename is None:
            error.filename = path
        raise


@contextlib.contextmanager
def reaching(path: str) -> Iterator[None]:
    """Raises UserError where the disk of `path` cannot be reached: whoever skips damaged files must not skip those."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        raise UserError(f"Path {path}", error.strerror, "a disk that can be reached", CONNECT) from None
