"""The blocks of a residual network, activated after their convolutions (arXiv:1512.03385) or before (arXiv:1603.05027).

The shortcut of a pre-activated block is its raw input, but a projection sees that input normalised and activated.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from resnet_tpu.models import cpu, fused, normed
from resnet_tpu.models.architecture import Architecture, PoolPadding
from resnet_tpu.models.dropping import DropBlock, DropConnect, Dropout
from resnet_tpu.models.joined import ConvParams, bottleneck
from resnet_tpu.models.layers import Conv, average_pool, global_average, max_pool
from resnet_tpu.models.normed import Activations, Pending
from resnet_tpu.models.norms import BatchNorm, EvoNormB0, EvoNormS0
from resnet_tpu.models.training import Training

Norm = BatchNorm | EvoNormB0 | EvoNormS0


class ConvNorm(nnx.Module):
    """A convolution, and the norm and the max-pool that follow it, if any."""

    def __init__(self, conv: Conv, norm: Norm | None, pool_padding: PoolPadding | None = None) -> None:
        self.conv = conv
        self.norm = norm
        self.pool_padding: PoolPadding | None = pool_padding

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x [n, h, w, in] -> [n, h', w', out]."""
        return normed.active(self.lazy(x, training))

    def lazy(self, x: jax.Array, training: Training | None) -> Activations:
        """The same, but for the norm and the activation behind a max-pool, which may be left to what comes next."""
        norm = self.norm
        if training is not None and isinstance(norm, BatchNorm):
            if norm.form == "cpu":
                return self._finish(self.pending(x)[0], norm)
            if norm.form == "tpu" and not norm.frozen:
                if self.pool_padding is not None and norm.relu:
                    return norm.pooled_conv(self.conv, x, self.pool_padding)
                if self.pool_padding is None and not norm.relu and self.conv.widens:
                    return norm.of_conv(self.conv, x)
        x = self.conv(x)
        x = x if norm is None else norm(x, training)
        return x if self.pool_padding is None else max_pool(x, self.pool_padding)

    def pending(self, x: Activations) -> tuple[Pending, jax.Array]:
        """The convolution in training, yet to be normalised, and x again: see `cpu.convolve`."""
        return self.batch_norm.after_conv(self.conv, x)

    @property
    def batch_norm(self) -> BatchNorm:
        """The norm. Raises TypeError where it is another, or none."""
        if not isinstance(self.norm, BatchNorm):
            raise TypeError(f"a convolution with a batch norm is expected, got {self.norm}")
        return self.norm

    def _finish(self, pending: Pending, norm: BatchNorm) -> jax.Array:
        if self.pool_padding is not None and norm.relu:
            return cpu.pool(pending, self.pool_padding)
        x = cpu.normalize(pending)
        x = nnx.relu(x) if norm.relu else x
        return x if self.pool_padding is None else max_pool(x, self.pool_padding)


def _chain(convs: Sequence[ConvNorm], projection: ConvNorm | None, x: jax.Array) -> jax.Array:
    """A block in training on a CPU, whose branch is these convolutions and nothing else."""
    branch, x = convs[0].pending(x)
    shortcut = x if projection is None else projection.pending(x)[0]
    for conv in convs[1:]:
        branch, _ = conv.pending(branch)
    return cpu.join(branch, shortcut)


