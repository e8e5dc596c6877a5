"""`resnet-tpu results`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.cli.arguments import Parser, fill
from resnet_tpu.options.fields import FilePath, expand_home, option, options_of
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class ResultsOptions:
    """What `results` shows."""

    metric: str = option(
        "top_1_accuracy", "What to show, by its name in TensorBoard: also top_5_accuracy, loss, learning_rate."
    )
    split: Literal["eval", "train"] = option("eval", "Values of the evaluations or of the training steps.")
    format: Literal["table", "csv"] = option("table", "How to print the values.")
    picture: FilePath = option("", "Also draw them into this PNG file.")


def results(arguments: Sequence[str]) -> None:
    """Show what runs reached, step by step: ours, or the original's event files."""
    parser = Parser(
        "resnet-tpu results",
        f"{results.__doc__}",
        usage="MODEL_DIR ... [options]",
        examples=(
            "resnet-tpu results runs/flowers",
            "resnet-tpu results runs/a runs/b --metric=loss --picture=loss.png",
            "resnet-tpu results runs/flowers --format=csv > accuracy.csv",
        ),
    )
    parser.add_argument(
        "model_dirs", type=expand_home, metavar="MODEL_DIR", nargs="+", help="Folders of runs, or event files."
    )
    parser.add_options("what to show", options_of("results", ResultsOptions).values())
    given = parser.parse(arguments)
    model_dirs = given.pop("model_dirs")
    options = fill(ResultsOptions, given)

    from resnet_tpu.reports import results as found

    rows = found.results(model_dirs, options.metric, split=options.split)
    if options.format == "csv":
        sys.stdout.write(found.results_csv(rows, options.metric))
    else:
        make_console().print(found.results_table(rows, options.metric))
    if options.picture:
        from resnet_tpu.reports.curves import draw_results
        from resnet_tpu.reports.style import write_png

        write_png(draw_results(rows, options.metric), options.picture)
