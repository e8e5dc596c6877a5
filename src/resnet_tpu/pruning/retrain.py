"""Ways to train a pruned network again: from which weights, at which step, at which learning rate.

Source: arXiv:2003.02389.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Retraining:
    """A way to retrain.

    weights: `pruned`: those of the pruned network; `early`: those of the rewind step; `fresh`: newly drawn ones.
    step: `last`: training continues after it; `early`: schedule and data return to the rewind step; `first`: to 0.
    low_rate: the learning rate stays at its last value, instead of following the schedule again.
    """

    weights: Literal["pruned", "early", "fresh"]
    step: Literal["last", "early", "first"]
    low_rate: bool
    text: str


RETRAININGS = {
    "weight_rewinding": Retraining("early", "early", False, "weights and learning rate of an early step"),
    "lr_rewinding": Retraining("pruned", "early", False, "the pruned weights, the learning rate of an early step"),
    "fine_tuning": Retraining("pruned", "last", True, "the pruned weights, the last learning rate"),
    "low_lr_rewinding": Retraining("early", "early", True, "weights of an early step, the last learning rate"),
    "reinit": Retraining("fresh", "first", False, "new random weights under the mask, from the start"),
}
"""The ways to retrain, by name."""