@dataclass(frozen=True)
class Maker:
    """Makes the layers of one network, all with the same settings. Random places are numbered as they are made."""

    architecture: Architecture
    dtype: DTypeLike
    rng: np.random.Generator | None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def conv(self, in_features: int, out_features: int, size: int, stride: int = 1, *, bias: bool = False) -> Conv:
        """A convolution alone."""
        paired = self.architecture.joined_images if self.architecture.pairs_columns else 0
        return Conv(
            in_features, out_features, size, stride, dtype=self.dtype, rng=self.rng, bias=bias, paired_images=paired
        )

    def batch_norm(self, features: int, *, relu: bool = True, zero_scale: bool = False) -> BatchNorm:
        """A batch norm, whatever `norm_act_layer` says."""
        settings = self.architecture
        return BatchNorm(
            features,
            momentum=settings.bn_momentum,
            num_groups=settings.batch_norm_groups,
            frozen=settings.freeze_batch_norm,
            form=settings.form,
            relu=relu,
            zero_scale=zero_scale,
        )

    def norm_act(self, features: int) -> Norm:
        """The normalisation and activation that `norm_act_layer` asks for."""
        settings = self.architecture
        if settings.norm_act_layer == "evonorm_b0":
            return EvoNormB0(features, num_groups=settings.batch_norm_groups, frozen=settings.freeze_batch_norm)
        return EvoNormS0(features) if settings.norm_act_layer == "evonorm_s0" else self.batch_norm(features)

    def conv_act(
        self,
        in_features: int,
        out_features: int,
        size: int,
        stride: int = 1,
        *,
        pool_padding: PoolPadding | None = None,
    ) -> ConvNorm:
        """A convolution, normalised and activated, then pooled if so padded."""
        conv = self.conv(in_features, out_features, size, stride)
        return ConvNorm(conv, self.norm_act(out_features), pool_padding)

    def conv_linear(
        self, in_features: int, out_features: int, size: int, stride: int = 1, *, zero_scale: bool = False
    ) -> ConvNorm:
        """A convolution without activation, normalised unless the network is pre-activated."""
        conv = self.conv(in_features, out_features, size, stride)
        if self.architecture.pre_activation:
            return ConvNorm(conv, None)
        return ConvNorm(conv, self.batch_norm(out_features, relu=False, zero_scale=zero_scale))

    def dropblock(self, group: int) -> DropBlock:
        """One place of DropBlock in `group`, counted from 1."""
        settings = self.architecture
        return DropBlock(
            next(self._numbers), settings.dropblock_share(group), settings.dropblock_size, settings.batch_norm_groups
        )

    def drop_connect(self, group: int) -> DropConnect:
        """The place of drop connect in a block of `group`, counted from 1."""
        return DropConnect(next(self._numbers), self.architecture.drop_connect_share(group))

    def dropout(self) -> Dropout:
        """The place of dropout before the classifier."""
        return Dropout(next(self._numbers), self.architecture.dropout_rate)


class SqueezeExcite(nnx.Module):
    """Each channel times a share between 0 and 1 that follows from the means of all channels.

    Source: arXiv:1709.01507.
    """

    def __init__(self, features: int, *, make: Maker) -> None:
        squeezed = max(1, int(features * make.architecture.se_ratio))
        self.reduce = make.conv(features, squeezed, 1, bias=True)
        self.expand = make.conv(squeezed, features, 1, bias=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, features] -> the same shape and dtype."""
        means = global_average(x)[:, None, None, :]
        return x * nnx.sigmoid(self.expand(nnx.relu(self.reduce(means))))


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions around a shortcut, `inner` channels between them and `width` channels out."""

    expansion = 1

    def __init__(
        self,
        in_features: int,
        width: int,
        stride: int,
        *,
        inner: Sequence[int],
        group: int,
        is_first: bool,
        make: Maker,
    ) -> None:
        settings, (between,) = make.architecture, inner
        project = is_first and (group > 1 or settings.project_first_group)
        self.is_chained = settings.form == "cpu" and settings.has_plain_branches
        self.relu = fused.relu if settings.form == "tpu" else nnx.relu
        self.pools_shortcut = settings.resnetd_shortcut and stride == 2
        self.norm_in = make.norm_act(in_features) if settings.pre_activation else None
        shortcut_stride = 1 if self.pools_shortcut else stride
        self.projection = make.conv_linear(in_features, width, 1, shortcut_stride) if project else None
        self.conv1 = make.conv_act(in_features, between, 3, stride)
        self.conv2 = make.conv_linear(between, width, 3, zero_scale=settings.zero_scale)

    def __call__(self, x: Activations, training: Training | None) -> jax.Array:
        """x [n, h, w, in] -> [n, h/stride, w/stride, width]."""
        x = normed.active(x)
        if self.is_chained and training is not None:
            return _chain((self.conv1, self.conv2), self.projection, x)
        shortcut = x
        if self.norm_in is not None:
            x = self.norm_in(x, training)
        if self.projection is not None:
            shortcut = self.projection(average_pool(x) if self.pools_shortcut else x, training)
        x = self.conv2(self.conv1(x, training), training) + shortcut
        return self.relu(x) if self.norm_in is None else x


