"""What the OSErrors of a disk mean: it is full, it is broken, or it cannot be reached."""

import contextlib
import errno
from collections.abc import Iterator

from resnet_tpu.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error codes of a disk that has no room left: at all, for this user, or in one file."""

UNREACHABLE = (errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV)
"""Error codes of a disk that was removed, or whose network is down. They do not mean that a file is damaged."""

FAILING = (errno.EIO, *UNREACHABLE)
"""The codes in UNREACHABLE, and that of a disk that is broken, perhaps only at this file."""

CONNECT = "Check the disk and the connection to it, then run the same command again."
"""Advice for the errors in FAILING."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Sets `filename` to `path` in the OSError of a full or failing disk, if the system gave none."""
    try:
        yield
    except OSError as error:
        if error.errno in (*FULL, *FAILING) and error.filename is None:
            error.filename = path
        raise


@contextlib.contextmanager
def reaching(path: str) -> Iterator[None]:
    """Raises UserError if the disk of `path` cannot be reached, so that code skipping damaged files fails instead."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        raise UserError(f"Path {path}", error.strerror, "a disk that can be reached", CONNECT) from None
