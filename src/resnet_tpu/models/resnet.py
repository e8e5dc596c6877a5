"""The residual network: stem, groups of blocks, classifier. Source: arXiv:1512.03385, stride in the 3x3 convolution."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from resnet_tpu.models.architecture import Architecture, PoolPadding
from resnet_tpu.models.blocks import BasicBlock, BottleneckBlock, ConvNorm, Maker
from resnet_tpu.models.layers import Dense, global_average
from resnet_tpu.models.normed import Activations
from resnet_tpu.models.training import Training


class DeepStem(nnx.Module):
    """Three 3x3 convolutions, the first of stride 2, in place of the 7x7, and the max-pool.

    Source: arXiv:1812.01187, figure 2.
    """

    def __init__(self, width: int, pool_padding: PoolPadding | None, *, make: Maker) -> None:
        half = max(1, width // 2)
        self.conv1 = make.conv_act(3, half, 3, 2)
        self.conv2 = make.conv_act(half, half, 3)
        self.conv3 = _stem_conv(half, width, 3, 1, pool_padding, make)

    def lazy(self, x: jax.Array, training: Training | None) -> Activations:
        """x [n, h, w, 3] -> [n, h/2, w/2, width], half as high and wide with a max-pool; see `ConvNorm.lazy`."""
        for conv in (self.conv1, self.conv2):
            x = conv(x, training)
        return self.conv3.lazy(x, training)


def _stem_conv(
    in_features: int, out_features: int, size: int, stride: int, pool_padding: PoolPadding | None, make: Maker
) -> ConvNorm:
    """The last convolution of the stem and the max-pool; pre-activated blocks begin with a norm of their own."""
    if make.architecture.pre_activation:
        return ConvNorm(make.conv(in_features, out_features, size, stride), None, pool_padding)
    return make.conv_act(in_features, out_features, size, stride, pool_padding=pool_padding)


class ResNet(nnx.Module):
    """Normalised images in, logits out.

    Parameters lie under stem, pool (the convolution in place of the max-pool), group1/block1 ..., norm_out (of
    pre-activated networks) and dense. The first block of every group has a projection shortcut, in all depths (but see
    `project_first_group`); groups after the first halve the image. Kernels come from `rng`; without it they are zeros.
    """

    def __init__(
        self, architecture: Architecture, num_classes: int, *, dtype: DTypeLike, rng: np.random.Generator | None
    ) -> None:
        make = Maker(architecture, dtype, rng)
        width, small = architecture.width, architecture.small_stem
        replaces = architecture.replace_stem_max_pool
        pool_padding = None if small or replaces else architecture.pool_padding
        if architecture.use_resnetd_stem:
            self.stem = DeepStem(width, pool_padding, make=make)
        else:
            self.stem = _stem_conv(3, width, 3 if small else 7, 1 if small else 2, pool_padding, make)
        self.pool = ConvNorm(make.conv(width, width, 3, 2), make.batch_norm(width)) if replaces else None
        features = self._add_groups(make)
        self.norm_out = make.norm_act(features) if architecture.pre_activation else None
        self.dropout = make.dropout()
        self.dense = Dense(features, num_classes, rng=rng)

    def _add_groups(self, make: Maker) -> int:
        """Makes group1 ..., and returns the channels that come out of the last."""
        settings = make.architecture
        block_type = BottleneckBlock if settings.bottleneck else BasicBlock
        self.blocks_per_group = settings.blocks_per_group
        features = settings.width
        for group, blocks in enumerate(settings.blocks_per_group, start=1):
            width = settings.width * 2 ** (group - 1)
            members = nnx.Dict()
            for block in range(1, blocks + 1):
                stride = 2 if group > 1 and block == 1 else 1
                members[f"block{block}"] = block_type(
                    features,
                    width,
                    stride,
                    inner=settings.inner(group, block),
                    group=group,
                    is_first=block == 1,
                    make=make,
                )
                features = width * block_type.expansion
            setattr(self, f"group{group}", members)
        return features

    def __call__(self, images: jax.Array, training: Training | None) -> jax.Array:
        """images [n, h, w, 3], normalised -> logits float32 [n, num_classes]. Training moves the batch statistics."""
        x: Any  # `Pending` up to the first block, if at all
        with jax.named_scope("stem"):  # the names stand in compiled programs and profiles
            x = self.stem.lazy(images, training)
        if self.pool is not None:
            with jax.named_scope("pool"):
                x = self.pool(x, training)
        for group, blocks in enumerate(self.blocks_per_group, start=1):
            members = getattr(self, f"group{group}")
            for block in range(1, blocks + 1):  # by number: NNX sorts names, block10 before block2
                with jax.named_scope(f"group{group}/block{block}"):
                    x = members[f"block{block}"](x, training)
        if self.norm_out is not None:
            with jax.named_scope("norm_out"):
                x = self.norm_out(x, training)
        with jax.named_scope("dense"):
            return self.dense(self.dropout(global_average(x), training))
