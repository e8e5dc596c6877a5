"""Where tables are printed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console(wide: int | None = None) -> "Console":
    """The terminal; a file or a pipe in its place is `wide` columns wide, by default enough that no name is cut."""
    from resnet_tpu.system.terminal import WIDE, OutputConsole  # rich takes a while to load

    return OutputConsole(wide=wide or WIDE)
