"""Draws curves over the steps of training: of one run, and of one metric in several runs."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from resnet_tpu.errors import UserError
from resnet_tpu.reports.metrics import OTHER_IMAGES
from resnet_tpu.reports.results import Result, best_results
from resnet_tpu.reports.style import COLORS, DASHES, GRAY, MARKERS, STYLE, Picture, add_title, count_axis, shorten

_MAX_POINTS = 1500  # of a training curve; more points are averaged, because they would be less than a pixel apart


@mpl.rc_context(STYLE)
def draw_training(rows: Sequence[dict[str, Any]]) -> Picture:
    """Draws accuracy, loss and learning rate by step, those that are in the rows of `read_metrics`.

    Evaluations of other images than the run's are drawn only if there are no others. Raises UserError when the rows
    contain none of these.
    """
    own = [row for row in rows if not row.get(OTHER_IMAGES)]
    rows = own if any(row["split"] == "eval" for row in own) else rows
    drawers = (_draw_accuracy, _draw_loss, _draw_learning_rate)
    names = (("top_1_accuracy", "top_5_accuracy"), ("loss",), ("learning_rate",))
    held = {name for row in rows for name in row}
    panels = [drawer for drawer, wanted in zip(drawers, names, strict=True) if held.intersection(wanted)]
    if not panels:
        raise UserError("Training curves", "no accuracy, loss or learning rate", "a run that has some", "Train first.")
    heights = [2 if drawer is _draw_learning_rate else 3 for drawer in panels]
    figure = Picture(figsize=(9, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, drawer in zip(grid, panels, strict=True):
        drawer(axes, rows)
        if not axes.lines:  # the losses are not finite
            axes.text(0.5, 0.5, "no finite values", color=GRAY, ha="center", transform=axes.transAxes)
    count_axis(grid[-1].xaxis)
    grid[-1].set_xlabel("step")
    _add_epochs(grid[0], rows)
    add_title(figure, "Training")
    return figure


@mpl.rc_context(STYLE)
def draw_results(rows: Sequence[Result], metric: str) -> Picture:
    """Draws `metric` by step, a line per model_dir, with the best value marked by a star and given in the legend."""
    best = best_results(rows, metric)
    model_dirs = list(dict.fromkeys(row.model_dir for row in rows))
    figure = Picture(figsize=(9, 4.6 + 0.22 * len(model_dirs)), layout="constrained")
    axes = figure.subplots()
    for i, model_dir in enumerate(model_dirs):
        own = [row for row in rows if row.model_dir == model_dir]
        label = shorten(f"./{model_dir}" if model_dir.startswith("_") else model_dir, 70)  # a legend omits _names
        # when colours repeat, dashes differ
        dash, color = DASHES[(i + i // len(COLORS)) % len(DASHES)], COLORS[i % len(COLORS)]
        if top := best.get(model_dir):
            axes.plot(top.step, top.value, "*", color=color, markersize=15, markeredgecolor="white", zorder=3)
            label += f" (best {_value(metric, top.value)} at step {top.step:,})"
        steps, values = [row.step for row in own], [row.value for row in own]
        axes.plot(steps, values, dash, color=color, label=label, **_dots(len(own), MARKERS[i % len(MARKERS)]))
    if "accuracy" in metric:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    count_axis(axes.xaxis)
    name = shorten(metric.replace("top_", "top-").replace("_", " "), 40)
    axes.set(xlabel="step", ylabel=name)
    add_title(figure, f"{name.capitalize()} by training step")
    figure.legend(loc="outside lower left")
    return figure


def _value(metric: str, value: float) -> str:
    return f"{value:.2%}" if "accuracy" in metric else f"{value:.4g}"


def _dots(num_points: int, marker: str = MARKERS[0]) -> dict[str, Any]:
    """Marks every point if there are few: a single point would not be visible otherwise."""
    return {"marker": marker, "markersize": 4} if num_points <= 60 else {}


def _series(rows: Sequence[dict[str, Any]], split: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Ascending steps and their finite values; those of training are averaged to at most `_MAX_POINTS` points."""
    points = sorted((row["step"], row[name]) for row in rows if row["split"] == split and name in row)
    array = np.array([point for point in points if math.isfinite(point[1])], np.float64).reshape(-1, 2)
    block = math.ceil(len(array) / _MAX_POINTS)
    if block > 1 and split == "train":
        array = np.stack([part.mean(0) for part in np.array_split(array, len(array) // block)])
    return array[:, 0], array[:, 1]


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred moving average over a fiftieth of the curve."""
    window = np.ones(2 * (len(values) // 100) + 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def _draw_train_curve(axes: Axes, rows: Sequence[dict[str, Any]], name: str, color: str, label: str) -> np.ndarray:
    steps, values = _series(rows, "train", name)
    if len(values):
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=1)
        axes.plot(steps, _smooth(values), color=color, label=label, **_dots(len(values)))
    return values


def _add_legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")


def _draw_accuracy(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    _draw_train_curve(axes, rows, "top_1_accuracy", "#98a2ad", "training top-1")
    curves = (("top_5_accuracy", "top-5", COLORS[2], ":", "^"), ("top_1_accuracy", "top-1", COLORS[0], "--", "s"))
    for name, label, color, dash, marker in curves:
        steps, values = _series(rows, "eval", name)
        if not len(values) or (name == "top_5_accuracy" and values.min() == 1):  # as with up to five classes
            continue
        best = values.argmax()
        text = f"validation {label} (best {values[best]:.2%} at step {steps[best]:,.0f})"
        axes.plot(steps, values, dash, color=color, label=text, **_dots(len(values), marker))
        axes.plot(steps[best], values[best], "*", color=color, markersize=13, markeredgecolor="white", zorder=3)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set(ylabel="accuracy", ylim=(0, 1.03))
    _add_legend(axes)


def _draw_loss(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    train = _draw_train_curve(axes, rows, "loss", COLORS[1], "training")
    steps, values = _series(rows, "eval", "loss")
    if len(values):
        axes.plot(steps, values, "--", color=COLORS[0], label="validation", **_dots(len(values), "s"))
    # the losses of the first steps may be far above all others
    tops = [np.percentile(part, percent) for part, percent in ((train, 99), (values, 95)) if len(part)]
    lows = [part.min() for part in (train, values) if len(part)]
    if tops and max(tops) > min(lows):
        margin = 0.06 * (max(tops) - min(lows))
        axes.set_ylim(min(lows) - margin, max(tops) + margin)
    axes.set_ylabel("loss")
    _add_legend(axes)


def _draw_learning_rate(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    steps, values = _series(rows, "train", "learning_rate")
    axes.plot(steps, values, color=COLORS[3], **_dots(len(values)))
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)


def _add_epochs(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Adds a scale of epochs above, if the rows contain the epoch of each step."""
    known = [row for row in rows if row["split"] == "train" and row["step"] > 0 and row.get("current_epoch", 0) > 0]
    if known:
        rate = known[-1]["current_epoch"] / known[-1]["step"]
        scale = axes.secondary_xaxis("top", functions=(lambda step: step * rate, lambda epoch: epoch / rate))
        scale.set_xlabel("epoch")
