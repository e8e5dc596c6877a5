"""Which networks there are, by depth."""

import jax.numpy as jnp
import numpy as np

from resnet_tpu.config import ModelConfig
from resnet_tpu.errors import UserError
from resnet_tpu.models.resnet import Architecture, ResNet

SMALL_IMAGE_PX = 64
"""Images smaller than this would be one or two pixels wide after the ImageNet stem and four groups."""

_IMAGENET_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_CIFAR_DEPTHS = (20, 56, 110)


def find_architecture(model: ModelConfig, *, image_size: int, batch_norm_groups: int = 1) -> Architecture:
    """The network that the options ask for. Raises UserError for a depth that there is not."""
    depth = model.resnet_depth
    if depth in _CIFAR_DEPTHS:  # three groups of basic blocks on 32 px images
        network = Architecture(
            (depth // 6,) * 3, bottleneck=False, width=16, small_stem=True, zero_scale=False, bn_momentum=0.997
        )
    elif depth in _IMAGENET_BLOCKS:
        small = model.stem == "small" or (model.stem == "auto" and image_size < SMALL_IMAGE_PX)
        network = Architecture(_IMAGENET_BLOCKS[depth], bottleneck=depth >= 50, width=64, small_stem=small)
    else:
        depths = ", ".join(map(str, sorted((*_IMAGENET_BLOCKS, *_CIFAR_DEPTHS))))
        raise UserError("resnet_depth", depth, f"one of {depths}", "Change the value.")
    changes = {"width": model.resnet_width, "bn_momentum": model.bn_momentum, "batch_norm_groups": batch_norm_groups}
    settings = {name: value for name, value in changes.items() if value is not None}
    return Architecture(**(vars(network) | settings))


def build_model(
    model: ModelConfig, *, num_classes: int, image_size: int, seed: int | None = 0, batch_norm_groups: int = 1
) -> ResNet:
    """A new network with initial weights drawn from `seed`: the same on any device. With None, kernels are zeros."""
    architecture = find_architecture(model, image_size=image_size, batch_norm_groups=batch_norm_groups)
    rng = None if seed is None else np.random.default_rng(seed)
    return ResNet(architecture, num_classes, dtype=jnp.dtype(model.precision), rng=rng)
