"""The table, files and picture of an experiment, next to the paper's figures."""

import csv
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.layers import maskable
from resnet_tpu.pruning.outcome import UNPRUNED, Outcome, read_outcomes
from resnet_tpu.pruning.paper import paper_curve, paper_network
from resnet_tpu.pruning.picture import draw_curve, draw_layers
from resnet_tpu.pruning.report import _accuracies, report_experiment
from resnet_tpu.pruning.sizes import LayerSize, size_of
from resnet_tpu.pruning.summary import layer_densities, layer_rows, summarize
from resnet_tpu.reports.style import write_png


def outcome(seed: int, retrain: str, level: str, density: float, accuracy: float) -> Outcome:
    method = UNPRUNED if retrain == UNPRUNED else f"prune_all_to_global_{100 * density:g}"
    layers = (LayerSize("conv_1", 40, round(40 * density), density, 400), LayerSize("dense", 10, 10, 1.0, 10))
    size = (round(1000 * density), round(9000 * density) + seed, 5000)
    return Outcome(f"runs/{seed}", seed, retrain, level, method, density, *size, 100, accuracy, layers)


OUTCOMES = [
    outcome(seed, retrain, level, density, base + 0.01 * seed)
    for seed in (0, 1, 2)
    for retrain, level, density, base in (
        (UNPRUNED, UNPRUNED, 1.0, 0.90),
        ("lr_rewinding", "level_01", 0.8, 0.91),
        ("lr_rewinding", "level_02", 0.64, 0.89),
        ("fine_tuning", "level_01", 0.8, 0.88),
    )
]


def test_seeds_are_put_together() -> None:
    rows = summarize(OUTCOMES)
    assert [row.retrain for row in rows] == [UNPRUNED, "lr_rewinding", "lr_rewinding", "fine_tuning"]
    assert [row.density for row in rows] == pytest.approx([1.0, 0.8, 0.64, 0.8])
    assert (rows[1].median, rows[1].lowest, rows[1].highest, rows[1].seeds) == (0.92, 0.91, 0.93, 3)
    assert (rows[1].parameters, rows[1].multiply_adds, rows[1].checkpoint_bytes) == (800, 7201, 5000)
    assert summarize(reversed(OUTCOMES))[-1] == rows[0]


def test_changes_are_from_the_unpruned_network() -> None:
    changes = next(column for column in _accuracies(summarize(OUTCOMES)).columns if column.header == "change")
    assert [*changes.cells] == ["", "+1.00", "-1.00", "-2.00"]


def test_changes_are_from_the_unpruned_networks_of_the_same_seeds() -> None:
    first = [one for one in OUTCOMES if one.seed == 0 or one.retrain != "fine_tuning"]
    changes = next(column for column in _accuracies(summarize(first)).columns if column.header == "change")
    assert [*changes.cells] == ["", "+1.00", "-1.00", "-2.00"]


def test_an_unpruned_network_that_two_parts_trained_counts_once() -> None:
    again = [dataclasses.replace(one, model_dir=f"other/{one.seed}") for one in OUTCOMES if one.retrain == UNPRUNED]
    assert summarize([*OUTCOMES, *again]) == summarize(OUTCOMES)


