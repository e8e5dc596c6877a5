"""`resnet-tpu prune`: pruning and re-training."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.cli.arguments import Parser, entries, fill
from resnet_tpu.cli.run_options import CONCERNS, options_about
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import FilePath, expand_home, option, options_of


@dataclass(frozen=True)
class ReportOptions:
    """Where the table and the pictures go, and of what."""

    output_dir: FilePath = option("", "Folder of levels, table and pictures. Default: MODEL_DIR/pruning.")
    combine: bool = option(
        False, "Prune nothing: one table and curve of several output_dirs, given in place of MODEL_DIR."
    )
    paper_network: Literal["same", "resnet20", "resnet34", "resnet50", "resnet56", "resnet110"] = option(
        "same", "Whose curves in the paper are drawn beside; `same` are those of the same network, if it has it."
    )


def prune(arguments: Sequence[str]) -> None:
    """Prune a trained network and train it again: with weights or learning rate rewound, or fine-tuned."""
    from resnet_tpu.pruning.methods import HELP
    from resnet_tpu.pruning.options import Experiment
    from resnet_tpu.pruning.retrain import RETRAININGS

    parser = Parser(
        "resnet-tpu prune",
        f"{prune.__doc__}\n\nStopped at any time, the same command goes on; a level that is done is only read.\n\n"
        f"methods:\n{entries(HELP)}\n\n"
        f"re-training:\n{entries({name: retraining.text for name, retraining in RETRAININGS.items()})}",
        usage="MODEL_DIR [options], or --combine OUTPUT_DIR ...",
        examples=(
            "resnet-tpu prune runs/cifar --density=20",
            "resnet-tpu prune runs/cifar --levels=10 --retrain=lr_rewinding,weight_rewinding,fine_tuning --seeds=0,1",
            "resnet-tpu prune runs/cifar --method=prune_resnet56_A --levels=5 --rewind_to=10epochs",
            "resnet-tpu prune --combine runs/rewound runs/tuned --output_dir=runs/both",
        ),
    )
    parser.add_argument(
        "folders", type=expand_home, metavar="MODEL_DIR", nargs="+", help="Folder of the training to prune."
    )
    what, where = options_of("prune", Experiment), options_of("report", ReportOptions)
    parser.add_options("what to do", what.values())
    parser.add_options("where to show it", where.values())
    run_options = options_about("run")
    parser.add_options(CONCERNS["run"], run_options.values())
    given = parser.parse(arguments)
    folders = given.pop("folders")
    asked = fill(Experiment, {name: given[name] for name in what if name in given})
    shown = fill(ReportOptions, {name: given[name] for name in where if name in given})
    if shown.combine:
        _check_combining([name for name in what if name in given], shown.output_dir)
    elif len(folders) > 1:
        do = "Prune one after the other; --combine puts their results together."
        raise UserError("MODEL_DIR", " ".join(folders), "one folder", do)

    from resnet_tpu.parallel import hosts
    from resnet_tpu.pruning.experiment import prune_run
    from resnet_tpu.pruning.outcome import read_outcomes
    from resnet_tpu.pruning.report import report_experiment

    if shown.combine:
        report_experiment(read_outcomes(folders), shown.output_dir, shown.paper_network)
        return
    output_dir = shown.output_dir or f"{folders[0].rstrip('/')}/pruning"
    devices = {name: given[name] for name in run_options if name in given}
    outcomes = prune_run(folders[0], output_dir, asked, devices=devices)
    if hosts.is_first():
        report_experiment(outcomes, output_dir, shown.paper_network)
        sparsest = shlex.quote(min(outcomes, key=lambda outcome: outcome.density).model_dir)
        print(f"Predict with the sparsest: resnet-tpu predict {sparsest} IMAGE")
        print(f"Export it: resnet-tpu export {sparsest} EXPORT_DIR")


def _check_combining(others: Sequence[str], output_dir: str) -> None:
    if others:
        raise UserError("--combine", ", ".join(others), "--output_dir alone", "Leave the rest out: nothing is pruned.")
    if not output_dir:
        raise UserError("output_dir", "nothing", "a folder for the table and the pictures", "Give --output_dir=FOLDER.")
