"""Recipes for ImageNet: the original's defaults, and recipes for TPU slices."""

from typing import Any

from resnet_tpu.recipes.family import Family

NUM_TRAIN_IMAGES = 1281167

_BATCHES = ("train_batch_size", "eval_batch_size")

IMAGENET = Family(
    summary="ResNet-50 on ImageNet, 90 epochs at batch 1024.",
    details=(
        "The original reports above 76 % top-1 in about 17 hours on a v2-8 with these options. They are the defaults."
    ),
    members={"imagenet": {}},
)


def _slices(generation: str, *cores: int) -> dict[str, int]:
    return {f"{generation}-{number}": number for number in cores}


CLOUD = _slices("v2", 8, 32, 128, 256, 512) | _slices("v3", 8, 32, 64, 128, 256, 512, 1024, 2048)
"""The TPU slices that the original has configuration files for, with their numbers of cores."""

MODERN = {
    **_slices("v4", 8, 32, 64, 128, 256),
    **_slices("v5e", 1, 4, 8, 16, 32, 64, 128, 256),
    **_slices("v5p", 8, 32, 64, 128, 256),
    **_slices("v6e", 1, 4, 8, 16, 32, 64, 128, 256),
}
"""TPU slices of later generations, with their numbers of cores: two per chip in v4 and v5p, one in v5e and v6e."""

RANDAUGMENT = {"randaugment-8": 8, "randaugment-32": 32}
"""Recipes with RandAugment, with their numbers of TPU cores."""


def _by_batch(cores: int) -> dict[str, Any]:
    """91 epochs, rounded up to whole steps, with the options that a batch of this size needs."""
    train_batch_size = min(128 * cores, 32768)
    is_large = train_batch_size >= 16384
    return {
        "train_batch_size": train_batch_size,
        "train_steps": -(-91 * NUM_TRAIN_IMAGES // train_batch_size),
        "enable_lars": is_large,
        "label_smoothing": 0.1 if is_large else 0.0,
        "skip_host_call": True,
    }


def cloud(cores: int) -> dict[str, Any]:
    """The options for a slice of v2 or v3 with this many cores."""
    values = _by_batch(cores)
    return values | {"eval_batch_size": 1024, "iterations_per_loop": values["train_steps"], "num_cores": cores}


ORIGINAL_SLICES = Family(
    summary="ResNet-50 on ImageNet with the batch size for a TPU slice, 91 epochs.",
    details=(
        "The original reports at least 76 % top-1. The rule behind the original's files is 128 images per core, at "
        "most 32768 in all; batches of 16384 or more use LARS and label smoothing. Evaluation and metrics come every "
        "1,251 steps."
    ),
    members={name: cloud(cores) for name, cores in CLOUD.items()},
    sets=_BATCHES,
)


def modern(cores: int) -> dict[str, Any]:
    """The options for a slice of a later generation with this many cores."""
    eval_batch_size = min(128 * cores, 4096)
    return _by_batch(cores) | {
        "eval_batch_size": eval_batch_size, "iterations_per_loop": 100, "steps_per_eval": "5epochs"
    }  # fmt: skip


LATER_SLICES = Family(
    summary=(
        "ResNet-50 on ImageNet for a TPU slice of a later generation: batch size, 91 epochs, learning rate and LARS "
        "are those for the original's slice with the same number of cores."
    ),
    details=(
        "On v4 and v5p, where two cores are one device, batch norm sees 256 images. Evaluation comes every five "
        "epochs; metrics come every 100 steps, which is every few seconds."
    ),
    members={name: modern(cores) for name, cores in MODERN.items()},
    sets=_BATCHES,
)


def randaugment(cores: int) -> dict[str, Any]:
    """The options with RandAugment for this many cores."""
    return {
        "train_batch_size": 128 * cores,
        "train_steps": 225216 * 8 // cores,
        "eval_batch_size": 1024,
        "iterations_per_loop": 1000,
        "skip_host_call": True,
        "num_cores": cores,
        "augment_name": "randaugment",
        "randaug_num_layers": 2,
        "randaug_magnitude": 9,
    }


WITH_RANDAUGMENT = Family(
    summary=(
        "ResNet-50 on ImageNet with two operations of RandAugment on each image: 180 epochs, for 8 or 32 TPU cores."
    ),
    members={name: randaugment(cores) for name, cores in RANDAUGMENT.items()},
    sets=("resnet_depth", *_BATCHES),
)
