"""Runs a program of this package: with its log on stderr, and an exit code that says how it ended."""

import atexit
import contextlib
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from resnet_tpu.errors import UserError, visible
from resnet_tpu.system import signals
from resnet_tpu.system.failures import as_user_error

_EXIT_BROKEN_PIPE = 128 + 13
_LAST_WORDS = {
    signals.exit_code_after(signal.SIGTERM): "Terminated.",
    signals.exit_code_after(signal.SIGHUP): "Hung up.",
}
"""What to print at the end, by exit code."""
_SOON_SECS = 0.05


def run_program(work: Callable[[Sequence[str]], object], arguments: Sequence[str] | None = None) -> int:
    """Runs a program and returns its exit code; an error that the user can fix becomes a message on stderr.

    0: done. 2: a UserError. 3: another of several processes was lost. 130, 143, 129: ended by Ctrl-C, SIGTERM, SIGHUP,
    all after cleaning up. Our own bugs pass through: Python shows the traceback and exits with 1.
    Without `arguments`, those of the process are used. The process must then exit with the returned code: signals no
    longer change it.
    """
    is_process = arguments is None
    if is_process:
        _open_missing_streams()
    if is_process and isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # fails if stdout has become another kind of file since Python started
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: unprintable text is not an error
    code = 0
    try:
        with _log_to_stderr(), _terminating():
            try:
                work(sys.argv[1:] if arguments is None else arguments)
            finally:
                sys.stdout.flush()
    except BaseException as error:
        explained = _explain(error)
        if explained is None:
            raise
        code = explained
    if is_process:
        _end_at_once(code)
    return code


def _open_missing_streams() -> None:
    """Opens /dev/null for each standard stream that the program was started without, as with `>&-`.

    Otherwise C libraries would take the next file that is opened for stdout, and printing would fail.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 (open until the end)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _explain(error: BaseException) -> int | None:
    """Says on stderr what ended the work, and returns the exit code; None for our own bugs and Python's own exits."""
    if isinstance(error, UserError):
        _print_to_stderr(error)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        _print_to_stderr("Interrupted.")
        return 130
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in _LAST_WORDS:
        _print_to_stderr(_LAST_WORDS[error.code])
        return error.code
    if isinstance(error, BrokenPipeError):  # the reader of our output has seen enough: `resnet-tpu results ... | head`
        _drop_output()
        return _EXIT_BROKEN_PIPE
    if isinstance(error, Exception) and (what := as_user_error(error)):
        _print_to_stderr(what)
        _drop_output()
        return 2
    return None


def _end_at_once(code: int) -> None:
    """From now on a signal ends the process at once with `code`, with which Python would exit a second later anyway."""
    for number in signals.ending():
        signal.signal(number, lambda *_: os._exit(code))
        # Python drops handlers before it frees its modules, which takes most of that second
        atexit.register(signal.signal, number, signal.SIG_IGN)


def _print_to_stderr(what: object) -> None:
    with contextlib.suppress(OSError):  # stderr may be on a full disk: the exit code remains
        print(what, file=sys.stderr)


def _drop_output() -> None:
    """Drops output that cannot be written to stdout: Python would try again at exit, and report an error."""
    try:
        sys.stdout.flush()
    except OSError:
        signals.discard(sys.stdout.fileno())


@contextlib.contextmanager
def _terminating() -> Iterator[None]:
    """In the block, a signal raises SystemExit: ending the program at once would leave half-written files."""

    def leave(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            signals.drop_lost_terminal()
        raise SystemExit(signals.exit_code_after(number))

    if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
        yield
        return
    if not isinstance(sys.unraisablehook, _SignalAgain):
        sys.unraisablehook = _SignalAgain(sys.unraisablehook)
    before = {number: signal.signal(number, leave) for number in signals.ending() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _SignalAgain:
    """A `sys.unraisablehook` that resends a signal whose exception was raised where Python only prints exceptions.

    Python does so in callbacks of the garbage collector, of which JAX has one: the signal would be lost.
    """

    def __init__(self, otherwise: "Callable[[sys.UnraisableHookArgs], object]") -> None:
        self._otherwise = otherwise

    def __call__(self, found: "sys.UnraisableHookArgs") -> None:
        error = found.exc_value
        if isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT
        elif isinstance(error, SystemExit) and error.code in _LAST_WORDS:
            number = error.code - 128
        else:
            self._otherwise(found)
            return
        delay = _SOON_SECS  # at once, it would be raised in here
        while True:
            try:
                threading.Timer(delay, os.kill, (os.getpid(), number)).start()
                return
            except (KeyboardInterrupt, SystemExit):  # it was raised in here: a busy machine takes longer
                delay += 0.05


class _StderrHandler(logging.Handler):
    """Writes to whatever sys.stderr is at the time: a progress bar replaces it, to stay below the log lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(visible(self.format(record)), file=sys.stderr, flush=True)
        except BrokenPipeError:  # the reader of the log is gone; a log line must not end the work, which may be saving
            signals.discard(2)
        except OSError:  # a closed terminal; or a full disk, which costs log lines but not the work
            signals.drop_lost_terminal()


@contextlib.contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Shows this package's own log lines, but only warnings of other packages, as Python does.

    Hides Orbax's log, as Orbax logs every error with its traceback and also raises it. Hides Pillow's warnings of odd
    files: what matters is reported where the file is named.
    """
    warnings.filterwarnings("ignore", module="PIL")
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
