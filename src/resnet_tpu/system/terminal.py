"""What long work shows on a terminal while it lasts."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def live_line(*more: ProgressColumn, console: Console, is_shown: bool = True) -> Progress:
    """A progress line on a terminal, gone when the work has ended: what, how far, the time left, and `more`.

    Nothing is shown elsewhere: not in a notebook, where it needs a widget, nor in a file, whose readers do not want
    every state of it. rich alone would show it there if the environment said so: CI and shell cells set FORCE_COLOR.
    """
    is_terminal = console.is_terminal and console.file.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), *more)
    return Progress(*columns, console=console, transient=True, disable=not (is_terminal and is_shown))
