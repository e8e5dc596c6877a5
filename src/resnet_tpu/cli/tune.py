"""`resnet-tpu tune`."""

from resnet_tpu.cli.arguments import Command, Given
from resnet_tpu.cli.run_options import configure, options_of_trainings
from resnet_tpu.reports.console import make_console


@Command(
    "resnet-tpu tune",
    "What does not agree with the plain layers is left out. Trainings of the same step then "
    "take the fastest (kernels=auto). The images are random ones; data_dir says how many classes there are.",
    examples=(
        "resnet-tpu tune --recipe=flowers_cpu --data_dir=data/flowers",
        "resnet-tpu tune --resnet_depth=50 --train_batch_size=256",
    ),
    groups=options_of_trainings(),
)
def tune(given: Given) -> None:
    """Time each way to compute a training step on these devices, and remember the fastest."""
    config = configure(given.values)
    if not config.data.place:
        config = config.replace(data_dir="null")

    from resnet_tpu.training.tune import Trial, tune_run

    best, trials = tune_run(config)

    from rich.table import Table

    table = Table("kernels", "ms a step", "images/s", "", title="What computes a training step", title_style="bold")

    def place(trial: Trial) -> float:
        return trial.milliseconds or float("inf")

    for trial in sorted(trials, key=place):
        rate = "" if trial.milliseconds is None else f"{1000 * config.train.train_batch_size / trial.milliseconds:.0f}"
        time = "" if trial.milliseconds is None else f"{trial.milliseconds:.1f}"
        table.add_row(str(trial.choice), time, rate, "taken from now on" if trial.choice == best else trial.left_out)
    make_console().print(table)
