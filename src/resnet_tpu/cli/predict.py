"""`resnet-tpu predict`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import (
    EXPORT_ONLY,
    LIKE_THE_RUN,
    configure,
    configure_like_run,
    groups_for_runs,
    without_old_counts,
)
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.options.overrides import Layer


@dataclass(frozen=True)
class PredictOptions:
    """What `predict` reads and writes."""

    split: Literal["train", "validation", "test"] = option("test", "Images of data_dir to predict if none are given.")
    format: Literal["table", "csv", "json"] = option("table", "How to print the predictions.")
    form: Literal["stablehlo", "onnx", "int8"] | None = option(
        None, "Which form of a bundle to run. Default: onnx on a CPU if the bundle has it, else stablehlo."
    )
    top_k: int = option(5, "Classes to show for each image.", at_least=1)
    output_dir: FilePath = option("", "Folder for predictions and, with known labels, per-class figures and pictures.")


@Command(
    "resnet-tpu predict",
    f"If labels are known, also shows the accuracy and which classes were confused. {LIKE_THE_RUN}",
    examples=(
        "resnet-tpu predict runs/flowers rose.jpg tulips/",
        "resnet-tpu predict runs/flowers --split=test --output_dir=report",
        "resnet-tpu predict runs/flowers/checkpoints/1000 photos --format=csv --top_k=1",
        "resnet-tpu predict exported/1795181234 rose.jpg                  # a bundle",
    ),
    arguments=(
        Argument("model_dir", "CHECKPOINT", "A checkpoint, a model_dir for its newest one, or a bundle."),
        Argument("images", "IMAGE_OR_FOLDER", "What to classify. Default: see --split.", is_required=False, many=True),
    ),
    groups=[
        Group("what to do", PredictOptions),
        *groups_for_runs(without={"eval_timeout", *EXPORT_ONLY}),
    ],
)
def predict(given: Given) -> None:
    """Classify images: files, folders, or a split of the data."""
    options, values = given.fill(PredictOptions), {**given.values, "mode": "predict"}
    checkpoint, images = values["model_dir"], values["images"]
    if images and "split" in values:
        raise UserError("split", values["split"], "it only without images", "Leave it out, or the images.")

    from resnet_tpu.serving.export.bundle import find_bundle

    if bundle_path := find_bundle(checkpoint):
        _predict_with_bundle(bundle_path, images, options, values)
        return
    if options.form:
        do = f"Export it first: resnet-tpu export {shlex.quote(checkpoint)} exported, and give exported."
        raise UserError("form", options.form, "no form for a checkpoint: only bundles have forms", do)
    config = configure_like_run(values)

    from resnet_tpu.training.inference.predict import predict as predict_images

    predict_images(config, images or None, **_how(options))


def _predict_with_bundle(path: str, images: Sequence[str], options: PredictOptions, given: Mapping[str, Any]) -> None:
    from resnet_tpu.parallel import startup
    from resnet_tpu.serving.export.bundle import open_bundle
    from resnet_tpu.serving.export.predict import predict_with_bundle

    if "export_moving_average" in given:
        do = "Leave it out, or predict with the checkpoint."
        raise UserError("export_moving_average", given["export_moving_average"], "no choice: a bundle has one", do)
    bundle = open_bundle(path)
    config = configure(given, without_old_counts(Layer(path, bundle.config.flat()), given))
    startup.start_jax(use_tpu=config.run.use_tpu)
    predict_with_bundle(bundle, config, images, form=options.form, **_how(options))


def _how(options: PredictOptions) -> dict[str, Any]:
    return {
        "split": options.split,
        "output_format": options.format,
        "top_k": options.top_k,
        "output_dir": options.output_dir,
    }
