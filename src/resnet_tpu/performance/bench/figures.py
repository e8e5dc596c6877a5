"""Shows figures: as tables on a terminal, in Markdown and in CSV, and as bars in a picture."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.reports.console import make_console
from resnet_tpu.reports.csv_text import to_csv

Format = Literal["table", "markdown", "csv"]


@dataclass(frozen=True)
class Grid:
    """A table of text; its first column names the rows."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """A named value, the text next to it, and whether it is highlighted."""

    name: str
    value: float
    text: str
    is_ours: bool


def show(grid: Grid, output_format: Format) -> None:
    """Prints the grid; CSV omits its title and notes."""
    if output_format == "csv":
        sys.stdout.write(to_csv(grid.header, grid.rows))
    elif output_format == "markdown":
        print(markdown(grid.header, grid.rows, grid.notes))
    else:
        _show_table(grid)


def markdown(header: Sequence[str], rows: Iterable[Iterable[object]], notes: Sequence[str] = ()) -> str:
    """A Markdown table with its notes below."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


def _show_table(grid: Grid) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(grid.title), title_justify="left")
    for number, name in enumerate(grid.header):
        table.add_column(escape(name), justify="right" if number else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(escape, row))
    console = make_console(120)
    console.print(table)
    for note in grid.notes:
        console.print(note, markup=False)


def write_bars(path: str, title: str, bars: Sequence[Bar], unit: str) -> None:
    """Writes a PNG of horizontal bars, the first on top, with highlighted ones in another colour."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from resnet_tpu.reports.style import COLORS, GRAY, STYLE, add_title, write_png

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.4 + 0.42 * len(bars)), layout="constrained")
        axes = figure.subplots()
        drawn = axes.barh(
            range(len(bars)), [bar.value for bar in bars], color=[COLORS[0] if bar.is_ours else GRAY for bar in bars]
        )
        axes.bar_label(drawn, [bar.text for bar in bars], padding=4)
        axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(unit)
        add_title(figure, title)
        write_png(figure, path)
