"""`resnet-tpu eval`."""

import dataclasses
from dataclasses import dataclass

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import EXPORT_ONLY, LIKE_THE_RUN, configure, groups_for_runs
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.options.fields import option, options_of
from resnet_tpu.options.run_file import read_run


@dataclass(frozen=True)
class EvalOptions:
    """Options of `eval` besides those of a run."""

    watch: bool = option(
        False,
        "Follow a run: whenever a new checkpoint appears, evaluate the newest, until the last one or eval_timeout.",
    )


_PREDICTION_ONLY = frozenset({"num_train_images", "num_test_images", "predict_batch_size", "export_moving_average"})
_TRAIN_STEPS = dataclasses.replace(
    OPTIONS["train_steps"], default=None, help="With watch: the last step to evaluate. Default: the run's last step."
)


@Command(
    "resnet-tpu eval",
    LIKE_THE_RUN,
    examples=(
        "resnet-tpu eval runs/flowers",
        "resnet-tpu eval runs/flowers --watch --eval_timeout=3600      # while training runs",
        "resnet-tpu eval runs/flowers --data_dir=data/other_flowers",
        "resnet-tpu eval runs/flowers/checkpoints/1000                # not recorded",
    ),
    arguments=(
        Argument(
            "model_dir",
            "CHECKPOINT",
            "A model_dir: evaluates its newest checkpoint and records the result. A checkpoint: only shows the result.",
        ),
    ),
    groups=[
        Group("what to do", {**options_of(EvalOptions), _TRAIN_STEPS.name: _TRAIN_STEPS}),
        *groups_for_runs(without=EXPORT_ONLY | _PREDICTION_ONLY),
    ],
)
def evaluate(given: Given) -> None:
    """Evaluate a checkpoint, or a run's newest one, on the validation images."""
    watch = given.fill(EvalOptions).watch
    for name in ("train_steps", "eval_timeout"):
        if not watch and (value := given.values.get(name)) is not None:
            raise UserError(name, value, "it only with --watch", "Add --watch, or leave it out.")
    own, last = read_run(given.values["model_dir"]), given.values.get("train_steps")
    config = configure({**given.values, "mode": "eval"}, own)

    from resnet_tpu.training.inference.evaluate_run import await_options, evaluate_run

    if watch and own is None:
        config = configure({**given.values, "mode": "eval"}, await_options(config))
    evaluate_run(config, watch=watch, train_steps=None if last is None else config.train.train_steps)