def test_levels_of_one_method_stay_apart() -> None:
    """Every level of prune_global removes the same share of what is left: all have the same name."""
    share = [dataclasses.replace(one, method="prune_global_20") for one in OUTCOMES if one.retrain == "lr_rewinding"]
    rows = summarize([*share, *(one for one in OUTCOMES if one.retrain == UNPRUNED)])
    assert [(row.density, row.seeds) for row in rows[:2]] == [(pytest.approx(0.8), 3), (pytest.approx(0.64), 3)]
    assert layer_densities(share)["lr_rewinding"] == layer_densities(OUTCOMES)["lr_rewinding"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_dir": "runs/other"},
            "two of seed 0: runs/0 and runs/other, expected one retrained network of each seed",
        ),
        ({"seed": 9, "method": "prune_random_80"}, "prune_all_to_global and prune_random, expected one network"),
    ],
)
def test_what_does_not_form_one_curve_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        report_experiment([*OUTCOMES, dataclasses.replace(OUTCOMES[1], **changes)], str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_two_trainings_of_one_seed_are_not_one(tmp_path: Path) -> None:
    other = dataclasses.replace(OUTCOMES[0], model_dir="runs/other", step=30, top_1_accuracy=0.5)
    message = r"two unpruned networks of seed 0: runs/0 \(step 100, 90.00%\) and runs/other \(step 30, 50.00%\)"
    with pytest.raises(UserError, match=message):
        report_experiment([*OUTCOMES, other], str(tmp_path))
    with pytest.raises(UserError, match=r"phases.csv: got no unpruned network of seed 0, expected one of each seed"):
        report_experiment(OUTCOMES[1:], str(tmp_path))


def test_a_network_that_other_processors_trained_again_counts_once_and_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("resnet_tpu.pruning.report.config_at", lambda _: Config())
    again = dataclasses.replace(OUTCOMES[0], model_dir="runs/other", top_1_accuracy=0.9001)
    report_experiment([*OUTCOMES, again], str(tmp_path))
    assert "runs/other (step 100, 90.01%). Changes are relative to the first." in caplog.text


@pytest.mark.parametrize("changed", [{"rewind_step": 6}, {"rewind_optimizer": "reset"}])
def test_two_ways_of_one_retraining_are_not_one(changed: dict[str, Any], tmp_path: Path) -> None:
    found = [dataclasses.replace(one, model_dir=str(tmp_path / str(number))) for number, one in enumerate(OUTCOMES[:6])]
    for number, one in enumerate(found):
        description = {"rewind_step": 2, "rewind_optimizer": "restore"} | (changed if number == 5 else {})
        Path(one.model_dir).mkdir()
        (Path(one.model_dir) / "pruning.json").write_text(json.dumps(description))
    ((name, value),) = changed.items()
    with pytest.raises(UserError, match=rf"lr_rewinding with {name} .* in {tmp_path}/1 and {value} in {tmp_path}/5"):
        report_experiment(found, str(tmp_path))


def test_densities_of_layers_in_rows_and_picture(tmp_path: Path) -> None:
    assert layer_densities(OUTCOMES) == {
        "lr_rewinding": [[pytest.approx(0.8), 1.0], [pytest.approx(0.64), 1.0]],
        "fine_tuning": [[pytest.approx(0.8), 1.0]],
    }
    assert layer_rows(OUTCOMES[1:2]) == [
        ("lr_rewinding", "level_01", "prune_all_to_global_80", 0, "conv_1", 40, 32, 0.8, 400),
        ("lr_rewinding", "level_01", "prune_all_to_global_80", 0, "dense", 10, 10, 1.0, 10),
    ]
    figure = draw_layers(layer_densities(OUTCOMES), ["conv_1", "dense"])
    assert [axes.get_title("left") for axes in figure.axes] == ["lr_rewinding", "fine_tuning"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]
    write_png(figure, str(tmp_path / "layers.png"))


def test_sizes_of_a_network() -> None:
    """ResNet-20 at 32 px, counted by hand: 3x3 kernels over 32, 16 and 8 px, projections in all three groups."""
    config = Config().replace(resnet_depth=20, image_size=32, num_label_classes=10)
    whole = size_of(config, None)
    kernels = 3 * 16 * 9 + 256 + 6 * 2304 + 512 + 4608 + 5 * 9216 + 2048 + 18432 + 5 * 36864 + 640
    assert sum(layer.weights for layer in whole.layers) == kernels
    norms = 2 * (16 * 8 + 32 * 7 + 64 * 7)
    assert whole.parameters == kernels + norms + 10
    work = 1024 * (432 + 256 + 6 * 2304) + 256 * (512 + 4608 + 5 * 9216) + 64 * (2048 + 18432 + 5 * 36864) + 640
    assert whole.multiply_adds == sum(layer.multiply_adds for layer in whole.layers) == work
    network = network_of(config)
    masks: dict[str, Any] = {}
    for name, path in maskable(network).items():
        mask = np.ones(leaf_at({"params": network.shapes()[0]}, ("params", path)).shape, bool)
        mask[..., ::2] = name != "conv_2"
        functools.reduce(lambda tree, key: tree.setdefault(key, {}), path[:-1], masks)[path[-1]] = mask
    half = size_of(config, masks)
    assert {layer.layer for layer in half.layers if layer.density < 1} == {"conv_2"}
    assert (half.parameters, half.multiply_adds) == (whole.parameters - 1152, work - 1024 * 1152)
    assert half.density == 1 - 1152 / kernels


def test_refuses_outcomes_that_do_not_belong_together(tmp_path: Path) -> None:
    mixed = [*OUTCOMES, outcome(0, "lr_rewinding", "density_50", 0.5, 0.9)]
    with pytest.raises(UserError, match="Experiments: got iterative and one_shot, expected one network"):
        report_experiment(mixed, str(tmp_path / "out"))
    with pytest.raises(UserError, match=r"Folder to combine: got .*, expected one with phases\.csv"):
        read_outcomes([str(tmp_path)])
    with pytest.raises(UserError, match="Experiments: got no pruned network"):
        report_experiment([one for one in OUTCOMES if one.method == "none"], str(tmp_path / "out"))


@pytest.mark.parametrize("network", [None, "resnet20"])
def test_the_curve_is_drawn(network: str | None, tmp_path: Path) -> None:
    figure = draw_curve(summarize(OUTCOMES), network=network, pruning="iterative")
    labels = figure.axes[0].get_legend_handles_labels()[1]
    paper = "resnet20 of arXiv:2003.02389, iterative"
    of_the_paper = [f"lr_rewinding: {paper}", f"fine_tuning: {paper}"] if network else []
    assert sorted(labels) == sorted(["lr_rewinding", "fine_tuning", *of_the_paper])
    write_png(figure, str(tmp_path / "curve.png"))
    picture = cv2.imread(str(tmp_path / "curve.png"))
    assert picture is not None and picture.std() > 5


def test_axis_labels_tell_small_densities_apart(tmp_path: Path) -> None:
    figure = draw_layers({"lr_rewinding": [[1.0, 0.5], [0.01, 0.0005]]}, ["conv_1", "dense"])
    write_png(figure, str(tmp_path / "layers.png"))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"100%", "1%", "0.1%"} <= {*labels}
    assert len({*labels}) == len(labels)


