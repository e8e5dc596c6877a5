"""Prediction: names and probabilities for images, folders or a split, printed and reported."""

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import jax
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.data.class_names import check_classes
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.image_files import FileSource, FolderSource
from resnet_tpu.data.sources.source import Source, as_remote, raise_if_damaged
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.data.split import Split
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, DataConfig, require_config
from resnet_tpu.options.fields import GivenPath, Option, expand_home
from resnet_tpu.options.run_file import model_dir_of
from resnet_tpu.parallel import hosts
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.reports import prediction_report as report
from resnet_tpu.reports.console import make_console
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.reports.predictions import Predictions
from resnet_tpu.training.agreement import agree_on
from resnet_tpu.training.inference.one_pass import one_pass
from resnet_tpu.training.inference.trained import Trained, data_for_network, is_elsewhere, load_newest
from resnet_tpu.training.maths.step import make_output_step
from resnet_tpu.training.photos_seen import warn_of_training_photos

MOST_ROWS = 40
"""A split with more images is not listed on the terminal, only in the files of the report."""

log = logging.getLogger(__name__)

_NAMES_AT_ONCE = 64

_TOP_K = Option("top_k", (int,), default=5, at_least=1)

Format = Literal["table", "csv", "json"]


def predict(
    config: Config,
    images: GivenPath | Sequence[GivenPath] | None = None,
    *,
    split: Split = "test",
    output_format: Format = "table",
    top_k: int = 5,
    output_dir: GivenPath = "",
) -> Predictions:
    """Classifies image files and folders or, if none are named, a split of the data, and prints the result to stdout.

    config: the options of the run, as in `load_model(model_dir).config`; they decide how images are cropped.
    The network comes from the newest checkpoint of `model_dir`, which may itself be a checkpoint. Tables, CSV, JSON
    and, with labels, pictures go to `output_dir`. For a split of the run's own data the default is
    `model_dir/report/<split>`, unless `model_dir` is a checkpoint. top_k: how many classes to print for each image.
    Raises UserError, also for an empty list of images.
    """
    require_config(config)
    if output_format not in (known := get_args(Format)):
        raise UserError("output_format", repr(output_format), f"one of {', '.join(known)}", "Change the value.")
    top_k = _TOP_K.convert(top_k)
    config = config.replace(model_dir=model_dir_of(config.run.model_dir))
    paths = _paths_in(images)
    if images is not None and not paths:
        raise UserError("Images", "none", "at least one", "To predict a split of the data, leave them out.")
    output_dir = expand_home(output_dir)
    with hosts.connected(config.run):
        for folder in filter(None, (output_dir, config.lottery.lth_prediction_result_dir)):
            storage.check_writable(folder)  # in this block, because a process that fails ends all processes
        return _predict(config, paths, split, output_format, top_k, output_dir)


def _paths_in(images: GivenPath | Sequence[GivenPath] | None) -> list[str]:
    """The paths of one image or several; none for a split. Raises UserError for anything but paths."""
    if images is None:
        return []
    if isinstance(images, str | os.PathLike):
        return [expand_home(images)]
    return [expand_home(path) for path in (images if isinstance(images, Iterable) else [images])]


def _predict(
    config: Config, images: Sequence[str], split: Split, output_format: Format, top_k: int, output_dir: str
) -> Predictions:
    trained = load_newest(config)
    data = data_for_network(config.data, trained.config.data)
    source, num_images = open_images(data, images, split, trained.class_names, trained.config.data)
    warn_of_training_photos(folders.run_of(trained.path), source, split)
    source = evenly_spaced(source, num_images)
    if not (images or output_dir) and trained.belongs_to(config.run.model_dir):
        if trained.config.data.location and is_elsewhere(data, trained.config.data):
            do = "For a report, name a folder as output_dir."
            log.info("No report is written: %s are not the images of the run. %s", data.location, do)
        else:
            output_dir = storage.join(config.run.model_dir, "report", split)
            storage.check_writable(output_dir, "name another folder as output_dir")  # now, not after the work
    batch_size = config.eval.predict_batch_size or config.eval.eval_batch_size
    agree_on(config, {"image" if images else split: source}, writes=False)
    predictions, indices = predict_source(trained, source, data, batch_size=batch_size)
    if hosts.is_first():
        show_predictions(predictions, output_format, top_k, num_named=len(source) if images else 0)
        if output_dir:
            write_report(output_dir, predictions, source, indices, top_k)
        if folder := config.lottery.lth_prediction_result_dir:
            log.info("Wrote %s", report.write_pickle(folder, predictions))
    return predictions


