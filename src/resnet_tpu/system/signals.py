"""The signals that ask a program to end: Ctrl-C, SIGTERM, and SIGHUP, which comes when its terminal is closed."""

import errno
import os
import signal
import termios

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending() -> list[signal.Signals]:
    """The signals in ENDING except those that the process was started to ignore, as under `nohup` or a shell's `&`."""
    return [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]


def exit_code_after(number: int) -> int:
    """The exit code of a program that a signal ended, by the convention of shells."""
    return 128 + number


def drop_lost_terminal() -> None:
    """From now on discards output to stdout or stderr if it goes to a terminal that has been closed.

    Otherwise each line would raise OSError, in a program that still has to save its work.
    """
    for descriptor in (1, 2):
        if _is_lost(descriptor):
            discard(descriptor)


def discard(descriptor: int) -> None:
    """From now on discards output to this descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _is_lost(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:  # ENOTTY: a file or a pipe
        return error.args[0] == errno.EIO
    return False