def test_the_lines_of_the_layers_are_named_and_none_is_lost_on_white() -> None:
    figure = draw_layers({"lr_rewinding": [[0.8, 0.5], [0.6, 0.4], [0.5, 0.3]]}, ["conv_1", "dense"])
    (axes,) = figure.axes
    assert axes.get_legend_handles_labels()[1] == ["level 1", "level 3"]
    lightest = max(np.mean(to_rgb(line.get_color())) for line in axes.lines)
    assert lightest < 0.6


def test_a_layer_of_which_nothing_is_left_is_a_cross(tmp_path: Path) -> None:
    figure = draw_layers({"lr_rewinding": [[1.0, 0.5, 0.5], [0.01, 0.02, 0.0]]}, ["conv_1", "conv_2", "dense"])
    write_png(figure, str(tmp_path / "layers.png"))
    (cross,) = (line for line in figure.axes[0].lines if line.get_marker() == "x")
    assert cross.get_xdata() == [2]
    assert figure.axes[0].get_ylim()[0] > 0.001  # no curve leaves the picture


def test_densities_on_the_axis_are_not_rounded_away(tmp_path: Path) -> None:
    pruned = [outcome(0, "lr_rewinding", f"density_{100 * density:g}", density, 0.9) for density in (0.125, 0.004)]
    figure = draw_curve(summarize([OUTCOMES[0], *pruned]), network=None, pruning="one_shot")
    write_png(figure, str(tmp_path / "curve.png"))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["100%", "12.5%", "0.4%"]


def test_warns_when_a_report_leaves_out_earlier_phases(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("resnet_tpu.pruning.report.config_at", lambda _: Config())
    found = [dataclasses.replace(one, model_dir=f"runs/{i}") for i, one in enumerate(OUTCOMES[:3])]
    report_experiment(found, str(tmp_path))
    assert not caplog.records
    report_experiment(found[:2], str(tmp_path))
    assert (
        f"The new table and pictures of {tmp_path} leave out the results of earlier calls: {Path.cwd()}/runs/2. Name"
        in caplog.text
    )
    (tmp_path / "phases.csv").write_text('"')
    report_experiment(found[:2], str(tmp_path))  # rewrites the file


def test_figures_of_the_paper(spec: Path) -> None:
    """Each point has the retraining time that is best by validation among the published results."""
    with (spec / "paper_results.csv").open() as file:
        rows = list(csv.DictReader(file))
    own = [
        row
        for row in rows
        if (row["network"], row["is_iterative"], row["retrain_method"]) == ("resnet20", "1", "lottery")
    ]
    points = paper_curve("resnet20", "iterative", "weight_rewinding")
    assert [point.density for point in points] == sorted({float(row["density"]) for row in own}, reverse=True)
    for point in points:
        candidates = [row for row in own if float(row["density"]) == point.density]
        best = max(candidates, key=lambda row: float(row["val_median"]))
        assert (point.median, point.lowest, point.highest) == tuple(
            float(best[name]) for name in ("test_median", "test_min", "test_max")
        )


def test_curves_of_the_paper_are_found() -> None:
    points = paper_curve("resnet50", "one_shot", "reinit")
    assert [round(point.median, 3) for point in points][:3] == [0.758, 0.753, 0.749]
    assert [point.density for point in points] == sorted((point.density for point in points), reverse=True)
    assert paper_curve("resnet50", UNPRUNED, UNPRUNED)[0].median == 0.76171
    assert paper_curve("resnet18", "one_shot", "reinit") == []


@pytest.mark.parametrize(
    ("depth", "size", "classes", "name"),
    [
        (20, 32, 10, "resnet20"),
        (50, 224, 1000, "resnet50"),
        (34, 224, 1001, "resnet34"),
        (50, 224, 5, None),
        (18, 224, 1000, None),
    ],
)
def test_networks_of_the_paper(depth: int, size: int, classes: int, name: str | None) -> None:
    config = Config().replace(resnet_depth=depth, image_size=size, num_label_classes=classes)
    assert paper_network(config) == name
    for other in ({"resnet_width": 8}, {"pre_activation": True}, {"se_ratio": 0.25}):
        assert paper_network(config.replace(**other)) is None
