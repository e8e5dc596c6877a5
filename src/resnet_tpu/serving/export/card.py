"""The model card: the public description of a bundle's network."""

import contextlib
import datetime
from typing import Any

import numpy as np

from resnet_tpu import __version__
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.data.class_names import are_same_classes
from resnet_tpu.data.manifest import Manifest, read_manifest
from resnet_tpu.data.sources.labels import make_labels
from resnet_tpu.errors import UserError
from resnet_tpu.reports.metrics import evaluation_at
from resnet_tpu.serving.export.fold import Folded
from resnet_tpu.training.inference.trained import Trained

_METRICS = ("top_1_accuracy", "top_5_accuracy", "loss")


def make_card(
    trained: Trained, folded: Folded, *, name: str, averaged: bool, warmup_batch_sizes: tuple[int, ...]
) -> dict[str, Any]:
    """The model card of a trained network; `docs/export.md` explains the keys. It contains no paths.

    averaged: whether moving averages were asked for, if the network has any.
    """
    config = trained.config
    kernels = [array for key, array in folded.weights.items() if key.endswith("/kernel")]
    card: dict[str, Any] = {
        "name": name,
        "network": f"ResNet-{config.model.resnet_depth}",
        "step": trained.step,
        "parameters": sum(array.size for array in folded.weights.values()),
        "density": round(
            sum(np.count_nonzero(kernel) for kernel in kernels) / sum(kernel.size for kernel in kernels), 6
        ),
        "moving_average": averaged and config.optimizer.keeps_average,
        "image_size": config.data.image_size,
        "resize_method": config.data.resize_method,
        "crop_pct": config.data.crop_pct,
        "eval_preprocessing": config.data.eval_preprocessing,
        "mean_rgb": list(config.model.mean_rgb),
        "stddev_rgb": list(config.model.stddev_rgb),
        "weights_origin": config.model.weights_origin or None,
        "weights_licence": config.model.weights_licence or None,
        "metrics": _metrics(trained) if averaged or not config.optimizer.keeps_average else {},  # of other weights
        "data": _data(trained),
        "trained": _date(reading.written_at(trained.path)),
        "exported": _date(datetime.datetime.now(datetime.UTC).timestamp()),
        "package_version": __version__,
        "warmup_batch_sizes": list(warmup_batch_sizes),
        "class_names": folded.class_names,
    }
    return {key: value for key, value in card.items() if value not in (None, {})}


def _metrics(trained: Trained) -> dict[str, Any]:
    """The metrics that the run recorded for this checkpoint on its validation images; empty if there are none."""
    run = folders.run_of(trained.path)
    measured = evaluation_at(run, trained.step) if run else {}
    known = {name: round(measured[name], 6) for name in _METRICS if name in measured}
    return {"split": "validation", **known} if measured else {}


def _data(trained: Trained) -> dict[str, int]:
    """The number of images that the run takes from each split that has been counted."""
    data = trained.config.data
    counts = {"train": data.num_train_images}
    with contextlib.suppress(UserError, OSError):  # the data may have been deleted by now; the network needs none
        manifest = read_manifest(data.data_dir) if data.data_dir else None
        if manifest and _is_manifest_of(trained, manifest):
            for split in ("validation", "test"):
                if entry := manifest.splits.get(split):
                    counts[split] = min(entry.num_images, data.num_images(split) or entry.num_images)
    return {split: count for split, count in counts.items() if count}


def _is_manifest_of(trained: Trained, manifest: Manifest) -> bool:
    """Whether it can describe the data of this training: other data may lie in their folder by now."""
    data, train = trained.config.data, manifest.splits.get("train")
    if train is None or train.num_images != data.num_train_images:
        return False
    return are_same_classes(make_labels(data, manifest.class_names).names, trained.class_names)


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
