"""The residual network: stem, groups of blocks, classifier. Source: arXiv:1512.03385, stride in the 3x3 convolution."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from resnet_tpu.models.layers import BatchNorm, Conv, ConvNorm, Dense, global_average, max_pool


@dataclass(frozen=True)
class Architecture:
    """What makes one ResNet differ from another."""

    blocks_per_group: tuple[int, ...]
    bottleneck: bool
    width: int  # channels of the stem and of the first group's 3x3 convolutions; doubles with each group
    small_stem: bool = False  # 3x3 stride 1 and no pool, for small images
    zero_scale: bool = True  # last batch norm of every branch starts at 0: a new block is the identity
    bn_momentum: float = 0.9
    batch_norm_groups: int = 1


@dataclass(frozen=True)
class _Maker:
    """Makes the convolutions of one network, all with the same settings."""

    architecture: Architecture
    dtype: DTypeLike
    rng: np.random.Generator | None

    def __call__(
        self, in_features: int, out_features: int, size: int, stride: int = 1, *, last: bool = False
    ) -> ConvNorm:
        settings = self.architecture
        return ConvNorm(
            Conv(in_features, out_features, size, stride, dtype=self.dtype, rng=self.rng),
            BatchNorm(
                out_features,
                momentum=settings.bn_momentum,
                num_groups=settings.batch_norm_groups,
                zero_scale=last and settings.zero_scale,
            ),
        )


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions around a shortcut, `width` channels out."""

    expansion = 1

    def __init__(
        self, in_features: int, width: int, stride: int, *, project: bool, conv: Callable[..., ConvNorm]
    ) -> None:
        self.projection = conv(in_features, width, 1, stride) if project else None
        self.conv1 = conv(in_features, width, 3, stride)
        self.conv2 = conv(width, width, 3, last=True)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [n, h, w, in] -> [n, h/stride, w/stride, width]."""
        shortcut = x if self.projection is None else self.projection(x, train=train)
        x = nnx.relu(self.conv1(x, train=train))
        return nnx.relu(self.conv2(x, train=train) + shortcut)


class BottleneckBlock(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, `4 * width` channels out."""

    expansion = 4

    def __init__(
        self, in_features: int, width: int, stride: int, *, project: bool, conv: Callable[..., ConvNorm]
    ) -> None:
        self.projection = conv(in_features, 4 * width, 1, stride) if project else None
        self.conv1 = conv(in_features, width, 1)
        self.conv2 = conv(width, width, 3, stride)
        self.conv3 = conv(width, 4 * width, 1, last=True)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [n, h, w, in] -> [n, h/stride, w/stride, 4 * width]."""
        shortcut = x if self.projection is None else self.projection(x, train=train)
        x = nnx.relu(self.conv1(x, train=train))
        x = nnx.relu(self.conv2(x, train=train))
        return nnx.relu(self.conv3(x, train=train) + shortcut)


class ResNet(nnx.Module):
    """Normalised images in, logits out.

    Parameters lie under stem, group1/block1 ... and dense. The first block of every group has a projection shortcut,
    in all depths; groups after the first halve the image. Kernels come from `rng`; without it they are zeros.
    """

    def __init__(
        self, architecture: Architecture, num_classes: int, *, dtype: DTypeLike, rng: np.random.Generator | None
    ) -> None:
        conv = _Maker(architecture, dtype, rng)
        block_type = BottleneckBlock if architecture.bottleneck else BasicBlock
        self.pool = not architecture.small_stem
        self.stem = conv(
            3, architecture.width, 3 if architecture.small_stem else 7, 1 if architecture.small_stem else 2
        )
        self.blocks_per_group = architecture.blocks_per_group
        features = architecture.width
        for group, blocks in enumerate(architecture.blocks_per_group):
            width = architecture.width * 2**group
            members = nnx.Dict()
            for block in range(blocks):
                stride = 2 if group > 0 and block == 0 else 1
                members[f"block{block + 1}"] = block_type(features, width, stride, project=block == 0, conv=conv)
                features = width * block_type.expansion
            setattr(self, f"group{group + 1}", members)
        self.dense = Dense(features, num_classes, rng=rng)

    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """images [n, h, w, 3], normalised -> logits float32 [n, num_classes]. `train` moves the batch statistics."""
        x = nnx.relu(self.stem(images, train=train))
        if self.pool:
            x = max_pool(x)
        for group, blocks in enumerate(self.blocks_per_group):
            members = getattr(self, f"group{group + 1}")
            for block in range(blocks):  # by number: NNX sorts names, block10 before block2
                x = members[f"block{block + 1}"](x, train=train)
        return self.dense(global_average(x))
