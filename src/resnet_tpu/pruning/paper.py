"""The results of the rewinding paper, arXiv:2003.02389, from the data that its authors published.

As in its protocol, the retraining time for each density is the one with the best median on validation images; the
accuracies are the median, lowest and highest of the runs of that length on test images. For unpruned networks, `median`
is the mean of all runs.
"""

import csv
from dataclasses import dataclass
from importlib import resources

from resnet_tpu.options.config import OPTIONS, VARIANT, Config

_PLAIN = (*VARIANT, "se_ratio", "resnet_width", "inner_channels")
"""Options of the network that have their default values throughout the paper."""


@dataclass(frozen=True)
class Point:
    """Top-1 accuracies, from 0 to 1, of networks of a density, from 0 to 1."""

    density: float
    median: float
    lowest: float
    highest: float


def paper_network(config: Config) -> str | None:
    """The paper's name of a network trained with these resolved options; None if the paper has no such network."""
    depth, size, classes = config.model.resnet_depth, config.data.image_size, config.data.num_label_classes
    is_plain = all(getattr(config.model, name) == OPTIONS[name].default for name in _PLAIN)
    if is_plain and (depth, size, classes) in (
        *((cifar, 32, 10) for cifar in (20, 56, 110)),
        *((imagenet, 224, number) for imagenet in (34, 50) for number in (1000, 1001)),
    ):
        return f"resnet{depth}"
    return None


def paper_curve(network: str, pruning: str, retrain: str) -> list[Point]:
    """The paper's points from the densest on; empty if it has no such runs.

    network: resnet20, resnet34, resnet50, resnet56, resnet110. pruning: one_shot, iterative, structured_a,
    structured_b. retrain: a name of `retrain.RETRAININGS`. The unpruned network: `outcome.UNPRUNED` for both.
    """
    with (resources.files("resnet_tpu.pruning") / "paper_curves.csv").open() as file:
        return [
            Point(*(float(row[name]) for name in ("density", "median", "lowest", "highest")))
            for row in csv.DictReader(file)
            if (row["network"], row["pruning"], row["retrain"]) == (network, pruning, retrain)
        ]
