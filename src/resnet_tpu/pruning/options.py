"""The options of an experiment, and so of `resnet-tpu prune`."""

from dataclasses import dataclass, replace
from typing import Literal

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.options.fields import convert_fields, numbers_in, option
from resnet_tpu.options.lengths import Length
from resnet_tpu.pruning.levels import DEFAULT_RATE
from resnet_tpu.pruning.retrain import RETRAININGS

COMPUTING = {
    "data_dir": replace(OPTIONS["data_dir"], help="Where the images of the run are now, if they have moved.")
} | {
    name: found
    for name, found in OPTIONS.items()
    if name in ("precision", "kernels") or (found.group == "run" and name not in ("model_dir", "mode"))
}
"""Options for where the images are and how training is computed, not what is trained: retraining may use other values
than the first run did."""


@dataclass(frozen=True)
class Experiment:
    """How to prune a trained network, and how to retrain it; see `levels.plan_levels` for the first four.

    Raises UserError for a value of the wrong kind or out of range.
    """

    method: str = option(
        "prune_all_to_global",
        "How to choose the weights to remove: one of the methods that `resnet-tpu prune --help` lists, with or without "
        "its number P.",
    )
    density: str = option(
        "",
        "Percentage of weights to keep, such as 20, among those that the method prunes; or several, such as "
        "80,64,51.2, each pruned from the unpruned network.",
    )
    levels: int | None = option(
        None,
        "Number of levels of iterative pruning: each prunes the retrained network of the previous level.",
        at_least=1,
    )
    rate: float | None = option(
        None, f"Fraction of the remaining weights that each level removes. Default: {DEFAULT_RATE}.", at_least=0
    )
    retrain: str = option("lr_rewinding", f"How to retrain: one or more of {', '.join(RETRAININGS)}.")
    rewind_to: Length | None = option(
        None,
        "Where retraining goes back to, in steps or epochs such as 9epochs. Default: after a tenth of the run.",
        at_least=0,
    )
    retrain_epochs: float | None = option(
        None,
        "Instead of rewind_to: length of retraining in epochs, counted back from the end of the run.",
        at_least=0,
    )
    seeds: str = option("", "Repeat with networks of these seeds, such as 0,1,2. Default: the seed of MODEL_DIR.")
    rewind_optimizer: Literal["restore", "reset"] = option(
        "restore", "Momentum after a rewind. restore: from the weights' checkpoint, as in the paper. reset: 0."
    )

    def __post_init__(self) -> None:
        convert_fields(self)

    def retrains(self) -> list[str]:
        """The names in `retrain`. Raises UserError for an unknown one."""
        names = list(dict.fromkeys(name.strip() for name in self.retrain.split(",")))
        for name in names:
            if name not in RETRAININGS:
                raise UserError(
                    "retrain", name, f"one of {', '.join(RETRAININGS)}", f"Change it.{nearest(name, RETRAININGS)}"
                )
        return names

    def seed_numbers(self) -> list[int]:
        """The numbers in `seeds`; none if it is empty. Raises UserError for anything else."""
        numbers = numbers_in(self.seeds, int)
        if numbers is None:
            raise UserError("seeds", repr(self.seeds), "whole numbers such as 0,1,2", "Change the value.")
        return list(dict.fromkeys(numbers))
