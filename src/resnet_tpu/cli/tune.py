"""`resnet-tpu tune`."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import configure_like_run, follow_start, groups_for_trainings
from resnet_tpu.options.fields import option
from resnet_tpu.reports.console import make_console

if TYPE_CHECKING:
    from resnet_tpu.options.config import Config
    from resnet_tpu.training.kernel_choice.setting import KernelSetting
    from resnet_tpu.training.kernel_choice.tune import Trial


@dataclass(frozen=True)
class TuneOptions:
    """Options of `tune` besides those of a run."""

    format: Literal["table", "json"] = option("table", "How to print the timings.")


@Command(
    "resnet-tpu tune",
    "Kernels whose results differ from those of the plain layers are left out. Later runs with the same step use "
    "the fastest (kernels=auto). The images are random; data_dir only says how many classes there are. With the "
    "model_dir of a run, its options are the defaults.",
    examples=(
        "resnet-tpu tune --recipe=flowers_cpu --data_dir=data/flowers",
        "resnet-tpu tune --resnet_depth=50 --train_batch_size=256",
    ),
    groups=[Group("what to print", TuneOptions), *groups_for_trainings()],
)
def tune(given: Given) -> None:
    """Time each way to compute a training step on these devices, and remember the fastest."""
    options = given.fill(TuneOptions)
    config = follow_start(configure_like_run(given.values), given.values)
    if not config.data.location:
        config = config.replace(data_dir="null")

    from resnet_tpu.training.kernel_choice.tune import tune_run

    best, trials = tune_run(config)
    if options.format == "json":
        content = {"best": best, "trials": trials, "train_batch_size": config.train.train_batch_size}
        print(json.dumps(content, default=dataclasses.asdict, indent=2))
    else:
        _print(best, trials, config)


def _print(best: "KernelSetting", trials: Sequence["Trial"], config: "Config") -> None:
    """Prints a line for each setting, the fastest first."""
    from rich.markup import escape
    from rich.table import Table

    batch_size, model = config.train.train_batch_size, config.model
    what = f"ResNet-{model.resnet_depth}, {config.data.image_size} px, {model.precision}, batch {batch_size}"
    table = Table("kernels", "ms a step", "images/s", "", title=f"A training step of {what}", title_style="bold")

    def order(trial: "Trial") -> float:
        return trial.milliseconds or float("inf")

    for trial in sorted(trials, key=order):
        rate = "" if trial.milliseconds is None else f"{1000 * batch_size / trial.milliseconds:.0f}"
        time = "" if trial.milliseconds is None else f"{trial.milliseconds:.1f}"
        table.add_row(str(trial.setting), time, rate, "chosen" if trial.setting == best else escape(trial.left_out))
    make_console().print(table)
