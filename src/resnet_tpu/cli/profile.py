"""`resnet-tpu profile WHAT`: shows where training time goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.menu import Menu
from resnet_tpu.cli.run_options import configure_like_run, follow_start, groups_for_trainings
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.reports.console import make_console

T = TypeVar("T")


@dataclass(frozen=True)
class InputOptions:
    """Options of `profile input` besides those of a run."""

    images_per_sec: float | None = option(
        None,
        "Images/s that the input must deliver. Default: what the training step takes, as measured here.",
        at_least=1,
    )
    step: bool = option(
        True, "Measure the training step. False: take its speed from the run in model_dir, if there is one."
    )
    num_images: int = option(200, "Images to time the stages on.", at_least=1)
    seconds: float = option(5.0, "How long to measure each speed.", at_least=0)
    format: Literal["table", "json"] = option("table", "How to print the profile.")


@dataclass(frozen=True)
class TrainOptions:
    """Options of `profile train` besides those of a run."""

    steps: int = option(20, "Steps to trace.", at_least=3)  # one interval is not representative: the host runs ahead
    trace: FilePath = option("", "Read the newest trace in this model_dir or trace folder instead of making one.")
    format: Literal["table", "json"] = option("table", "How to print the profile.")


@Command(
    "resnet-tpu profile input",
    "With the model_dir of a run, its options are the defaults. Nothing is trained.",
    examples=(
        "resnet-tpu profile input --recipe=flowers --data_dir=data/flowers",
        "resnet-tpu profile input --model_dir=runs/flowers",
        "resnet-tpu profile input --data_dir=data --images_per_sec=4000 --num_parallel_calls=8",
    ),
    groups=[Group("what to do", InputOptions), *groups_for_trainings()],
)
def profile_input(given: Given) -> None:
    """Images per second of the input, CPU time by stage, what the step needs, and what would help."""
    options = given.fill(InputOptions)
    config = follow_start(configure_like_run(given.values), given.values)
    config.data.require_images()

    from resnet_tpu.performance.profiling import input, report  # noqa: A004 (its name there)

    profile = input.profile_input(
        config,
        needed_speed=options.images_per_sec,
        measures_step=options.step,
        num_images=options.num_images,
        seconds=options.seconds,
    )
    _print(profile, options.format, report.input_json, report.show_input)


@Command(
    "resnet-tpu profile train",
    "The trace goes to plugins/profile/ in model_dir; nothing else there is changed. "
    "With the model_dir of a run, its options are the defaults.",
    examples=(
        "resnet-tpu profile train --recipe=flowers --data_dir=data/flowers --model_dir=runs/profile",
        "resnet-tpu profile train --recipe=imagenet --data_dir=null --model_dir=runs/device --steps=50",
        "resnet-tpu profile train --trace=runs/flowers            # captured by --profile_every_n_steps",
    ),
    groups=[Group("what to do", TrainOptions), *groups_for_trainings()],
)
def profile_train(given: Given) -> None:
    """Trace a few training steps for TensorBoard, and sum up where their time goes."""
    options = given.fill(TrainOptions)
    if options.trace and (more := [name for name in given.values if name not in ("trace", "format")]):
        raise UserError("--trace", ", ".join(more), "--format alone", "Leave the rest out: nothing is trained.")
    config = follow_start(configure_like_run(given.values), given.values)

    from resnet_tpu.performance.profiling import report, training

    if options.trace:
        profile = training.read_profile(options.trace)
    else:
        config.data.require_images()
        if not config.run.model_dir:
            do = "Give --model_dir=FOLDER; a run that is already there is not changed."
            raise UserError("model_dir", "nothing", "a folder for the trace", do)
        storage.check_writable(config.run.model_dir)
        profile = training.profile_training(config, steps=options.steps)
    _print(profile, options.format, report.train_json, report.show_train)


def _print(profile: T, output_format: str, to_json: Callable[[T], str], show: Callable[[T], Any]) -> None:
    if output_format == "json":
        print(to_json(profile))
    else:
        make_console(120).print(show(profile))


PROFILE = Menu(
    "resnet-tpu profile",
    "See where training time goes, and what would make training faster.",
    {"input": profile_input, "train": profile_train},
    examples=(
        "resnet-tpu profile input --recipe=flowers --data_dir=data/flowers",
        "resnet-tpu profile train --recipe=flowers --data_dir=data/flowers --model_dir=runs/profile",
    ),
)
