"""A batch norm of a training computed with the layer beside it, which spares passes over the large activations.

On a TPU such a pass costs more than the arithmetic of a small convolution. The functions give what the layers one by
one give, but for rounding; all statistics are float32. Images are NHWC. `num_groups` equal slices of the batch are
normalised each by its own mean and biased variance, which come back as float32 [num_groups, features] and have no
gradient.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.layers import convolve, max_pool

Normed = tuple[jax.Array, jax.Array, jax.Array]
"""(activations, mean, variance)."""

_EXACT = jax.lax.Precision.HIGHEST  # of products of small matrices, which a TPU would round to bfloat16
POSITIONS = (1, 2, 3)
"""Of what `group` gives: all but groups and channels."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def conv_norm(
    x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float
) -> Normed:
    """A 1x1 convolution of stride 1 and its batch norm: x [n, h, w, in], kernel [in, out] -> [n, h, w, out].

    The statistics of x @ kernel follow from the mean and the covariance of x, which has fewer channels: they are known
    before the convolution, whose result is then normalised, added to and activated where it arises, and is never kept.
    The gradient needs x and the gradient that comes in alone.
    """
    return _conv_norm(x, kernel, scale, bias, num_groups, epsilon)[0]


def _conv_norm(
    x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float
) -> tuple[Normed, Any]:
    grouped = group(x, num_groups)
    count = grouped[0, ..., 0].size
    rounded = kernel.astype(x.dtype)
    wide = rounded.astype(jnp.float32)
    # a product, for as a reduction the sum costs a pass of its own, and with one column it is made one
    ones = jnp.ones((*grouped.shape[:-1], 8), x.dtype)
    mean_in = _inner(grouped, ones)[..., 0] / count
    covariance = _inner(grouped, grouped) / count - mean_in[:, :, None] * mean_in[:, None, :]
    shared = jnp.einsum("gij,jo->gio", covariance, wide, precision=_EXACT)  # covariance of x and the result
    mean = jnp.einsum("gi,io->go", mean_in, wide, precision=_EXACT)
    var = jnp.maximum((wide * shared).sum(1), 0.0)
    factor = jax.lax.rsqrt(var + epsilon)
    y = convolve(x, rounded[None, None], (1, 1))
    y = (widen(y, num_groups) - spread(mean)) * spread(factor * scale) + bias
    kept = x, kernel, scale, mean_in, shared, mean, factor
    return (y.astype(x.dtype).reshape(*x.shape[:-1], -1), mean, var), kept


def _conv_norm_backward(num_groups: int, epsilon: float, kept: Any, gradients: Normed) -> tuple[jax.Array, ...]:
    del epsilon
    x, kernel, scale, mean_in, shared, mean, factor = kept
    grouped, dy = group(x, num_groups), group(gradients[0], num_groups)
    count = grouped[0, ..., 0].size
    wide = kernel.astype(x.dtype).astype(jnp.float32)
    total = dy.astype(jnp.float32).sum(POSITIONS)
    product = _inner(grouped, dy) - mean_in[:, :, None] * total[:, None, :]
    d_scale = factor * (wide * product).sum(1)
    slope, offset, inverse = coefficients(scale, mean, factor, total, d_scale, count)
    d_kernel = (product * slope[:, None] + count * shared * inverse[:, None]).sum(0)
    # the gradient of the convolution's result is slope * dy + inverse * (x @ kernel) + offset
    back = (wide * slope[:, None]).astype(x.dtype)
    again = jnp.einsum("io,go,jo->gij", wide, inverse, wide, precision=_EXACT).astype(x.dtype)
    constant = jnp.einsum("io,go->gi", wide, offset, precision=_EXACT)
    dx = jnp.einsum("gnhwo,gio->gnhwi", dy, back).astype(jnp.float32)
    dx = dx + jnp.einsum("gnhwi,gij->gnhwj", grouped, again).astype(jnp.float32) + spread(constant)
    return dx.astype(x.dtype).reshape(x.shape), d_kernel.astype(kernel.dtype), d_scale.sum(0), total.sum(0)


