"""The measurements of a run by step, as columns."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from resnet_tpu import storage
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.fields import GivenPath, expand_home
from resnet_tpu.reports import columns
from resnet_tpu.reports.metrics import MetricsSplit, measured, read_metrics

if TYPE_CHECKING:
    from resnet_tpu.reports.style import Picture


class History:
    """The measurements of a run: `history["loss"]` is a column, `len(history)` the number of rows.

    Columns are `split` ("train" or "eval"), `step`, and the numbers by name; nan where a row lacks one. The step of a
    training row is the number of updates made before it, that of an evaluation row the number in its checkpoint.
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        """rows: from `read_metrics`."""
        self._rows = sorted(rows, key=lambda row: (row["step"], row["split"] == "eval"))
        names = dict.fromkeys(name for row in self._rows for name in measured(row))
        self.columns: list[str] = ["split", "step", *names]
        """The names of the columns."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column [rows]: of text for `split`, int64 for `step`, else float64. Raises UserError for another name."""
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise UserError("Column", name, f"one of {known}", f"Name one.{nearest(name, self.columns)}")
        kinds = {"split": np.str_, "step": np.int64}  # otherwise the dtype would depend on the rows
        return np.array([row.get(name, math.nan) for row in self._rows], kinds.get(name, np.float64))

    def to_dataframe(self) -> Any:
        """A `pandas.DataFrame` of the columns. Raises UserError if pandas is not installed."""
        return columns.to_dataframe({name: self[name] for name in self.columns})

    def draw(self) -> "Picture":
        """A Matplotlib figure of accuracy, loss and learning rate by step. Raises UserError if none was measured."""
        from resnet_tpu.reports.curves import draw_training  # matplotlib takes a while to load

        return draw_training(self._rows)

    def __repr__(self) -> str:
        return columns.to_text(self._lists())

    def _repr_html_(self) -> str:
        return columns.to_html(self._lists())

    def _lists(self) -> dict[str, list[Any]]:
        return {name: self[name].tolist() for name in self.columns}


def read_history(model_dir: GivenPath, split: MetricsSplit | None = None) -> History:
    """The measurements of the run in `model_dir`: of training ("train"), of evaluations ("eval"), or of both (None).

    Raises UserError when there is no such folder or split.
    """
    if split not in (None, *(known := get_args(MetricsSplit))):
        raise UserError("split", repr(split), f"one of {', '.join(known)}", "Change the value.")
    model_dir = expand_home(model_dir)
    if not model_dir or not storage.is_dir(model_dir):
        raise UserError("model_dir", model_dir or "nothing", "an existing folder", "Check the path.")
    return History(read_metrics(model_dir, split))
