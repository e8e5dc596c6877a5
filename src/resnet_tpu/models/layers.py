"""The layers of a ResNet: convolution, batch norm, pooling, dense. Images are NHWC, kernels HWIO."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

_CUT_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal distribution cut at -2 and 2."""

DENSE_DEVIATION = 0.01


def draw_kernel(rng: np.random.Generator | None, shape: tuple[int, ...]) -> np.ndarray:
    """A convolution's initial kernel, float32: normal cut at two deviations, variance 1/fan_in. Zeros without `rng`.

    Drawn on the host: the same on any device, and no program to compile for each shape.
    """
    if rng is None:
        return np.zeros(shape, np.float32)
    values = rng.standard_normal(shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(1 / (math.sqrt(math.prod(shape[:-1])) * _CUT_DEVIATION))


class Conv(nnx.Module):
    """A convolution without bias, computed in `dtype`; its kernel [k, k, in, out] is float32.

    Stride 1 pads SAME. A larger stride pads k-1 in total whatever the input size, (k-1)//2 of it before, as the
    original does (TensorFlow's SAME would pad even sizes unevenly).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        size: int,
        stride: int,
        *,
        dtype: DTypeLike,
        rng: np.random.Generator | None,
    ) -> None:
        self.kernel = nnx.Param(jnp.array(draw_kernel(rng, (size, size, in_features, out_features))))
        self.stride = stride
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, in] -> [n, ceil(h/stride), ceil(w/stride), out], `dtype`."""
        kernel = self.kernel[...].astype(self.dtype)
        total = kernel.shape[0] - 1
        padding = "SAME" if self.stride == 1 else [(total // 2, total - total // 2)] * 2
        return jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel,
            (self.stride, self.stride),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


class BatchNorm(nnx.Module):
    """Batch normalization over N, H, W with float32 statistics.

    Training normalises by the batch's own mean and biased variance, `num_groups` equal slices of the batch each by its
    own (one slice per device: the original's per-replica statistics), and moves `mean` and `var` towards the mean over
    the slices, with the unbiased variance: `var <- momentum * var + (1 - momentum) * n/(n-1) * batch_var`.
    Evaluation normalises by `mean` and `var`. Source: arXiv:1502.03167.
    """

    def __init__(
        self, features: int, *, momentum: float, num_groups: int, zero_scale: bool = False, epsilon: float = 1e-5
    ) -> None:
        zeros, ones = np.zeros(features, np.float32), np.ones(features, np.float32)
        self.scale = nnx.Param(jnp.array(zeros if zero_scale else ones))
        self.bias = nnx.Param(jnp.array(zeros))
        self.mean = nnx.BatchStat(jnp.array(zeros))
        self.var = nnx.BatchStat(jnp.array(ones))
        self.momentum, self.num_groups, self.epsilon = momentum, num_groups, epsilon

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [n, h, w, features] -> the same shape and dtype."""
        if not train:
            return self._normalize(x, self.mean[...], self.var[...])
        n, height, width, features = x.shape
        grouped = x.reshape(self.num_groups, n // self.num_groups, height, width, features)
        wide = grouped.astype(jnp.float32)
        mean = wide.mean((1, 2, 3), keepdims=True)
        if x.dtype == jnp.float32:
            var = jnp.square(wide - mean).mean((1, 2, 3), keepdims=True)
        else:  # one pass less over the activations; what it rounds is below what half-precision activations have lost
            var = jnp.maximum(jnp.square(wide).mean((1, 2, 3), keepdims=True) - jnp.square(mean), 0.0)
        count = grouped[0, ..., 0].size
        self._move(mean.mean(0).reshape(features), var.mean(0).reshape(features) * (count / max(count - 1, 1)))
        return self._normalize(grouped, mean, var).reshape(x.shape)

    def _move(self, mean: jax.Array, var: jax.Array) -> None:
        for running, batch in ((self.mean, mean), (self.var, var)):
            running[...] = self.momentum * running[...] + (1 - self.momentum) * jax.lax.stop_gradient(batch)

    def _normalize(self, x: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
        factor = jax.lax.rsqrt(var + self.epsilon) * self.scale[...]
        return ((x.astype(jnp.float32) - mean) * factor + self.bias[...]).astype(x.dtype)


class ConvNorm(nnx.Module):
    """A convolution followed by batch norm."""

    def __init__(self, conv: Conv, norm: BatchNorm) -> None:
        self.conv = conv
        self.norm = norm

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [n, h, w, in] -> [n, h', w', out]."""
        return self.norm(self.conv(x), train=train)


class Dense(nnx.Module):
    """The classifier: float32 whatever the network computes in, kernel [in, out] drawn with deviation 0.01."""

    def __init__(self, in_features: int, out_features: int, *, rng: np.random.Generator | None) -> None:
        shape = (in_features, out_features)
        kernel = np.zeros(shape, np.float32) if rng is None else rng.standard_normal(shape, np.float32)
        self.kernel = nnx.Param(jnp.array(kernel * np.float32(DENSE_DEVIATION)))
        self.bias = nnx.Param(jnp.array(np.zeros(out_features, np.float32)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [n, in] -> float32 [n, out]."""
        return x.astype(jnp.float32) @ self.kernel[...] + self.bias[...]


def max_pool(x: jax.Array) -> jax.Array:
    """The largest value of 3x3 windows with stride 2, padded as TensorFlow's SAME: even sizes only after."""
    return nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")


def global_average(x: jax.Array) -> jax.Array:
    """x [n, h, w, c] -> float32 mean [n, c]."""
    return x.mean((1, 2), dtype=jnp.float32)
