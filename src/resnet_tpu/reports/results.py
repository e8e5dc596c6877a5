"""Compares runs by the values of a metric in their event files, as (model_dir, step, value) rows."""

import logging
import math
import posixpath
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from resnet_tpu import storage
from resnet_tpu.errors import UserError, nearest, visible
from resnet_tpu.options.run_file import CHECKPOINTS, CONFIG_FILE
from resnet_tpu.reports.csv_text import to_csv
from resnet_tpu.reports.events import read_events
from resnet_tpu.reports.metrics import OTHER_IMAGES, MetricsSplit, read_metrics

log = logging.getLogger(__name__)


class Result(NamedTuple):
    """The value of a metric in a run after `step` updates."""

    model_dir: str
    step: int
    value: float


_SET = ("learning_rate", "current_epoch")  # set by the options, so neither good nor bad


def results(model_dirs: Sequence[str], metric: str = "top_1_accuracy", *, split: MetricsSplit = "eval") -> list[Result]:
    """`metric` of each run, ours or the original's, by step; of several values at one step, the last written.

    split: "eval" reads `model_dir/eval`, "train" `model_dir` itself. The folder `eval` or `checkpoints` in it, or an
    event file, may be given in place of a `model_dir`. An evaluation whose loss is not finite is skipped, with a
    warning: its accuracies are meaningless. Raises UserError for a path that does not exist, has no events, or lacks
    the metric.
    """
    return [row for model_dir in model_dirs for row in _results_of(model_dir, metric, split)]


def best_results(rows: Sequence[Result], metric: str) -> dict[str, Result]:
    """The best row of each model_dir, the earliest of equals; empty for metrics in `_SET`. See `is_lower_better`."""
    if metric in _SET:
        return {}
    sign = -1 if is_lower_better(metric) else 1
    best: dict[str, Result] = {}
    for row in rows:
        if math.isnan(row.value):
            continue
        if row.model_dir not in best or sign * row.value > sign * best[row.model_dir].value:
            best[row.model_dir] = row
    return best


def is_lower_better(metric: str) -> bool:
    """Whether a low value of `metric` is better, as for a loss, an error or a wait."""
    return any(word in metric for word in ("loss", "error", "wait"))


def results_table(rows: Sequence[Result], metric: str) -> Table:
    """The rows for a terminal, with the best of each model_dir marked."""
    best = set(best_results(rows, metric).values())
    shown = escape(visible(metric))
    table = Table("model_dir", "step", shown, "", title=f"{shown} by training step")
    table.columns[1].justify = table.columns[2].justify = "right"
    table.columns[0].overflow = "fold"
    for i, row in enumerate(rows):
        repeated = i > 0 and rows[i - 1].model_dir == row.model_dir
        style = "bold green" if row in best else None
        name = "" if repeated else escape(visible(row.model_dir))
        table.add_row(name, str(row.step), f"{row.value:.5g}", "best" if row in best else "", style=style)
    return table


def results_csv(rows: Sequence[Result], metric: str) -> str:
    """The rows as CSV with the header `model_dir,step,<metric>`; values are not rounded."""
    return to_csv(["model_dir", "step", metric], rows)


def _results_of(model_dir: str, metric: str, split: MetricsSplit) -> list[Result]:
    if not storage.exists(model_dir):
        storage.check_reachable(model_dir)
        raise UserError("model_dir", model_dir, "an existing folder", "Check the path.")
    path, run = model_dir, ""
    if storage.is_dir(model_dir):
        run = _run_of(model_dir)
        path = run if split == "train" else storage.join(run, "eval")
    scalars = read_events(path) if storage.exists(path) else []
    if not scalars:
        command = f"resnet-tpu eval {shlex.quote(model_dir)}"
        do = f"Evaluate the run first: {command}" if split == "eval" else "Check the path."
        if storage.exists(storage.join(model_dir, "phases.csv")):  # an experiment of `prune`
            do = "Its results are in results.csv and phases.csv there; or name the folder of one of its runs."
        raise UserError(f"Results of {model_dir}", f"no event files with values in {path}", "at least one", do)
    by_step = {scalar.step: scalar.value for scalar in scalars if scalar.tag == metric}
    if not by_step:
        tags = sorted({scalar.tag for scalar in scalars})
        raise UserError(f"Metric in {path}", metric, f"one of {', '.join(tags)}", f"Name one.{nearest(metric, tags)}")
    losses = {scalar.step: scalar.value for scalar in scalars if scalar.tag == "loss" and split == "eval"}
    if unsound := sorted(step for step in by_step if not math.isfinite(losses.get(step, 0))):
        log.warning("Left out of %s, as the loss is not finite there: step %s", path, ", ".join(map(str, unsound)))
    rows = [Result(model_dir, step, by_step[step]) for step in sorted(by_step) if step not in unsound]
    if not rows:
        do = f"Evaluate an earlier checkpoint: resnet-tpu eval {shlex.quote(model_dir)}/checkpoints/STEP"
        raise UserError(f"Results of {model_dir}", "no evaluation whose loss is finite", "at least one", do)
    return _of_own_images(rows, run) if run and split == "eval" else rows


def _of_own_images(rows: list[Result], run: str) -> list[Result]:
    """The rows without evaluations on images other than the run's; all rows if there would be none left."""
    marked = {row["step"] for row in read_metrics(run, "eval") if row.get(OTHER_IMAGES)}
    own = [row for row in rows if row.step not in marked]
    if not own or len(own) == len(rows):
        return rows
    steps = ", ".join(str(row.step) for row in rows if row.step in marked)
    log.warning("Left out of %s, as other images or crops were measured there: step %s", run, steps)
    return own


def _run_of(folder: str) -> str:
    """The `model_dir` that the folder belongs to, if it is `eval` or `checkpoints` in one; else the folder itself."""
    path = storage.absolute(folder)
    parent, name = storage.parent_of(path), posixpath.basename(path)
    is_run = storage.exists(storage.join(path, "eval"))  # the model_dir itself may have such a name
    is_ours = name == CHECKPOINTS and storage.exists(storage.join(parent, CONFIG_FILE))
    return parent if not is_run and (name == "eval" or is_ours) else folder
