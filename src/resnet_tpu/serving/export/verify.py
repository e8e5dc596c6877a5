"""Compares a bundle with the network it was made from, on the same images."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from resnet_tpu.data.sources.source import Source
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.data.split import NoSplitError, Split
from resnet_tpu.errors import UserError
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import PREPROCESSING, Config, DataConfig
from resnet_tpu.serving.export.bundle import Bundle
from resnet_tpu.serving.export.classifier import Classifier, load_classifier, softmax
from resnet_tpu.serving.export.predict import BATCH_SIZE, run_source
from resnet_tpu.training.inference.predict import open_images
from resnet_tpu.training.inference.trained import Trained, data_for_network, load_newest
from resnet_tpu.training.maths.step import make_output_step

TOLERANCE = 1e-5
"""How much the logits of a float32 form may differ, relative to the largest |logit|, or to 1 if that is larger."""

ACCELERATOR_TOLERANCE = 2e-2
"""The same for StableHLO on a GPU or TPU, which rounds the factors of float32 products to TF32 or bfloat16."""


@dataclass(frozen=True)
class Comparison:
    """One way to compute the network, compared with the trained network in float32 over the same images.

    logits, probabilities: the largest difference. same: the number of images whose most probable class is the same.
    top_1: accuracy on the labelled images, None without any. images_per_second: None when there is only one batch.
    """

    name: str
    logits: float
    probabilities: float
    same: int
    num_images: int
    top_1: float | None
    images_per_second: float | None


class Expected(NamedTuple):
    """The reference for a bundle: the trained network, and the images of `source`."""

    trained: Trained
    source: Source
    data: DataConfig


def open_expected(config: Config, images: Sequence[str], *, split: Split | None, num_images: int) -> Expected:
    """Opens the newest checkpoint of `model_dir`, and `images` or, if empty, `num_images` of a split of the data.

    split: by default test, or validation if there is no test. Raises UserError if there are no images, or if their
    classes differ from those of the network.
    """
    trained = load_newest(config)
    data = data_for_network(config.data, trained.config.data, also=PREPROCESSING)
    try:
        source, there = open_images(data, images, split or "test", trained.class_names, trained.config.data)
    except NoSplitError:
        if split:
            raise
        source, there = open_images(data, images, "validation", trained.class_names, trained.config.data)
    source = evenly_spaced(source, min(num_images, there))
    return Expected(trained, source, data)


def verify(bundle: Bundle, expected: Expected) -> list[Comparison]:
    """Compares every form of the bundle with the trained network.

    Raises UserError when the logits of a float32 form differ from the network's by more than the tolerance, and
    NonFiniteError when a form computes logits that are not finite.
    """
    trained, source, data = expected
    reference: np.ndarray | None = None
    comparisons = []
    for name, run in _classifiers(bundle, trained):
        timed = _Timed(run)
        logits, labels, _ = run_source(
            timed, source, data, batch_size=BATCH_SIZE, title=f"verify {name}",
            what=f"Logits of {name}, step {trained.step}",
            advise=trained.advice,
        )  # fmt: skip
        reference = logits if reference is None else reference
        comparisons.append(_compare(name, logits, reference, labels, timed.rate()))
        if name in ("stablehlo", "onnx", "savedmodel"):
            _check(comparisons[-1], reference)
    return comparisons


def _classifiers(bundle: Bundle, trained: Trained) -> Iterator[tuple[str, Classifier]]:
    """The name of each way to compute logits, the reference first."""
    yield "trained network, float32", _live(trained, "float32")
    if trained.config.model.precision != "float32":
        yield f"trained network, {trained.config.model.precision}", _live(trained, trained.config.model.precision)
    for form in bundle.forms:
        if form == "savedmodel":
            from resnet_tpu.serving.export.savedmodel import load_savedmodel

            yield form, load_savedmodel(bundle)
        else:
            yield form, load_classifier(bundle, form, output="logits")


def _live(trained: Trained, precision: str) -> Classifier:
    output_step = make_output_step(network_of(trained.config.replace(precision=precision)), "logits")
    params, batch_stats = jax.device_put(  # on this process only
        jax.tree.map(np.asarray, (trained.params, trained.batch_stats))
    )

    def run(images: np.ndarray) -> np.ndarray:
        with jax.default_matmul_precision("highest"):
            return np.asarray(output_step(params, batch_stats, jnp.asarray(images)))

    return run


class _Timed:
    """Calls `run` and measures the time of all batches but the first, which includes compilation."""

    def __init__(self, run: Classifier) -> None:
        self._run, self._calls, self._images, self._seconds = run, 0, 0, 0.0

    def __call__(self, images: np.ndarray) -> np.ndarray:
        start = time.perf_counter()
        result = self._run(images)
        if self._calls:
            self._seconds += time.perf_counter() - start
            self._images += len(images)
        self._calls += 1
        return result

    def rate(self) -> float | None:
        """Images per second."""
        return self._images / self._seconds if self._images else None


def _compare(
    name: str, logits: np.ndarray, reference: np.ndarray, labels: np.ndarray, rate: float | None
) -> Comparison:
    predicted, known = logits.argmax(1), labels >= 0
    return Comparison(
        name,
        float(np.abs(logits - reference).max()),
        float(np.abs(softmax(logits) - softmax(reference)).max()),
        int((predicted == reference.argmax(1)).sum()),
        len(logits),
        float((predicted == labels)[known].mean()) if known.any() else None,
        rate,
    )


def _check(comparison: Comparison, reference: np.ndarray) -> None:
    rounds = comparison.name == "stablehlo" and jax.default_backend() != "cpu"
    limit = (ACCELERATOR_TOLERANCE if rounds else TOLERANCE) * max(1.0, float(np.abs(reference).max()))
    if not comparison.logits <= limit:
        raise UserError(
            f"Form {comparison.name}",
            f"logits that differ by {comparison.logits:.2g} from those of the trained network",
            f"at most {limit:.2g}",
            "Nothing was exported. Upgrade the package that runs this form, or report the fault.",
        )


def files_table(bundle: Bundle) -> Table:
    """The files of a bundle and their sizes, for a terminal."""
    title = f"{bundle.name}, version {bundle.version}"
    table = Table("file", title=title, min_width=len(title))
    table.add_column("MB", justify="right")
    for name, (size, _) in bundle.files.items():
        table.add_row(name, f"{size / 1e6:.2f}")
    return table


def comparisons_table(comparisons: Sequence[Comparison]) -> Table:
    """The comparisons for a terminal."""
    table = Table(title=f"Compared with the trained network, on {comparisons[0].num_images} images")
    table.add_column("form", overflow="fold")
    for title in ("logits differ by", "probabilities by", "same class", "top-1", "images/s"):
        table.add_column(title, justify="right")
    for index, comparison in enumerate(comparisons):
        table.add_row(
            comparison.name,
            "" if index == 0 else f"{comparison.logits:.1e}",
            "" if index == 0 else f"{comparison.probabilities:.1e}",
            "" if index == 0 else f"{comparison.same} of {comparison.num_images}",
            "" if comparison.top_1 is None else f"{comparison.top_1:.2%}",
            "" if comparison.images_per_second is None else f"{comparison.images_per_second:.0f}",
        )
    return table
