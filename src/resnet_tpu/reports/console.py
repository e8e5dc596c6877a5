"""The console on which tables are printed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console(wide: int | None = None) -> "Console":
    """A console for stdout: the terminal, or a file or pipe of `wide` columns (default: enough for any name)."""
    from resnet_tpu.system.terminal import WIDE, OutputConsole  # rich takes a while to load

    return OutputConsole(wide=wide or WIDE)
