"""`resnet-tpu predict`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.arguments import Parser
from resnet_tpu.cli.options import add_run_options, configure, fill
from resnet_tpu.options import option, options_of
from resnet_tpu.overrides import read_run


@dataclass(frozen=True)
class PredictOptions:
    """What `predict` reads and writes."""

    split: Literal["test", "validation", "train"] = option("test", "Images of data_dir to predict if none are named.")
    format: Literal["table", "csv", "json"] = option("table", "How to print the predictions.")
    top_k: int = option(5, "Classes to name for each image.", at_least=1)
    output_dir: str = option("", "Folder for predictions and, with known labels, per-class figures and pictures.")


def predict(arguments: Sequence[str]) -> None:
    """Name the classes of images: of files, of folders, or of a split of the data."""
    parser = Parser(
        "resnet-tpu predict",
        f"{predict.__doc__} With known labels also the accuracy and what was mistaken for what.",
        usage="CHECKPOINT [IMAGE_OR_FOLDER ...] [options]",
        examples=(
            "resnet-tpu predict runs/flowers rose.jpg tulips/",
            "resnet-tpu predict runs/flowers --split=test --output_dir=report",
            "resnet-tpu predict runs/flowers/checkpoints/1000 photos --format=csv --top_k=1",
        ),
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="A checkpoint, or a model_dir: its newest one.")
    parser.add_argument(
        "images", metavar="IMAGE_OR_FOLDER", nargs="*", default=[], help="Default: the test split of data_dir."
    )
    own = options_of("predict", PredictOptions)
    parser.add_options("what to do", own.values())
    add_run_options(parser, "data", "eval", "run")
    given = parser.parse(arguments)
    checkpoint, images = given.pop("checkpoint"), given.pop("images")
    options = fill(PredictOptions, {name: given.pop(name) for name in own if name in given})
    layers = [found] if (found := read_run(checkpoint)) else []
    config = configure({**given, "model_dir": checkpoint, "mode": "predict"}, layers)

    from resnet_tpu.train.predict import predict as predict_images

    predict_images(
        config,
        images,
        split=options.split,
        output_format=options.format,
        top_k=options.top_k,
        output_dir=options.output_dir,
    )
