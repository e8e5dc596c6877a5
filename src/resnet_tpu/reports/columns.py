"""Shows columns of equal length in notebooks: as HTML, as text, or as a pandas DataFrame."""

import html
import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from resnet_tpu.errors import UserError

Columns = Mapping[str, Sequence[Any] | np.ndarray]
"""Values by column name; all columns have the same length."""

MOST_ROWS = 60
"""If there are more rows, only the first and last ones are shown."""


def to_dataframe(columns: Columns) -> Any:
    """A `pandas.DataFrame`. Raises UserError if pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ModuleNotFoundError:
        raise UserError("to_dataframe", "no package 'pandas'", "it to be installed", "pip install pandas.") from None
    return pandas.DataFrame(dict(columns))


def to_html(columns: Columns) -> str:
    """An HTML table, for `_repr_html_`."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = [
        "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        for row in ([_text(value) for value in values] for values in _shown(columns))
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def to_text(columns: Columns) -> str:
    """A plain-text table, for `__repr__`."""
    rows = [list(columns), *([_text(value) for value in values] for values in _shown(columns))]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _shown(columns: Columns) -> Iterator[tuple[Any, ...]]:
    rows = list(zip(*columns.values(), strict=True))
    if len(rows) <= MOST_ROWS:
        return iter(rows)
    half = MOST_ROWS // 2
    return itertools.chain(rows[:half], [("...",) * len(columns)], rows[-half:])


def _text(value: Any) -> str:
    if value is None or value != value:  # nan
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
