"""The layers of a ResNet as functions of their arrays. Images are NHWC, kernels HWIO.

Batch norm normalises each of `num_groups` equal slices of the batch by its own statistics, float32
[num_groups, channels].
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.models.architecture import EPSILON, PoolPadding

DIMENSIONS = ("NHWC", "HWIO", "NHWC")
"""Dimension order of the images, kernels and results of convolutions."""

DENSE_DEVIATION = 0.01
"""Standard deviation of the classifier's initial kernel."""

_CUT_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal distribution truncated at -2 and 2."""

POSITIONS = (1, 2, 3)
"""Axes of the result of `group`: all but groups and channels."""


class Statistics(NamedTuple):
    """Mean and biased variance of each channel, float32 [num_groups, channels], over `positions` positions each."""

    mean: jax.Array
    var: jax.Array
    positions: int


class ConvNorm(NamedTuple):
    """The arrays of a convolution and of the batch norm after it, float32.

    kernel: [k, k, in, out]. scale, bias: [out]. frozen: (mean, variance), [out] each, to use in place of the batch's.
    """

    kernel: jax.Array
    scale: jax.Array
    bias: jax.Array
    frozen: tuple[jax.Array, jax.Array] | None = None


def draw_kernel(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A convolution's initial kernel, float32: truncated normal (at two standard deviations), variance 1/fan_in.

    NumPy draws it, so it is the same on every device, and no program has to be compiled for each shape.
    """
    values = rng.standard_normal(shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(1 / (math.sqrt(math.prod(shape[:-1])) * _CUT_DEVIATION))


def draw_dense_kernel(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The classifier's initial kernel, float32: normal, standard deviation 0.01."""
    return rng.standard_normal(shape, np.float32) * np.float32(DENSE_DEVIATION)


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, float32: initial biases, running means, and scales of branches whose output starts at zero."""
    del rng
    return np.zeros(shape, np.float32)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ones, float32: initial scales and running variances."""
    del rng
    return np.ones(shape, np.float32)


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """x [n, h, w, in], kernel [k, k, in, out] -> [n, ceil(h/stride), ceil(w/stride), out], computed in x's dtype.

    The padding is k-1 in total whatever the stride, (k-1)//2 of it before the image, as in the original: TensorFlow's
    SAME would pad even sizes unevenly.
    """
    padding = [((kernel.shape[0] - 1) // 2, kernel.shape[0] // 2)] * 2
    strides = (stride, stride)
    return jax.lax.conv_general_dilated(x, kernel.astype(x.dtype), strides, padding, dimension_numbers=DIMENSIONS)


def moments(x: jax.Array, num_groups: int) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance by channel, float32 [num_groups, c], in one pass."""
    wide = to_float32(x, num_groups)
    mean = wide.mean(POSITIONS)
    return mean, jnp.maximum(jnp.square(wide).mean(POSITIONS) - jnp.square(mean), 0.0)


def batch_statistics(x: jax.Array, num_groups: int) -> Statistics:
    """The statistics of x [n, h, w, c] by channel."""
    mean, var = moments(x, num_groups)
    if x.dtype == jnp.float32:  # the rounding error of `moments` is negligible only for half-precision activations
        var = jnp.square(to_float32(x, num_groups) - broadcast(mean)).mean(POSITIONS)
    return Statistics(mean, var, x.size // x.shape[-1] // num_groups)


def batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
    """(x - mean) / sqrt(var + EPSILON) * scale + bias, [n, h, w, c] in x's dtype. Source: arXiv:1502.03167.

    mean, var: [c], or [num_groups, c] where each slice of the batch has its own.
    """
    if mean.ndim == 1:
        return _normalize(x, scale, bias, mean, var)
    return _normalize(group(x, mean.shape[0]), scale, bias, broadcast(mean), broadcast(var)).reshape(x.shape)


def _normalize(x: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
    factor = jax.lax.rsqrt(var + EPSILON) * scale
    return ((x.astype(jnp.float32) - mean) * factor + bias).astype(x.dtype)


def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), with gradient 0 at 0."""
    return jax.nn.relu(x)


def max_pool(x: jax.Array, padding: PoolPadding = "same") -> jax.Array:
    """The largest value of 3x3 windows with stride 2: [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c].

    Padded as by TensorFlow's SAME, which pads even sizes only at the end, or by 1 on both sides, as in PyTorch.
    """
    pads = "SAME" if padding == "same" else ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)


def average_pool(x: jax.Array) -> jax.Array:
    """The mean of 2x2 windows, cut at the map's edge, with stride 2: [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c]."""
    counts = _sum_pool(jnp.ones((1, *x.shape[1:3], 1), x.dtype))
    return _sum_pool(x) / counts


def _sum_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")


def global_average(x: jax.Array) -> jax.Array:
    """x [n, h, w, c] -> float32 mean [n, c]."""
    return x.mean((1, 2), dtype=jnp.float32)


def group(x: jax.Array, num_groups: int) -> jax.Array:
    """[n, h, w, c] -> [num_groups, n / num_groups, h, w, c]."""
    return x.reshape(num_groups, x.shape[0] // num_groups, *x.shape[1:])


def to_float32(x: jax.Array, num_groups: int) -> jax.Array:
    """[n, h, w, c] -> float32 [num_groups, n / num_groups, h, w, c]."""
    return group(x, num_groups).astype(jnp.float32)


def broadcast(statistic: jax.Array) -> jax.Array:
    """[num_groups, c] -> [num_groups, 1, 1, 1, c]."""
    return statistic[:, None, None, None, :]