conv_norm.defvjp(_conv_norm, _conv_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def norm_relu_pool(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float, padding: PoolPadding
) -> Normed:
    """Batch norm, ReLU and `max_pool`: x [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c]. No `scale` may be negative.

    The largest of a window is the largest before it is normalised too. So a quarter of the values is normalised, and
    the sums of the gradient go over that quarter.
    """
    return _norm_relu_pool(x, scale, bias, num_groups, epsilon, padding)[0]


def _norm_relu_pool(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float, padding: PoolPadding
) -> tuple[Normed, Any]:
    mean, var = moments(x, num_groups)
    y, kept = normalize_pooled(x, scale, bias, mean, var, epsilon, padding)
    return (y, mean, var), kept


def _norm_relu_pool_backward(
    num_groups: int, epsilon: float, padding: PoolPadding, kept: Any, gradients: Normed
) -> tuple[jax.Array, ...]:
    del epsilon
    d_scale, d_bias, own, offset, inverse = pooled_gradients(kept, gradients[0], padding)
    x = kept[0]
    dx = widen(own, num_groups) + widen(x, num_groups) * spread(inverse) + spread(offset)
    return dx.astype(x.dtype).reshape(x.shape), d_scale, d_bias


norm_relu_pool.defvjp(_norm_relu_pool, _norm_relu_pool_backward)


def normalize_pooled(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    mean: jax.Array,
    var: jax.Array,
    epsilon: float,
    padding: PoolPadding,
) -> tuple[jax.Array, Any]:
    """(`norm_relu_pool` of x with these statistics, what `pooled_gradients` needs)."""
    factor = jax.lax.rsqrt(var + epsilon)
    pooled = max_pool(x, padding)
    y = (widen(pooled, mean.shape[0]) - spread(mean)) * spread(factor * scale) + bias
    y = jnp.maximum(y, 0.0).astype(x.dtype).reshape(pooled.shape)
    return y, (x, pooled, y, scale, mean, factor)


def pooled_gradients(kept: Any, dy: jax.Array, padding: PoolPadding) -> tuple[jax.Array, ...]:
    """Gradients of scale and bias, and three parts of that of x, which is own + inverse * x + offset.

    own is like x, offset and inverse are [num_groups, features].
    """
    x, pooled, y, scale, mean, factor = kept
    num_groups = mean.shape[0]
    dy = widen(jnp.where(y > 0, dy, 0), num_groups)
    total = dy.sum(POSITIONS)
    d_scale = factor * ((widen(pooled, num_groups) - spread(mean)) * dy).sum(POSITIONS)
    count = x.size // x.shape[-1] // num_groups
    slope, offset, inverse = coefficients(scale, mean, factor, total, d_scale, count)
    scaled = (dy * spread(slope)).astype(x.dtype).reshape(pooled.shape)
    (own,) = jax.vjp(lambda x: max_pool(x, padding), x)[1](scaled)
    return d_scale.sum(0), total.sum(0), own, offset, inverse


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), which the gradient asks where x was positive: x itself is not kept."""
    # else a TPU's compiler takes the maximum wherever it is used, and keeps x beside it for the other uses
    return jax.lax.optimization_barrier(jnp.maximum(x, 0))


def _relu(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = relu(x)
    return y, y


relu.defvjp(_relu, lambda y, dy: (jnp.where(y > 0, dy, 0),))


def coefficients(
    scale: jax.Array, mean: jax.Array, factor: jax.Array, total: jax.Array, d_scale: jax.Array, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(a, b, c) of the gradient a * dy + b + c * x of a batch norm in x, all [num_groups, features].

    factor: one over the deviation; total: sum of dy; d_scale: sum of dy times x normalised. Source: arXiv:1502.03167.
    """
    slope = factor * scale
    inverse = -slope * factor * d_scale / count
    return slope, -slope * total / count - inverse * mean, inverse


def moments(x: jax.Array, num_groups: int) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance by channel, float32 [num_groups, features], in one pass."""
    wide = widen(x, num_groups)
    mean = wide.mean(POSITIONS)
    return mean, jnp.maximum(jnp.square(wide).mean(POSITIONS) - jnp.square(mean), 0.0)


def group(x: jax.Array, num_groups: int) -> jax.Array:
    """[n, h, w, c] -> [num_groups, n / num_groups, h, w, c]."""
    return x.reshape(num_groups, x.shape[0] // num_groups, *x.shape[1:])


def widen(x: jax.Array, num_groups: int) -> jax.Array:
    """`group` of x, float32."""
    return group(x, num_groups).astype(jnp.float32)


def spread(statistic: jax.Array) -> jax.Array:
    """[num_groups, features] -> [num_groups, 1, 1, 1, features]."""
    return statistic[:, None, None, None, :]


def _inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """[g, n, h, w, i], [g, n, h, w, o] -> the sum over all positions of the products, float32 [g, i, o]."""
    return jnp.einsum("gnhwi,gnhwo->gio", x, y, preferred_element_type=jnp.float32)
