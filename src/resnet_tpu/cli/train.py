"""`resnet-tpu train`, and what `mode` says for it and for the original's flags."""

from collections.abc import Sequence

from resnet_tpu.cli.arguments import Parser
from resnet_tpu.cli.run_options import add_training_options, check_data, configure_training
from resnet_tpu.config import Config, LotteryConfig
from resnet_tpu.errors import UserError


def train(arguments: Sequence[str]) -> None:
    """Train on images, evaluate along the way, keep checkpoints; go on where model_dir stopped."""
    parser = Parser(
        "resnet-tpu train",
        f"{train.__doc__}\n\nOptions add up, later over earlier: defaults, --recipe, --config_file, "
        "--params_override, single options.",
        usage="--data_dir=FOLDER --model_dir=FOLDER [options]",
        examples=(
            "resnet-tpu train --recipe=flowers_cpu --data_dir=flower_photos --model_dir=runs/flowers",
            "resnet-tpu train --recipe=flowers --data_dir=data/flowers --model_dir=runs/flowers --train_steps=90epochs",
            "resnet-tpu train --init_from=resnet50.safetensors --data_dir=data/flowers --model_dir=runs/tuned",
            "resnet-tpu train --config_file=mine.yaml --params_override=train_batch_size=256,seed=1",
            "resnet-tpu train --data_dir=synthetic --model_dir=runs/speed --train_steps=100    # measure speed",
        ),
    )
    add_training_options(parser)
    config = configure_training(parser.parse(arguments))
    if config.run.mode not in ("train", "train_and_eval"):
        raise UserError("mode", config.run.mode, "train or train_and_eval", f"See resnet-tpu {config.run.mode} --help.")
    check_data(config, without="to measure speed without images")
    run(config)


def run(config: Config, *, last_step: int | str | None = None) -> None:
    """Does what `mode` says: for this program and for `resnet_main`.

    last_step: where mode eval ends, or epochs; None: with the training that it follows.
    """
    config.run.require_model_dir()
    if config.run.mode == "eval":
        from resnet_tpu.train.evaluate import evaluate_run

        evaluate_run(config, watch=True, train_steps=last_step)
    elif config.run.mode == "predict":
        from resnet_tpu.train.predict import predict as predict_images

        predict_images(config, split="validation" if config.lottery.lth_prediction_result_dir else "test")
    else:
        from resnet_tpu.export.export import check_export, export_run

        if config.eval.export_dir:
            check_export(config.eval)  # mistakes show before the training, not after it
        _train(config)
        if config.eval.export_dir:
            export_run(config)


def _train(config: Config) -> None:
    """Trains; with flags of the pruning fork as they say."""
    if config.lottery == LotteryConfig():
        from resnet_tpu.train.loop import train as train_run

        train_run(config)
    else:
        from resnet_tpu.prune.lottery import train_lottery

        train_lottery(config)
