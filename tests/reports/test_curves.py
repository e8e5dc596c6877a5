"""Curves show the numbers that they are given, at any length."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from resnet_tpu.errors import UserError
from resnet_tpu.reports.curves import draw_results, draw_training
from resnet_tpu.reports.results import Result
from resnet_tpu.reports.style import write_png


def _rows(steps: int, every: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        loss = 1 + 5 * math.exp(-5 * step / steps)
        row = {"loss": loss, "learning_rate": 1 - step / steps, "current_epoch": step / 10, "top_1_accuracy": 0.5}
        rows.append({"step": step, "split": "train", "time": 0.0, **row})
        if not (step + 1) % every:
            accuracy = {"loss": loss, "top_1_accuracy": 1 - loss / 8, "top_5_accuracy": 1 - loss / 16}
            rows.append({"step": step + 1, "split": "eval", "time": 0.0, **accuracy})
    return rows


def _check_png(figure: Figure, path: Path) -> None:
    write_png(figure, str(path))
    with Image.open(path) as picture:
        assert picture.size == tuple((figure.get_size_inches() * figure.dpi).astype(int))
        assert np.asarray(picture.convert("L")).std() > 5


def test_training_curves_hold_every_measurement(tmp_path: Path):
    rows = _rows(100, 25)
    figure = draw_training(rows)
    accuracy, loss, rate = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy", "loss", "learning rate"]
    assert rate.get_xlabel() == "step"
    evaluated = [row for row in rows if row["split"] == "eval"]
    for name, label in (("top_1_accuracy", "validation top-1"), ("top_5_accuracy", "validation top-5")):
        (line,) = (line for line in accuracy.lines if str(line.get_label()).startswith(label))
        assert np.asarray(line.get_xydata()).tolist() == [[row["step"], row[name]] for row in evaluated]
        assert line.get_label() == f"{label} (best {evaluated[-1][name]:.2%} at step 100)"
    raw = np.asarray(loss.lines[0].get_xydata())
    assert raw.tolist() == [[row["step"], row["loss"]] for row in rows if row["split"] == "train"]
    assert np.asarray(rate.lines[0].get_ydata())[0] == 1
    _check_png(figure, tmp_path / "curves.png")


def test_evaluations_in_any_order_are_drawn_by_step_and_the_best_is_starred():
    values = {30: 0.5, 10: 0.25, 20: 0.75}
    rows = [{"step": step, "split": "eval", "time": 0.0, "top_1_accuracy": value} for step, value in values.items()]
    line, star = draw_training(rows).axes[0].lines
    assert np.asarray(line.get_xydata()).tolist() == [[10, 0.25], [20, 0.75], [30, 0.5]]
    assert line.get_label() == "validation top-1 (best 75.00% at step 20)"
    assert np.asarray(star.get_xydata()).tolist() == [[20, 0.75]]


def test_an_evaluation_of_other_images_is_drawn_if_there_is_no_other():
    own = {"step": 10, "split": "eval", "time": 0.0, "top_1_accuracy": 0.5}
    other = {"step": 5, "split": "eval", "time": 0.0, "top_1_accuracy": 0.99, "other_images": 1}
    for rows, label in (([other, own], "best 50.00% at step 10"), ([other], "best 99.00% at step 5")):
        assert draw_training(rows).axes[0].lines[0].get_label() == f"validation top-1 ({label})"


def test_a_top_5_accuracy_that_is_always_whole_is_left_out():
    figure = draw_training([{**row, "top_5_accuracy": 1.0} for row in _rows(100, 25)])
    labels = [str(line.get_label()).partition(" (")[0] for line in figure.axes[0].lines]
    assert [label for label in labels if not label.startswith("_")] == ["training top-1", "validation top-1"]


def test_epochs_are_marked_above_the_steps(tmp_path: Path):
    figure = draw_training(_rows(100, 25))
    _check_png(figure, tmp_path / "curves.png")
    (scale,) = figure.axes[0].child_axes
    assert scale.get_xlabel() == "epoch"
    left, right = figure.axes[0].get_xlim()
    assert scale.get_xlim() == pytest.approx((left / 10, right / 10))


def test_long_run_is_averaged_not_thinned():
    figure = draw_training(_rows(30_000, 10_000))
    points = np.asarray(figure.axes[1].lines[0].get_xydata())
    assert 750 <= len(points) <= 1500
    assert points[:, 1].mean() == pytest.approx(1 + 5 * np.exp(-5 * np.arange(30_000) / 30_000).mean())


def test_the_best_of_many_evaluations_is_one_of_them():
    rows = [
        {"step": step, "split": "eval", "time": 0.0, "top_1_accuracy": 0.9 if step == 800 else 0.5}
        for step in range(2000)
    ]
    assert draw_training(rows).axes[0].lines[0].get_label() == "validation top-1 (best 90.00% at step 800)"


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 5, "split": "eval", "time": 0.0, "loss": 1.0, "top_1_accuracy": 0.5}],
        [{"step": 5, "split": "train", "time": 0.0, "loss": math.nan}],
        [{"step": step, "split": "train", "time": 0.0, "loss": 2.0} for step in range(3)],
    ],
)
def test_little_to_draw(tmp_path: Path, rows: list[dict[str, Any]]):
    _check_png(draw_training(rows), tmp_path / "curves.png")


def test_a_lone_step_shows_in_every_panel():
    row = {"step": 0, "split": "train", "time": 0.0, "loss": 1.0, "top_1_accuracy": 0.5, "learning_rate": 0.1}
    assert [axes.lines[-1].get_marker() for axes in draw_training([row]).axes] == ["o"] * 3


def test_panel_without_finite_values_is_labelled():
    rows = [{"step": step, "split": "train", "time": 0.0, "loss": math.nan, "learning_rate": 0.1} for step in (1, 2)]
    loss, learning_rate = draw_training(rows).axes
    assert [text.get_text() for text in loss.texts] == ["no finite values"]
    assert not learning_rate.texts


def test_curves_are_told_apart_without_colours():
    figure = draw_training(_rows(100, 25))
    for axes in figure.axes:
        named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        assert len({(line.get_linestyle(), line.get_marker()) for line in named}) == len(named)
    rows = [Result(f"runs/{run}", step, 0.5) for run in range(16) for step in range(2)]
    lines = [line for line in draw_results(rows, "top_1_accuracy").axes[0].lines if line.get_marker() != "*"]
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 16
    assert len({(line.get_linestyle(), line.get_color()) for line in lines}) == 16


def test_nothing_to_draw_is_an_error():
    with pytest.raises(UserError, match="Training curves"):
        draw_training([{"step": 5, "split": "eval", "time": 0.0}])


def test_results_have_a_line_per_run_with_its_best(tmp_path: Path):
    rows = [Result(f"runs/{run}", step, (run + step) % 7 / 8) for run in range(11) for step in range(10, 15)]
    figure = draw_results(rows, "top_1_accuracy")
    (axes,) = figure.axes
    (legend,) = figure.legends
    for run, text in enumerate(legend.get_texts()):
        own = [row for row in rows if row.model_dir == f"runs/{run}"]
        best = max(own, key=lambda row: row.value)
        assert text.get_text() == f"runs/{run} (best {best.value:.2%} at step {best.step})"
        (line,) = (line for line in axes.lines if line.get_label() == text.get_text())
        assert np.asarray(line.get_xydata()).tolist() == [[row.step, row.value] for row in own]
        stars = [line for line in axes.lines if line.get_marker() == "*"]
        assert np.asarray(stars[run].get_xydata()).tolist() == [[best.step, best.value]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "top-1 accuracy")
    _check_png(figure, tmp_path / "results.png")


def test_results_of_a_single_point_and_a_long_name(tmp_path: Path):
    _check_png(draw_results([Result("runs/" + "x" * 300, 1251, 0.5)], "loss"), tmp_path / "results.png")


def test_a_run_whose_name_begins_with_an_underscore_has_its_line():
    (legend,) = draw_results([Result("_old/run", 2, 0.5), Result("new", 2, 0.25)], "loss").legends
    assert [text.get_text().split()[0] for text in legend.get_texts()] == ["./_old/run", "new"]