def open_images(
    data: DataConfig, images: Sequence[str], split: Split, class_names: list[str], run_data: DataConfig
) -> tuple[Source, int]:
    """The named images or, if there are none, those of a split of the data; and how many of them to predict.

    run_data: the options of the run. Its number of training images only sets the length of its epochs, so it does not
    limit how many are predicted. Raises UserError when there are no images, or they are of other classes.
    """
    if images:
        source: Source = FileSource(images, class_names)
        return source, len(source)
    source = open_source(data, split)
    check_classes(data.location, source.class_names, class_names)
    num_images = data.num_images(split)
    if num_images is None or (split == "train" and num_images == run_data.num_train_images):
        num_images = len(source)
    return source, min(num_images, len(source))


def predict_source(
    trained: Trained, source: Source, data: DataConfig, *, batch_size: int
) -> tuple[Predictions, np.ndarray]:
    """Predictions for the images of `source`, and the index of each in it; damaged images are left out.

    Raises NonFiniteError, naming the step of these weights and the batch, when a probability is not finite, and
    UserError when all are damaged.
    """
    predict_step = make_output_step(trained.network, "probabilities", device=trained.mesh.devices.flat[0])

    def predict_batch(batch: DeviceBatch) -> dict[str, jax.Array]:
        probabilities = predict_step(trained.params, trained.batch_stats, batch["image"])
        return {"probabilities": probabilities, "label": batch["label"], "weight": batch["weight"]}

    blocks = one_pass(predict_batch, source, data, trained.mesh, batch_size=batch_size, title="predict")
    for number, block in enumerate(blocks, 1):
        title = f"Probabilities at step {trained.step}, batch {number} of {len(blocks)}"
        check_finite(title, block["probabilities"][block["weight"] > 0], trained.advice)
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    indices = np.flatnonzero(columns["weight"][: len(source)])
    check_any(indices)
    probabilities, labels = columns["probabilities"][indices], columns["label"][indices]
    return Predictions(names_of(source, indices.tolist()), probabilities, labels, trained.class_names), indices


def check_any(indices: np.ndarray) -> None:
    """Raises UserError if no image was kept, because all were damaged."""
    if not indices.size:
        raise UserError("Images", "only damaged ones", "at least one that can be read", "Replace them, or name others.")


def names_of(source: Source, indices: list[int]) -> list[str]:
    """The names of these images. Files in folders are not read again; remote images are fetched many at a time."""
    if isinstance(source, FileSource | FolderSource):
        names = source.names
        return [names[i] for i in indices]
    if (far := as_remote(source)) is None:
        return [source[i].name for i in indices]
    parts = (far.fetch(indices[i : i + _NAMES_AT_ONCE]) for i in range(0, len(indices), _NAMES_AT_ONCE))
    return [raise_if_damaged(sample).name for part in parts for sample in part]


def show_predictions(predictions: Predictions, output_format: Format, top_k: int, *, num_named: int) -> None:
    """Prints predictions to stdout: for a single named image only its classes; a large split is not listed.

    num_named: number of images that were named, including damaged ones; 0 for a split.
    """
    if output_format == "csv":
        sys.stdout.write(report.predictions_csv(predictions, k=top_k))
    elif output_format == "json":
        sys.stdout.write(report.predictions_json(predictions, k=top_k))
    elif num_named == 1:
        sys.stdout.write(report.prediction_text(predictions, k=top_k))
    else:
        console = make_console()
        if num_named or len(predictions.names) <= MOST_ROWS:
            console.print(report.predictions_table(predictions, k=top_k))
        if predictions.labelled.size:
            console.print(report.class_table(predictions))
        if summary := report.accuracy_text(predictions):
            console.print(summary)


def write_report(output_dir: str, predictions: Predictions, source: Source, indices: np.ndarray, top_k: int) -> None:
    """Writes tables, and with labels pictures, to `output_dir`. indices: the index in `source` of each image."""
    left_out = np.setdiff1d(np.arange(len(source)), indices).tolist()
    written = report.write_report(
        output_dir,
        predictions,
        left_out=[source.where(i) for i in left_out],
        image=lambda i: source[int(indices[i])].encoded,
        honour_exif=source.honour_exif,
        k=top_k,
    )
    log.info("Wrote %s", ", ".join(written))
