"""Normalisation, with the activation that follows it. Images are NHWC."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resnet_tpu.models import cpu
from resnet_tpu.models.architecture import EPSILON, LayerForm, PoolPadding, evonorm_groups
from resnet_tpu.models.fused import conv_norm, pool
from resnet_tpu.models.layers import Conv
from resnet_tpu.models.normed import POSITIONS, Activations, Norm, Pending, group, moments, spread, widen
from resnet_tpu.models.paired import conv_pool
from resnet_tpu.models.training import Training


class BatchNorm(nnx.Module):
    """Batch normalization over N, H, W with float32 statistics, then ReLU with `relu`.

    Training normalises by the batch's own mean and biased variance, `num_groups` equal slices of the batch each by its
    own (one slice per device: the original's per-replica statistics), and moves `mean` and `var` towards the mean over
    the slices, with the unbiased variance: `var <- momentum * var + (1 - momentum) * n/(n-1) * batch_var`.
    Evaluation normalises by `mean` and `var`, and so does training when they are `frozen`. Source: arXiv:1502.03167.
    """

    def __init__(
        self,
        features: int,
        *,
        momentum: float,
        num_groups: int,
        frozen: bool = False,
        form: LayerForm = "plain",
        relu: bool = False,
        zero_scale: bool = False,
        epsilon: float = EPSILON,
    ) -> None:
        zeros, ones = np.zeros(features, np.float32), np.ones(features, np.float32)
        self.scale = nnx.Param(jnp.array(zeros if zero_scale else ones))
        self.bias = nnx.Param(jnp.array(zeros))
        self.mean = nnx.BatchStat(jnp.array(zeros))
        self.var = nnx.BatchStat(jnp.array(ones))
        self.momentum, self.num_groups, self.epsilon = momentum, num_groups, epsilon
        self.frozen, self.relu, self.form = frozen, relu, form

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x [n, h, w, features] -> the same shape and dtype."""
        y = self._by_running(x) if training is None or self.frozen else self._by_batch(x)
        return nnx.relu(y) if self.relu else y

    def _by_running(self, x: jax.Array) -> jax.Array:
        return self._normalize(x, self.mean[...], self.var[...])

    def _by_batch(self, x: jax.Array) -> jax.Array:
        if x.dtype == jnp.float32:
            wide = widen(x, self.num_groups)
            mean = wide.mean(POSITIONS)
            var = jnp.square(wide - spread(mean)).mean(POSITIONS)
        else:  # one pass less over the activations; what it rounds is below what half-precision activations have lost
            mean, var = moments(x, self.num_groups)
        self.move(mean.mean(0), var.mean(0), x.size // x.shape[-1] // self.num_groups)
        return self._normalize(group(x, self.num_groups), spread(mean), spread(var)).reshape(x.shape)

    def of_conv(self, conv: Conv, x: jax.Array) -> jax.Array:
        """self(conv(x)) in training, for a convolution that widens and a norm without ReLU; see `conv_norm`."""
        x = x.astype(conv.dtype)
        kernel = conv.kernel[...][0, 0]
        normed: Any = conv_norm(x, kernel, self.scale[...], self.bias[...], self.num_groups, self.epsilon)
        y, mean, var = normed
        self.move(mean.mean(0), var.mean(0), x.size // x.shape[-1] // self.num_groups)
        return y

    def pooled_conv(self, conv: Conv, x: jax.Array, padding: PoolPadding) -> Pending:
        """max_pool(self(conv(x)), padding) in training, for a norm with ReLU: see `fused.pool`."""
        # a channel with a negative scale is turned over, and its kernel with it
        sign = jax.lax.stop_gradient(jnp.where(self.scale[...] < 0, -1.0, 1.0))
        pooled: Any
        if conv.can_pair(x):
            kernel = conv.kernel[...] * sign
            pooled = conv_pool(x.astype(conv.dtype), kernel, conv.stride, self.num_groups, padding)
        else:
            pooled = pool(conv(x, sign), self.num_groups, padding)
        y, mean, var = pooled
        n, height, width, _ = x.shape
        count = n * -(-height // conv.stride) * -(-width // conv.stride) // self.num_groups
        self.move(sign * mean.mean(0), var.mean(0), count)
        return Pending(y, Norm.of(mean, var, sign * self.scale[...], self.bias[...], self.epsilon))

    def after_conv(self, conv: Conv, x: Activations) -> tuple[Pending, jax.Array]:
        """conv(x) in training, yet to be normalised by this norm, and x again: see `cpu.convolve`."""
        x = x if isinstance(x, Pending) else x.astype(conv.dtype)
        y, mean, var, again = cpu.convolve(x, conv.kernel[...], conv.stride)
        if self.frozen:
            mean, var = self.mean[...], self.var[...]
        else:
            self.move(mean, var, y.size // y.shape[-1])
        return Pending(y, Norm.of(mean, var, self.scale[...], self.bias[...], self.epsilon)), again

    def move(self, mean: jax.Array, var: jax.Array, count: int) -> None:
        """Moves the running statistics towards those of slices of `count` values each."""
        for running, batch in ((self.mean, mean), (self.var, var * (count / max(count - 1, 1)))):
            running[...] = self.momentum * running[...] + (1 - self.momentum) * jax.lax.stop_gradient(batch)

    def _normalize(self, x: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
        factor = jax.lax.rsqrt(var + self.epsilon) * self.scale[...]
        return ((x.astype(jnp.float32) - mean) * factor + self.bias[...]).astype(x.dtype)


class _EvoNorm(nnx.Module):
    """Scale and bias, and the `v` inside the non-linearity, [1, 1, 1, features] as in the original's checkpoints.

    Statistics are float32; the rest is computed in the type of the activations. Source: arXiv:2004.02967.
    """

    epsilon = EPSILON

    def __init__(self, features: int) -> None:
        zeros, ones = np.zeros((1, 1, 1, features), np.float32), np.ones((1, 1, 1, features), np.float32)
        self.scale = nnx.Param(jnp.array(ones))
        self.bias = nnx.Param(jnp.array(zeros))
        self.v = nnx.Param(jnp.array(ones))

    def _affine(self, x: jax.Array) -> jax.Array:
        return x * self.scale[...].astype(x.dtype) + self.bias[...].astype(x.dtype)

    def _deviation(self, var: jax.Array, like: jax.Array) -> jax.Array:
        return jnp.sqrt(var + self.epsilon).astype(like.dtype)


class EvoNormS0(_EvoNorm):
    """x * sigmoid(v x) / (deviation of the image's channel group), scaled and shifted; see `evonorm_groups`."""

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x [n, h, w, features] -> the same shape and dtype. The same in training and evaluation."""
        del training
        n, height, width, features = x.shape
        groups = evonorm_groups(features)
        grouped = x.reshape(n, height, width, groups, features // groups)
        var = grouped.astype(jnp.float32).var((1, 2, 4), keepdims=True)
        active = (x * nnx.sigmoid(self.v[...].astype(x.dtype) * x)).reshape(grouped.shape)
        return self._affine((active / self._deviation(var, x)).reshape(x.shape))


class EvoNormB0(_EvoNorm):
    """x / max(deviation of the batch, v x + deviation of the image), per channel, scaled and shifted.

    In training the batch is each of `num_groups` equal slices, as in `BatchNorm`, and `var`, which stands for it in
    evaluation and when `frozen`, moves a tenth of the way to the (biased) variance, as the original's always does.
    """

    momentum = 0.9

    def __init__(self, features: int, *, num_groups: int, frozen: bool = False) -> None:
        super().__init__(features)
        self.var = nnx.BatchStat(jnp.array(np.ones((1, 1, 1, features), np.float32)))
        self.num_groups, self.frozen = num_groups, frozen

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x [n, h, w, features] -> the same shape and dtype."""
        if training is None or self.frozen:
            return self._activate(x, self.var[...])
        grouped = group(x, self.num_groups)
        var = grouped.astype(jnp.float32).var(POSITIONS, keepdims=True)
        self.var[...] = self.momentum * self.var[...] + (1 - self.momentum) * jax.lax.stop_gradient(var.mean(0))
        return self._activate(grouped, var).reshape(x.shape)

    def _activate(self, x: jax.Array, var: jax.Array) -> jax.Array:
        image = x.astype(jnp.float32).var((-3, -2), keepdims=True)
        own = self.v[...].astype(x.dtype) * x + self._deviation(image, x)
        return self._affine(x / jnp.maximum(self._deviation(var, x), own))
