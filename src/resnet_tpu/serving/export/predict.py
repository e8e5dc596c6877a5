"""Predicts with a bundle, with the same images, formats and reports as `training.inference.predict`."""

from collections.abc import Callable, Sequence

import numpy as np

from resnet_tpu import storage
from resnet_tpu.data.loader.batches import eval_batches
from resnet_tpu.data.sources.source import Source
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.data.split import Split
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.reports.predictions import Predictions
from resnet_tpu.reports.progress import track
from resnet_tpu.serving.export.bundle import Bundle, Form
from resnet_tpu.serving.export.classifier import Classifier, load_classifier
from resnet_tpu.training.inference.predict import (
    Format,
    check_any,
    names_of,
    open_images,
    show_predictions,
    write_report,
)
from resnet_tpu.training.inference.trained import data_for_network

BATCH_SIZE = 32
"""Default limit of the batch size: no form runs larger batches faster on a CPU."""

_DO = "Choose another form of it (--form), or export an earlier checkpoint."


def predict_with_bundle(
    bundle: Bundle,
    config: Config,
    images: Sequence[str],
    *,
    form: Form | None,
    split: Split,
    output_format: Format,
    top_k: int,
    output_dir: str,
) -> Predictions:
    """Predicts image files and folders, or a split of the data, as `training.inference.predict` does, in one process.

    form: None for the default of `load_classifier`. Raises UserError.
    """
    if output_dir:
        storage.check_writable(output_dir)
    classify = load_classifier(bundle, form)
    data = data_for_network(config.data, bundle.config.data)
    source, num_images = open_images(data, images, split, bundle.class_names, bundle.config.data)
    source = evenly_spaced(source, num_images)
    batch_size = config.eval.predict_batch_size or min(config.eval.eval_batch_size, BATCH_SIZE)
    what = f"Probabilities of {bundle.path}, step {bundle.description.get('step')}"
    outputs, labels, kept = run_source(classify, source, data, batch_size=batch_size, what=what, advise=lambda: _DO)
    predictions = Predictions(names_of(source, kept.tolist()), outputs, labels, bundle.class_names)
    show_predictions(predictions, output_format, top_k, num_named=len(source) if images else 0)
    if output_dir:
        write_report(output_dir, predictions, source, kept, top_k)
    return predictions


def run_source(
    run: Classifier,
    source: Source,
    data: DataConfig,
    *,
    batch_size: int,
    title: str = "predict",
    what: str,
    advise: Callable[[], str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs of `run` for the images of `source`, their labels (-1: unknown), and the index of each.

    Damaged images are skipped if the data options say so. Raises UserError if all are damaged, and NonFiniteError for a
    batch with outputs that are not finite. Its message says `what` the outputs are, and what `advise` returns.
    """
    batch_size = min(batch_size, len(source))
    batches = eval_batches(source, data, batch_size=batch_size)
    outputs, labels, kept = [], [], []
    total = -(-len(source) // batch_size)
    for number, batch in enumerate(track(batches, title, total=total)):
        whole = batch["weight"] > 0
        found = run(batch["image"])[whole]
        check_finite(f"{what}, batch {number + 1} of {total}", found, advise)
        outputs.append(found)
        labels.append(batch["label"][whole])
        kept.append(np.flatnonzero(whole) + number * batch_size)
    check_any(np.concatenate(kept))
    return np.concatenate(outputs), np.concatenate(labels), np.concatenate(kept)
