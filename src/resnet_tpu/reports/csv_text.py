"""Tables as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The text of a CSV file with `header` as its first line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
