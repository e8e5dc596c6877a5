"""What is printed to stdout and stderr, and what long work shows on a terminal while it lasts."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

WIDE = 1000
"""Columns of a file or a pipe, by default: enough that nothing is wrapped and no name is cut."""


class OutputConsole(Console):
    """stdout or stderr: the terminal, or a file or a pipe in its place, which is `wide` columns wide."""

    def __init__(self, *, stderr: bool = False, wide: int = WIDE) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(stderr=stderr, width=None if stream.isatty() else wide, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, as `print` does when the reader of a pipe is gone; rich would exit with code 1."""
        raise BrokenPipeError


def live_line(*more: ProgressColumn, console: Console, is_shown: bool = True) -> Progress:
    """A progress line on a terminal, gone when the work has ended: what, how far, the time left, and `more`.

    Nothing is shown elsewhere: not in a notebook, where it needs a widget, nor in a file, whose readers do not want
    every state of it. rich alone would show it there if the environment said so: CI and shell cells set FORCE_COLOR.
    """
    is_terminal = console.is_terminal and console.file.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), *more)
    return Progress(*columns, console=console, transient=True, disable=not (is_terminal and is_shown))
