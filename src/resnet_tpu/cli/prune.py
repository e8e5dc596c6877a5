"""`resnet-tpu prune`: pruning and re-training."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.arguments import Parser
from resnet_tpu.cli.options import fill
from resnet_tpu.errors import UserError
from resnet_tpu.options import Length, option, options_of


@dataclass(frozen=True)
class PruneOptions:
    """How to prune, and how to train again."""

    method: str = option(
        "prune_all_to_global", "How to choose what goes; with or without its number. The names are listed below."
    )
    density: str = option(
        "", "Percent of the weights to keep, such as 20; or several, 80,64,51.2: each cut from the unpruned network."
    )
    levels: int | None = option(
        None, "Prune so many times, each time what the re-training before left: iterative pruning.", at_least=1
    )
    rate: float = option(0.2, "Share of the weights left that each of the levels removes.", at_least=0)
    retrain: str = option("lr_rewinding", "How to train again, one or several: {}.")
    rewind_to: Length | None = option(
        None, "Step, or epochs as 9epochs, that re-training goes back to. Default: a tenth of the training.", at_least=0
    )
    retrain_epochs: float | None = option(
        None, "Instead of rewind_to: epochs of re-training, counted from the end.", at_least=0
    )
    seeds: str = option("", "Repeat with trainings of these seeds, such as 0,1,2. Default: that of MODEL_DIR.")
    rewind_optimizer: Literal["restore", "reset"] = option(
        "restore", "Momentum after a rewind: that of the weights, as in the paper, or 0."
    )
    output_dir: str = option("", "Folder of levels, table and curve. Default: MODEL_DIR/pruning.")


def prune(arguments: Sequence[str]) -> None:
    """Prune a trained network and train it again: with weights or learning rate rewound, or fine-tuned."""
    from resnet_tpu.prune.methods import HELP
    from resnet_tpu.prune.retrain import METHODS

    methods = "\n".join(f"  {name:24}{text}" for name, text in HELP.items())
    retrains = "\n".join(f"  {name:24}{method.text}" for name, method in METHODS.items())
    parser = Parser(
        "resnet-tpu prune",
        f"{prune.__doc__}\n\nStopped at any time, the same command goes on; a level that is done is only read.\n\n"
        f"methods:\n{methods}\n\nre-training:\n{retrains}",
        usage="MODEL_DIR [options]",
        examples=(
            "resnet-tpu prune runs/cifar --density=20",
            "resnet-tpu prune runs/cifar --levels=10 --retrain=lr_rewinding,weight_rewinding,fine_tuning --seeds=0,1",
            "resnet-tpu prune runs/cifar --method=prune_resnet56_A --levels=5 --rewind_to=10epochs",
        ),
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="Folder of the training to prune.")
    own = options_of("prune", PruneOptions)
    own["retrain"] = dataclasses.replace(own["retrain"], help=own["retrain"].help.format(", ".join(METHODS)))
    parser.add_options("what to do", own.values())
    given = parser.parse(arguments)
    model_dir = given.pop("model_dir")
    options = fill(PruneOptions, given)

    from resnet_tpu.prune.experiment import Experiment, run
    from resnet_tpu.prune.report import report_experiment

    output_dir = options.output_dir or f"{model_dir.rstrip('/')}/pruning"
    asked = Experiment(
        method=options.method,
        density=options.density,
        levels=options.levels,
        rate=options.rate,
        retrain=[name.strip() for name in options.retrain.split(",")],
        rewind_to=options.rewind_to,
        retrain_epochs=options.retrain_epochs,
        seeds=_numbers("seeds", options.seeds),
        rewind_optimizer=options.rewind_optimizer,
    )
    report_experiment(run(model_dir, output_dir, asked), output_dir)


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UserError(name, repr(text), "whole numbers such as 0,1,2", "Change the value.") from None
