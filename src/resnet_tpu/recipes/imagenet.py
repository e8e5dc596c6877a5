"""Recipes for ImageNet: the original's defaults and its configurations for TPU slices."""

from typing import NamedTuple

from resnet_tpu.config import Config
from resnet_tpu.errors import UserError, nearest


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


def cloud(name: str) -> Config:
    """`resnet-tpu train --recipe=v3-32 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run`.

    ResNet-50 on ImageNet with the batch for a TPU slice: 91 epochs, of which the original's timings leave out the
    first, to at least 76 % top-1. From batch 16384 on with LARS and label smoothing. The whole training is one loop,
    cut by steps_per_eval; the values of single steps are not recorded.
    Raises UserError for a slice that is not in `CLOUD`.
    """
    if name not in CLOUD:
        raise UserError("TPU slice", name, f"one of {', '.join(CLOUD)}", f"Choose one.{nearest(name, CLOUD)}")
    own = CLOUD[name]
    return imagenet().replace(
        train_steps=own.train_steps,
        train_batch_size=own.train_batch_size,
        eval_batch_size=1024,
        iterations_per_loop=own.train_steps,
        enable_lars=own.enable_lars,
        label_smoothing=0.1 if own.enable_lars else 0.0,
        skip_host_call=True,
        num_cores=int(name.split("-")[1]),
    )
