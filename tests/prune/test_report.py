"""The table, the files and the picture of an experiment, and the paper's figures beside them."""

import csv
from pathlib import Path

import cv2
import pytest

from resnet_tpu.config import Config
from resnet_tpu.prune.experiment import UNPRUNED, Outcome
from resnet_tpu.prune.paper import paper_curve, paper_network
from resnet_tpu.prune.picture import draw_curve
from resnet_tpu.prune.report import summarise
from resnet_tpu.train.style import write_png


def outcome(seed: int, retrain: str, level: str, density: float, accuracy: float) -> Outcome:
    method = UNPRUNED if retrain == UNPRUNED else f"prune_all_to_global_{100 * density:g}"
    return Outcome("runs/x", seed, retrain, level, method, density, 100, accuracy)


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
    rows = summarise(OUTCOMES)
    assert [row.retrain for row in rows] == [UNPRUNED, "lr_rewinding", "lr_rewinding", "fine_tuning"]
    assert [row.density for row in rows] == pytest.approx([1.0, 0.8, 0.64, 0.8])
    assert (rows[1].median, rows[1].lowest, rows[1].highest, rows[1].seeds) == (0.92, 0.91, 0.93, 3)


@pytest.mark.parametrize("network", [None, "resnet20"])
def test_the_curve_is_drawn(network: str | None, tmp_path: Path) -> None:
    figure = draw_curve(summarise(OUTCOMES), network=network, pruning="iterative")
    labels = figure.axes[0].get_legend_handles_labels()[1]
    of_the_paper = ["lr_rewinding, arXiv:2003.02389", "fine_tuning, arXiv:2003.02389"] if network else []
    assert sorted(labels) == sorted(["lr_rewinding", "fine_tuning", *of_the_paper])
    write_png(figure, str(tmp_path / "curve.png"))
    picture = cv2.imread(str(tmp_path / "curve.png"))
    assert picture is not None and picture.std() > 5


def test_figures_of_the_paper(spec: Path) -> None:
    """Each point is the best re-training time by validation among the published results."""
    with (spec / "paper_results.csv").open() as file:
        rows = list(csv.DictReader(file))
    own = [
        row
        for row in rows
        if (row["network"], row["is_iterative"], row["retrain_method"]) == ("resnet20", "1", "lottery")
    ]
    for point in paper_curve("resnet20", "iterative", "weight_rewinding"):
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
    assert paper_network(config.replace(resnet_width=8)) is None
