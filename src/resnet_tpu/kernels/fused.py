"""Kernels that fuse a batch norm with an adjacent layer, which saves passes over the large activations.

On a TPU, by the compiler's estimate, such a pass costs more than the arithmetic of a small convolution. The kernels are
pure JAX: they run anywhere, and agree with the plain layers except for rounding. All statistics are float32.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from resnet_tpu.kernels.norm import Norm, add_moments_gradient, materialize
from resnet_tpu.models import layers
from resnet_tpu.models.architecture import EPSILON, PoolPadding
from resnet_tpu.models.kernel_table import Kernels
from resnet_tpu.models.layers import POSITIONS, ConvNorm, Statistics, broadcast, group, max_pool, moments, to_float32

Normed = tuple[jax.Array, jax.Array, jax.Array]
"""(activations, mean, variance)."""

_EXACT = jax.lax.Precision.HIGHEST  # for products of small matrices, which a TPU would round to bfloat16


def conv_norm(
    x: jax.Array, layer: ConvNorm, *, stride: int, num_groups: int, relu: bool, pool: PoolPadding | None
) -> tuple[jax.Array, Statistics] | None:
    """See `ConvNormKernel`. Computes the last convolution of the stem, and 1x1 convolutions that add channels."""
    if layer.frozen is not None:
        return None
    if pool is not None and relu:
        return conv_norm_pool(x, layer, stride, num_groups, functools.partial(max_pool, padding=pool))
    size, _, before, after = layer.kernel.shape
    if relu or pool or (size, stride) != (1, 1) or before > after:
        return None
    normed: Any = expand(x, layer.kernel[0, 0], layer.scale, layer.bias, num_groups)
    y, mean, var = normed
    return y, Statistics(mean, var, x.size // before // num_groups)


def conv_norm_pool(
    x: jax.Array, layer: ConvNorm, stride: int, num_groups: int, pool: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, Statistics]:
    """A convolution, its batch norm, the ReLU and `pool`, which keeps the largest value of each window."""
    # a channel with a negative scale is negated, by its kernel: `max_pool_moments` requires that no scale is negative
    sign = jax.lax.stop_gradient(jnp.where(layer.scale < 0, -1.0, 1.0))
    y = layers.conv(x, layer.kernel * sign, stride)
    pooled: Any = max_pool_moments(y, num_groups, pool)
    largest, mean, var = pooled
    norm = Norm.of(mean, var, sign * layer.scale, layer.bias)
    return materialize(largest, norm), Statistics(sign * mean, var, y.size // y.shape[-1] // num_groups)


class ExpansionGradients(NamedTuple):
    """The gradients of the kernel [in, out] and of the scale [out], and the gradient of the input x in three parts.

    The latter is x @ x_factor + dy @ dy_factor + constant, with x_factor [g, in, in] and dy_factor [g, out, in] in x's
    dtype, and constant [g, in].
    """

    kernel: jax.Array
    scale: jax.Array
    x_factor: jax.Array
    dy_factor: jax.Array
    constant: jax.Array


class Expansion(NamedTuple):
    """A 1x1 convolution x @ kernel and its batch norm, from the mean and covariance of x, which has fewer channels.

    The kernel is rounded as in the convolution. All arrays are float32. All but kernel [in, out] and scale [out] begin
    with an axis of groups.
    """

    kernel: jax.Array
    scale: jax.Array
    mean_in: jax.Array
    shared: jax.Array  # the covariance of x and the result
    mean: jax.Array
    var: jax.Array
    factor: jax.Array  # one over the standard deviation of the result

    @classmethod
    def of(
        cls, kernel: jax.Array, scale: jax.Array, mean_in: jax.Array, covariance: jax.Array, dtype: DTypeLike
    ) -> "Expansion":
        """From the statistics of x: mean_in [g, in] and covariance [g, in, in]. dtype: that of x."""
        wide = kernel.astype(dtype).astype(jnp.float32)
        shared = jnp.einsum("gij,jo->gio", covariance, wide, precision=_EXACT)
        mean = jnp.einsum("gi,io->go", mean_in, wide, precision=_EXACT)
        var = jnp.maximum((wide * shared).sum(1), 0.0)
        return cls(wide, scale, mean_in, shared, mean, var, jax.lax.rsqrt(var + EPSILON))

    @property
    def slope(self) -> jax.Array:
        """The factor of the norm, [g, out]."""
        return self.factor * self.scale

    def gradients(self, product: jax.Array, total: jax.Array, count: int, dtype: DTypeLike) -> ExpansionGradients:
        """product [g, in, out], total [g, out]: the sums over `count` positions of x times dy, and of dy."""
        product = product - self.mean_in[:, :, None] * total[:, None, :]
        d_scale = self.factor * (self.kernel * product).sum(1)
        # the gradient of the convolution's result is slope * dy + inverse * (x @ kernel) + offset: arXiv:1502.03167
        slope = self.slope
        inverse = -slope * self.factor * d_scale / count
        x_factor = jnp.einsum("io,go,jo->gij", self.kernel, inverse, self.kernel, precision=_EXACT).astype(dtype)
        dy_factor = (self.kernel * slope[:, None]).swapaxes(1, 2).astype(dtype)
        # makes dx sum to zero with the rounded matrices: otherwise its mean would be off by their rounding errors
        constant = -jnp.einsum("go,goi->gi", total / count, dy_factor.astype(jnp.float32), precision=_EXACT)
        constant -= jnp.einsum("gi,gij->gj", self.mean_in, x_factor.astype(jnp.float32), precision=_EXACT)
        d_kernel = (product * slope[:, None] + count * self.shared * inverse[:, None]).sum(0)
        return ExpansionGradients(d_kernel, d_scale.sum(0), x_factor, dy_factor, constant)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def expand(x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int) -> Normed:
    """A 1x1 convolution of stride 1 and its batch norm: x [n, h, w, in], kernel [in, out] -> [n, h, w, out].

    The statistics of x @ kernel follow from the mean and the covariance of x, which has fewer channels, so they are
    known before the convolution. Its result is normalised, added to the shortcut and activated as it is computed, and
    is never stored. The gradient needs only x and the incoming gradient. Mean and variance have no gradient.
    """
    return _expand_forward(x, kernel, scale, bias, num_groups)[0]


def _expand_forward(
    x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int
) -> tuple[Normed, Any]:
    grouped = group(x, num_groups)
    count = x.size // x.shape[-1] // num_groups
    # a product with several columns: the compiler turns one column into a reduction, which costs a pass of its own
    ones = jnp.ones((*grouped.shape[:-1], 8), x.dtype)
    mean_in = inner(grouped, ones)[..., 0] / count
    covariance = inner(grouped, grouped) / count - mean_in[:, :, None] * mean_in[:, None, :]
    expansion = Expansion.of(kernel, scale, mean_in, covariance, x.dtype)
    y = to_float32(layers.conv(x, kernel[None, None]), num_groups)
    y = (y - broadcast(expansion.mean)) * broadcast(expansion.slope) + bias
    return (y.astype(x.dtype).reshape(*x.shape[:-1], -1), expansion.mean, expansion.var), (x, expansion)


def _expand_backward(num_groups: int, residuals: Any, gradients: Normed) -> tuple[jax.Array, ...]:
    x, expansion = residuals
    grouped, dy = group(x, num_groups), group(gradients[0], num_groups)
    total = dy.astype(jnp.float32).sum(POSITIONS)
    parts = expansion.gradients(inner(grouped, dy), total, dy.size // total.size, x.dtype)
    dx = multiply(dy, parts.dy_factor) + multiply(grouped, parts.x_factor) + broadcast(parts.constant)
    return dx.astype(x.dtype).reshape(x.shape), parts.kernel, parts.scale, total.sum(0)


expand.defvjp(_expand_forward, _expand_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def max_pool_moments(x: jax.Array, num_groups: int, pool: Callable[[jax.Array], jax.Array]) -> Normed:
    """`pool` of x, with mean and variance of x itself: [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c].

    A norm without negative scales keeps the order of values, so the largest of a window can be taken before it: only a
    quarter of the values remains to be normalised. Mean and variance have gradients.
    """
    return _max_pool_forward(x, num_groups, pool)[0]


def _max_pool_forward(x: jax.Array, num_groups: int, pool: Callable[[jax.Array], jax.Array]) -> tuple[Normed, Any]:
    mean, var = moments(x, num_groups)
    pooled, pool_vjp = jax.vjp(pool, x)
    return (pooled, mean, var), (x, mean, pool_vjp)


def _max_pool_backward(num_groups: int, pool: Any, residuals: Any, gradients: Normed) -> tuple[jax.Array]:
    del num_groups, pool
    x, mean, pool_vjp = residuals
    d_pooled, *d_moments = gradients
    (own,) = pool_vjp(d_pooled)
    return (add_moments_gradient(own, x, mean, d_moments),)


max_pool_moments.defvjp(_max_pool_forward, _max_pool_backward)


def add_relu(branch: jax.Array, shortcut: jax.Array) -> jax.Array:
    """See `AddReluKernel`. The gradient depends only on where the result is positive, so the sum itself is not kept."""
    return _relu(branch + shortcut)


@jax.custom_vjp
def _relu(x: jax.Array) -> jax.Array:
    # otherwise a TPU's compiler recomputes the maximum at each use, and keeps x in memory for this
    return jax.lax.optimization_barrier(jnp.maximum(x, 0))


def _relu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = _relu(x)
    return y, y


_relu.defvjp(_relu_forward, lambda y, dy: (jnp.where(y > 0, dy, 0),))


def inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """[g, n, h, w, i], [g, n, h, w, o] -> the sum over all positions of the products, float32 [g, i, o]."""
    return jnp.einsum("gnhwi,gnhwo->gio", x, y, preferred_element_type=jnp.float32)


def multiply(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[g, n, h, w, i], [g, i, o] -> float32 [g, n, h, w, o]: rows times the kernel, which is rounded as x is."""
    return jnp.einsum("gnhwi,gio->gnhwo", x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)


FUSED = Kernels("fused", conv_norm, add_relu)
