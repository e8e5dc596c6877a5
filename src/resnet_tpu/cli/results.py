"""`resnet-tpu results`."""

import sys
from dataclasses import dataclass
from typing import Literal

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class ResultsOptions:
    """Which results to show, and how."""

    metric: str = option(
        "top_1_accuracy", "Metric to show, by its name in TensorBoard: also top_5_accuracy, loss, learning_rate."
    )
    split: Literal["train", "eval"] = option(
        "eval", "Values of the evaluations or of the training steps of a MODEL_DIR; event files are shown whole."
    )
    format: Literal["table", "csv"] = option("table", "How to print the values.")
    picture: FilePath = option("", "Also draw the values to this PNG file.")


@Command(
    "resnet-tpu results",
    examples=(
        "resnet-tpu results runs/flowers",
        "resnet-tpu results runs/a runs/b --metric=loss --picture=loss.png",
        "resnet-tpu results runs/flowers --format=csv > accuracy.csv",
    ),
    arguments=(Argument("model_dirs", "MODEL_DIR", "Folders of runs, or event files.", many=True),),
    groups=[Group("what to show", ResultsOptions)],
)
def results(given: Given) -> None:
    """Show the metrics of runs step by step, from a model_dir or from event files of the original program."""
    options = given.fill(ResultsOptions)
    storage.check_file(options.picture)

    from resnet_tpu.reports import results

    rows = results.results(given.values["model_dirs"], options.metric, split=options.split)
    if options.format == "csv":
        sys.stdout.write(results.results_csv(rows, options.metric))
    else:
        make_console().print(results.results_table(rows, options.metric))
    if options.picture:
        from resnet_tpu.reports.curves import draw_results
        from resnet_tpu.reports.style import write_png

        write_png(draw_results(rows, options.metric), options.picture)
