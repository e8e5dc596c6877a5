"""Recipes for ImageNet: the original's defaults and its configurations for TPU slices."""

from typing import NamedTuple

from resnet_tpu.config import Config
from resnet_tpu.recipes.tables import look_up


def imagenet() -> Config:
    """`resnet-tpu train --recipe=imagenet --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run`.

    ResNet-50, 90 epochs at batch 1024. The original reports above 76 % top-1 in about 17 hours on a v2-8 with these
    options. They are the defaults.
    """
    return Config()


class Slice(NamedTuple):
    """What the original's configuration file for one size of TPU slice sets."""

    train_steps: int
    train_batch_size: int
    enable_lars: bool = False


CLOUD = {
    "v2-8": Slice(113854, 1024),
    "v2-32": Slice(28464, 4096),
    "v2-128": Slice(7116, 16384, enable_lars=True),
    "v2-256": Slice(3558, 32768, enable_lars=True),
    "v2-512": Slice(3558, 32768, enable_lars=True),
    "v3-8": Slice(113854, 1024),
    "v3-32": Slice(28464, 4096),
    "v3-64": Slice(14232, 8192),
    "v3-128": Slice(7116, 16384, enable_lars=True),
    "v3-256": Slice(3558, 32768, enable_lars=True),
    "v3-512": Slice(3558, 32768, enable_lars=True),
    "v3-1024": Slice(3558, 32768, enable_lars=True),
    "v3-2048": Slice(3558, 32768, enable_lars=True),
}
"""TPU slices by name, which ends in their number of cores. All train for 91 epochs, rounded up to whole steps."""

RANDAUGMENT = {"randaugment-8": Slice(225216, 1024), "randaugment-32": Slice(56304, 4096)}
"""Trainings with RandAugment by name, which ends in the number of TPU cores."""


def cloud(name: str) -> Config:
    """`resnet-tpu train --recipe=v3-32 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run`.

    ResNet-50 on ImageNet with the batch for a TPU slice: 91 epochs, of which the original's timings leave out the
    first, to at least 76 % top-1. From batch 16384 on with LARS and label smoothing. The whole training is one loop,
    cut by steps_per_eval; the values of single steps are not recorded.
    Raises UserError for a slice that is not in `CLOUD`.
    """
    own = look_up("TPU slice", name, CLOUD)
    return _on_slice(name, own).replace(
        iterations_per_loop=own.train_steps,
        enable_lars=own.enable_lars,
        label_smoothing=0.1 if own.enable_lars else 0.0,
    )


def randaugment(name: str) -> Config:
    """`resnet-tpu train --recipe=randaugment-8 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run`.

    ResNet-50 on ImageNet with two operations of RandAugment on each image: 180 epochs, for 8 or 32 TPU cores.
    Raises UserError for a name that is not in `RANDAUGMENT`.
    """
    return _on_slice(name, look_up("RandAugment on a TPU slice", name, RANDAUGMENT)).replace(
        iterations_per_loop=1000, augment_name="randaugment", randaug_num_layers=2, randaug_magnitude=9
    )


def _on_slice(name: str, own: Slice) -> Config:
    return imagenet().replace(
        train_steps=own.train_steps,
        train_batch_size=own.train_batch_size,
        eval_batch_size=1024,
        skip_host_call=True,
        num_cores=int(name.split("-")[1]),
    )
