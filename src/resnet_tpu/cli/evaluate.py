"""`resnet-tpu eval`."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from resnet_tpu.cli.arguments import Parser, fill
from resnet_tpu.cli.run_options import IN_EXPORT, IN_TRAINING, add_run_options, configure
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.options.fields import expand_home, option, options_of
from resnet_tpu.options.overrides import read_run


@dataclass(frozen=True)
class EvalOptions:
    """What `eval` does beside the options of a run."""

    watch: bool = option(False, "Follow a training: evaluate every new checkpoint, up to the last or eval_timeout.")


_TRAIN_STEPS = dataclasses.replace(
    OPTIONS["train_steps"], default=None, help="With watch: the last step to evaluate. Default: that of the training."
)


def evaluate(arguments: Sequence[str]) -> None:
    """Evaluate a checkpoint, or the newest of a run, on the validation images."""
    parser = Parser(
        "resnet-tpu eval",
        f"{evaluate.__doc__} Options that are not given are the run's own.",
        usage="CHECKPOINT [options]",
        examples=(
            "resnet-tpu eval runs/flowers",
            "resnet-tpu eval runs/flowers --watch --eval_timeout=3600      # beside a training",
            "resnet-tpu eval runs/flowers --data_dir=data/other_flowers",
            "resnet-tpu eval runs/flowers/checkpoints/1000                # recorded nowhere",
        ),
    )
    parser.add_argument(
        "model_dir",
        type=expand_home,
        metavar="CHECKPOINT",
        help="A model_dir: its newest, with the result recorded there. Or a checkpoint: the result is only shown.",
    )
    parser.add_options("what to do", [*options_of("eval", EvalOptions).values(), _TRAIN_STEPS])
    add_run_options(parser, "data", "eval", "run", without=IN_TRAINING | IN_EXPORT)
    given = parser.parse(arguments)
    is_limited = "train_steps" in given
    watch = fill(EvalOptions, {"watch": given.pop("watch", False)}).watch
    own = read_run(given["model_dir"])
    if is_limited and not watch:
        raise UserError("train_steps", given["train_steps"], "it with --watch alone", "Add --watch, or leave it out.")
    config = configure({**given, "mode": "eval"}, [own] if own else [])

    from resnet_tpu.training.evaluate import evaluate_run

    evaluate_run(config, watch=watch, train_steps=config.train.train_steps if is_limited else None)
