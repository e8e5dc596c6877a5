"""`resnet-tpu prune`: prunes and retrains a network."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import CONCERNS, LIKE_THE_RUN
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import FilePath, option, options_of
from resnet_tpu.pruning.options import COMPUTING, Experiment
from resnet_tpu.pruning.retrain import RETRAININGS


@dataclass(frozen=True)
class ReportOptions:
    """The contents of the table and the pictures, and where to write them."""

    output_dir: FilePath = option("", "Folder for levels, table and pictures. Default: MODEL_DIR/pruning.")
    combine: bool = option(
        False, "Prune nothing: make one table and one curve from several output_dirs, given in place of MODEL_DIR."
    )
    paper_network: Literal["same", "resnet20", "resnet34", "resnet50", "resnet56", "resnet110"] = option(
        "same",
        "Network of the paper whose curves are drawn for comparison. same: the pruned network, if the paper has it.",
    )


@Command(
    "resnet-tpu prune",
    f"After an interruption, run the same command again: finished levels are kept. {LIKE_THE_RUN}\n"
    "The paper is arXiv:2003.02389.",
    usage="MODEL_DIR [options], or --combine OUTPUT_DIR ...",
    examples=(
        "resnet-tpu prune runs/cifar --density=20",
        "resnet-tpu prune runs/cifar --levels=10 --retrain=lr_rewinding,weight_rewinding,fine_tuning --seeds=0,1",
        "resnet-tpu prune runs/cifar --method=prune_resnet56_A --levels=5 --rewind_to=10epochs",
        "resnet-tpu prune --combine runs/rewound runs/tuned --output_dir=runs/both",
    ),
    arguments=(Argument("folders", "MODEL_DIR", "Folder of the run to prune.", many=True),),
    groups=[
        Group("methods", {}, notes="resnet_tpu.pruning.methods:HELP"),
        Group("retraining", {}, notes={name: retraining.text for name, retraining in RETRAININGS.items()}),
        Group("what to do", Experiment),
        Group("where to show it", ReportOptions),
        Group(CONCERNS["run"], COMPUTING),
    ],
)
def prune(given: Given) -> None:
    """Prune a trained network and retrain it, by rewinding weights or learning rate, or by fine-tuning."""
    folders, experiment, report_options = given.values["folders"], given.fill(Experiment), given.fill(ReportOptions)
    if report_options.combine:
        unused = [name for name in (*options_of(Experiment), *COMPUTING) if name in given.values]
        _check_combining(unused, report_options.output_dir)
    elif len(folders) > 1:
        do = "Prune one after the other; --combine puts their results together."
        raise UserError("MODEL_DIR", " ".join(folders), "one folder", do)

    from resnet_tpu.parallel import hosts
    from resnet_tpu.pruning.experiment import prune_run
    from resnet_tpu.pruning.outcome import UNPRUNED, read_outcomes
    from resnet_tpu.pruning.report import report_experiment

    if report_options.combine:
        report_experiment(read_outcomes(folders), report_options.output_dir, report_options.paper_network)
        return
    output_dir = report_options.output_dir or f"{folders[0].rstrip('/')}/pruning"
    computing = {name: given.values[name] for name in COMPUTING if name in given.values}
    outcomes = prune_run(folders[0], output_dir, experiment, computing=computing)
    if hosts.is_first():
        report_experiment(outcomes, output_dir, report_options.paper_network)
        pruned = [outcome for outcome in outcomes if outcome.method != UNPRUNED]
        sparsest = shlex.quote(min(pruned, key=lambda outcome: outcome.density).model_dir)
        print(f"Predict with the sparsest: resnet-tpu predict {sparsest} IMAGE")
        print(f"Export it: resnet-tpu export {sparsest} EXPORT_DIR")


def _check_combining(unused: Sequence[str], output_dir: str) -> None:
    if unused:
        raise UserError("--combine", ", ".join(unused), "--output_dir alone", "Leave the rest out: nothing is pruned.")
    if not output_dir:
        raise UserError("output_dir", "nothing", "a folder for the table and the pictures", "Give --output_dir=FOLDER.")