class BottleneckBlock(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, `inner` channels between them and `4 * width` channels out."""

    expansion = 4

    def __init__(
        self,
        in_features: int,
        width: int,
        stride: int,
        *,
        inner: Sequence[int],
        group: int,
        is_first: bool,
        make: Maker,
    ) -> None:
        settings, features, (before, after) = make.architecture, 4 * width, inner
        self.is_chained = settings.form == "cpu" and settings.has_plain_branches
        self.joined_images = settings.joined_images if settings.has_plain_branches else 0
        self.relu = fused.relu if settings.form == "tpu" else nnx.relu
        self.pools_shortcut = settings.resnetd_shortcut and stride == 2
        self.norm_in = make.norm_act(in_features) if settings.pre_activation else None
        shortcut_stride = 1 if self.pools_shortcut else stride
        self.projection = make.conv_linear(in_features, features, 1, shortcut_stride) if is_first else None
        self.dropblock_shortcut = make.dropblock(group)
        self.conv1 = make.conv_act(in_features, before, 1)
        self.dropblock1 = make.dropblock(group)
        self.conv2 = make.conv_act(before, after, 3, stride)
        self.dropblock2 = make.dropblock(group)
        self.conv3 = make.conv_linear(after, features, 1, zero_scale=settings.zero_scale)
        self.dropblock3 = make.dropblock(group)
        self.squeeze_excite = SqueezeExcite(features, make=make) if settings.se_ratio else None
        self.drop_connect = make.drop_connect(group)

    def __call__(self, x: Activations, training: Training | None) -> jax.Array:
        """x [n, h, w, in] -> [n, h/stride, w/stride, 4 * width]."""
        if training is not None and self.joined_images and normed.raw(x).shape[0] % self.joined_images == 0:
            return self._join(x)
        x = normed.active(x)
        if self.is_chained and training is not None:
            return _chain((self.conv1, self.conv2, self.conv3), self.projection, x)
        shortcut = x
        if self.norm_in is not None:
            x = self.norm_in(x, training)
        if self.projection is not None:
            shortcut = self.projection(average_pool(x) if self.pools_shortcut else x, training)
        shortcut = self.dropblock_shortcut(shortcut, training)
        x = self.dropblock1(self.conv1(x, training), training)
        x = self.dropblock2(self.conv2(x, training), training)
        x = self.conv3(x, training)
        if self.norm_in is not None:  # with pre-activation the original's branch ends here
            return x + shortcut
        x = self.dropblock3(x, training)
        if self.squeeze_excite is not None:
            x = self.squeeze_excite(x)
        return self.relu(self.drop_connect(x, training) + shortcut)

    def _join(self, x: Activations) -> jax.Array:
        """The block in training, see `joined.bottleneck`."""
        convs = [self.conv1, self.conv2, self.conv3] + ([] if self.projection is None else [self.projection])
        norms = [conv.batch_norm for conv in convs]
        params = (
            ConvParams(conv.conv.kernel[...], conv.batch_norm.scale[...], conv.batch_norm.bias[...]) for conv in convs
        )
        conv, num_groups = self.conv2.conv, norms[0].num_groups
        x = x if isinstance(x, Pending) else x.astype(conv.dtype)
        in_pairs = conv.stride == 1 and conv.can_pair(normed.raw(x))
        joined: Any = bottleneck(x, tuple(params), conv.stride, num_groups, norms[0].epsilon, in_pairs)
        y, moments = joined
        for norm, (mean, var), like in zip(norms, moments, (normed.raw(x), y, y, y), strict=False):
            norm.move(mean.mean(0), var.mean(0), like.size // like.shape[-1] // num_groups)
        return y
