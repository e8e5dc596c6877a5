"""Where tables are printed."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 1000


def make_console(wide: int = _WIDE) -> "Console":
    """The terminal; a file or a pipe in its place is `wide` columns wide, by default enough that no name is cut."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else wide, highlight=False)
