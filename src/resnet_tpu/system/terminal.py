"""Consoles for stdout and stderr, and the progress line that long work shows on a terminal."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

WIDE = 1000
"""Default width of a file or a pipe, in columns: enough that nothing is wrapped and no name is cut."""


class OutputConsole(Console):
    """stdout or stderr: a terminal with its own width, or a file or a pipe of `wide` columns."""

    def __init__(self, *, stderr: bool = False, wide: int = WIDE) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(stderr=stderr, width=None if stream.isatty() else wide, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, as `print` does when the reader of a pipe is gone; rich would exit with code 1."""
        raise BrokenPipeError


def live_line(*more: ProgressColumn, console: Console, is_shown: bool = True) -> Progress:
    """A progress line on a terminal, removed when the work ends: the task, its progress, the time left, and `more`.

    Nothing is shown elsewhere: a notebook would need a widget, and readers of a file do not want every state of the
    line. By itself, rich would show it there if FORCE_COLOR is set, as CI and shell cells do.
    """
    is_terminal = console.is_terminal and console.file.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), *more)
    return Progress(*columns, console=console, transient=True, disable=not (is_terminal and is_shown))
