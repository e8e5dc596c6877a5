"""How a program of this package runs: its log on stderr, and an exit code that says how it ended."""

import contextlib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from resnet_tpu import buckets
from resnet_tpu.errors import UserError

_NOT_OUR_BUG = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG,
)  # fmt: skip
_EXIT_BROKEN_PIPE = 128 + 13

EXIT_TERMINATED = 128 + signal.SIGTERM
"""The exit code of a program that SIGTERM ended."""


def exit_code(work: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> int:
    """Does the work and returns 0; 2 and a message on stderr for what the user can mend; 130 when interrupted, 143
    after SIGTERM, which leaves as little behind as Ctrl-C does.

    3 when another of several processes was lost. Our own bugs pass through: Python shows the traceback and exits
    with 1.
    """
    try:
        with _log_to_stderr(), _terminating():
            try:
                work(arguments)
            finally:
                sys.stdout.flush()
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except SystemExit as error:
        if error.code != EXIT_TERMINATED:
            raise
        print("Terminated.", file=sys.stderr)
        return EXIT_TERMINATED
    except BrokenPipeError:  # the reader of our output has seen enough: `resnet-tpu results ... | head`
        _drop_output()
        return _EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _NOT_OUR_BUG:
            raise
        do = "Check the path, its permissions and the free space."
        print(UserError(str(error.filename or "Files"), error.strerror, "to read and write there", do), file=sys.stderr)
        _drop_output()
        return 2
    except Exception as error:
        if named := buckets.named(error):  # of a request that was made far from where its path is known
            print(named, file=sys.stderr)
            return 2
        raise
    return 0


def _drop_output() -> None:
    """What cannot be written to stdout is not tried again, with an error of Python's, when the program ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _terminating() -> Iterator[None]:
    """Meanwhile SIGTERM raises, where it would end the program at once, with half-written files left behind."""

    def leave(*_: object) -> None:
        raise SystemExit(EXIT_TERMINATED)

    if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _StderrHandler(logging.Handler):
    """Writes to what sys.stderr is at the time: a progress bar puts itself there, to keep below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextlib.contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Shows this package's own log lines, and of other packages only warnings, as Python does.

    Nothing of Orbax's: it logs every error with its traceback, and raises it as well.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logger, handler = logging.getLogger("resnet_tpu"), _StderrHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # libraries add a handler to the root that would show every line again
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
