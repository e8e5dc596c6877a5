"""Convolutions with few channels out, computed two neighbouring columns at a time, with the batch norms beside them.

A matrix unit of 128 x 128 is half empty where a convolution has 64 channels out. A kernel that stands twice, the second
time a stride further on, gives two columns as 128 channels: a 3x3 convolution takes 0.62 of the time on a TPU v2.
Pairs [n, h, w/2, 2c] and columns [n, h, w, c] are the same bytes, but the compiler fuses nothing across the change:
what stands beside a convolution is computed in the shape of this one, from what lies in memory.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.fused import (
    POSITIONS,
    Normed,
    coefficients,
    moments,
    normalize_pooled,
    pooled_gradients,
    spread,
    widen,
)
from resnet_tpu.models.layers import convolve

_BATCH_MINOR = Layout(major_to_minor=(1, 2, 3, 0))  # as the compiler lays out few channels, else it copies pairs
_KERNEL = Layout(major_to_minor=(0, 1, 2, 3))  # transposed, the convolution would take twice the time


class _Norm(NamedTuple):
    """A batch norm with its statistics: mean and one over the deviation [num_groups, features], scale and bias."""

    mean: jax.Array
    factor: jax.Array
    scale: jax.Array
    bias: jax.Array

    def twice(self) -> "_Norm":
        return _Norm(*map(_twice, self))

    def relu(self, x: jax.Array) -> jax.Array:
        return jnp.maximum(self._normalize(self.wide(x)), 0.0).astype(x.dtype).reshape(x.shape)

    def masked(self, x: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x, and dy where the ReLU lets it through: both float32 and grouped."""
        wide = self.wide(x)
        return wide, jnp.where(self._normalize(wide) > 0, self.wide(dy), 0.0)

    def gradients(self, wide: jax.Array, masked: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Those of scale and bias, [num_groups, features] each, of what `masked` gives."""
        return self.factor * ((wide - spread(self.mean)) * masked).sum(POSITIONS), masked.sum(POSITIONS)

    def coefficients(self, d_scale: jax.Array, d_bias: jax.Array, count: int) -> tuple[jax.Array, ...]:
        """See `fused.coefficients`."""
        return coefficients(self.scale, self.mean, self.factor, d_bias, d_scale, count)

    def wide(self, x: jax.Array) -> jax.Array:
        return widen(x, self.mean.shape[0])

    def _normalize(self, wide: jax.Array) -> jax.Array:
        return (wide - spread(self.mean)) * spread(self.factor * self.scale) + self.bias


def _twice(statistic: jax.Array) -> jax.Array:
    """Of columns -> of pairs, along the last axis."""
    return jnp.concatenate([statistic, statistic], axis=-1)


def _fold(sums: jax.Array) -> jax.Array:
    """Sums over pairs -> over columns, of the last axis."""
    first, second = jnp.split(sums, 2, axis=-1)
    return first + second


def _in_memory(x: jax.Array) -> jax.Array:
    return jax.lax.optimization_barrier(with_layout_constraint(x, _BATCH_MINOR))


def _to_pairs(x: jax.Array) -> jax.Array:
    n, height, width, channels = x.shape
    return _in_memory(x.reshape(n, height, width // 2, 2 * channels))


def _to_columns(pairs: jax.Array) -> jax.Array:
    n, height, width, channels = pairs.shape
    return _in_memory(_in_memory(pairs).reshape(n, height, width * 2, channels // 2))


def _double(kernel: jax.Array, stride: int) -> jax.Array:
    """[k, k, in, out] -> [k, k + stride, in, 2 * out]."""
    first, second = (jnp.pad(kernel, ((0, 0), pads, (0, 0), (0, 0))) for pads in ((0, stride), (stride, 0)))
    doubled = with_layout_constraint(jnp.concatenate([first, second], axis=-1), _KERNEL)
    return jax.lax.optimization_barrier(doubled)


def _convolve(x: jax.Array, doubled: jax.Array, stride: int) -> jax.Array:
    """x [n, h, w, in] -> pairs [n, h/stride, w/stride/2, 2 * out], padded as `Conv`."""
    return with_layout_constraint(convolve(x, doubled, (stride, 2 * stride)), _BATCH_MINOR)


def _kernel_gradient(x: jax.Array, d_pairs: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    size, _, before, after = kernel.shape
    like = jax.ShapeDtypeStruct((size, size + stride, before, 2 * after), x.dtype)
    (doubled,) = jax.linear_transpose(lambda doubled: _convolve(x, doubled, stride), like)(d_pairs)
    first, second = jnp.split(doubled.astype(jnp.float32), 2, axis=-1)
    return (first[:, :size] + second[:, stride:]).astype(kernel.dtype)


def _moments(pairs: jax.Array, num_groups: int) -> tuple[jax.Array, jax.Array]:
    """`moments` of the columns."""
    wide = widen(pairs, num_groups)
    mean, square = (_fold(values.mean(POSITIONS)) / 2 for values in (wide, jnp.square(wide)))
    return mean, jnp.maximum(square - jnp.square(mean), 0.0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def norm_conv_norm(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    kernel: jax.Array,
    scale_out: jax.Array,
    bias_out: jax.Array,
    num_groups: int,
    epsilon: float,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Batch norm, ReLU, a convolution of stride 1, batch norm and ReLU: x [n, h, w, in] -> [n, h, w, out].

    The kernel is float32 [k, k, in, out], its k odd; w is even. Beside the result come mean and variance of x and those
    of the convolution's result, float32 [num_groups, features], without a gradient.
    """
    return _norm_conv_norm(x, scale, bias, kernel, scale_out, bias_out, num_groups, epsilon)[0]


def _norm_conv_norm(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    kernel: jax.Array,
    scale_out: jax.Array,
    bias_out: jax.Array,
    num_groups: int,
    epsilon: float,
) -> tuple[Any, Any]:
    mean, var = moments(x, num_groups)
    norm = _Norm(mean, jax.lax.rsqrt(var + epsilon), scale, bias)
    pairs = _convolve(norm.relu(x), _double(kernel.astype(x.dtype), 1), 1)
    mean_out, var_out = _moments(pairs, num_groups)
    norm_out = _Norm(mean_out, jax.lax.rsqrt(var_out + epsilon), scale_out, bias_out)
    z = _to_columns(pairs)
    return (norm_out.relu(z), (mean, var), (mean_out, var_out)), (x, z, kernel, norm, norm_out)


def _norm_conv_norm_backward(num_groups: int, epsilon: float, kept: Any, gradients: Any) -> tuple[jax.Array, ...]:
    del epsilon
    x, z, kernel, norm, norm_out = kept
    dy = gradients[0]
    count = z.size // z.shape[-1] // num_groups
    d_affine_out = norm_out.gradients(*norm_out.masked(z, dy))
    parts = norm_out.coefficients(*d_affine_out, count)
    d_pairs = _add_up(z, tuple(map(_twice, parts)), *norm_out.twice().masked(_to_pairs(z), _to_pairs(dy)))
    d_kernel = _kernel_gradient(norm.relu(x), d_pairs, kernel, 1)
    turned = jnp.flip(kernel.astype(x.dtype), (0, 1)).swapaxes(2, 3)
    d_active = _convolve(_add_up(z, parts, *norm_out.masked(z, dy)), _double(turned, 1), 1)
    wide, masked = norm.twice().masked(_to_pairs(x), d_active)
    d_affine = tuple(map(_fold, norm.twice().gradients(wide, masked)))
    masked = norm.wide(_to_columns(masked.astype(x.dtype).reshape(d_active.shape)))
    dx = _add_up(x, norm.coefficients(*d_affine, count), norm.wide(x), masked)
    d_scale, d_bias, d_scale_out, d_bias_out = (sums.sum(0) for sums in (*d_affine, *d_affine_out))
    return dx, d_scale, d_bias, d_kernel, d_scale_out, d_bias_out


def _add_up(like: jax.Array, parts: tuple[jax.Array, ...], wide: jax.Array, masked: jax.Array) -> jax.Array:
    """The gradient before a batch norm, by its coefficients, in the type of `like`: [n, h, w, c]."""
    slope, offset, inverse = map(spread, parts)
    total = (masked * slope + wide * inverse + offset).astype(like.dtype)
    return total.reshape(-1, *total.shape[2:])


norm_conv_norm.defvjp(_norm_conv_norm, _norm_conv_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def conv_norm_relu_pool(
    x: jax.Array,
    kernel: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    stride: int,
    num_groups: int,
    epsilon: float,
    padding: PoolPadding,
) -> Normed:
    """A convolution with a kernel float32 [k, k, in, out], k odd, and `fused.norm_relu_pool` of its result."""
    return _conv_norm_relu_pool(x, kernel, scale, bias, stride, num_groups, epsilon, padding)[0]


def _conv_norm_relu_pool(
    x: jax.Array,
    kernel: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    stride: int,
    num_groups: int,
    epsilon: float,
    padding: PoolPadding,
) -> tuple[Normed, Any]:
    pairs = _convolve(x, _double(kernel.astype(x.dtype), stride), stride)
    mean, var = _moments(pairs, num_groups)
    y, kept = normalize_pooled(_to_columns(pairs), scale, bias, mean, var, epsilon, padding)
    return (y, mean, var), (x, kernel, kept)


def _conv_norm_relu_pool_backward(
    stride: int, num_groups: int, epsilon: float, padding: PoolPadding, kept: Any, gradients: Normed
) -> tuple[jax.Array, ...]:
    del epsilon
    x, kernel, kept = kept
    d_scale, d_bias, own, offset, inverse = pooled_gradients(kept, gradients[0], padding)

    def total(own: jax.Array, z: jax.Array, offset: jax.Array, inverse: jax.Array) -> jax.Array:
        wide = widen(own, num_groups) + widen(z, num_groups) * spread(inverse) + spread(offset)
        return wide.astype(x.dtype).reshape(z.shape)

    z = kept[0]
    d_pairs = total(_to_pairs(own), _to_pairs(z), _twice(offset), _twice(inverse))
    d_kernel = _kernel_gradient(x, d_pairs, kernel, stride)
    rounded, strides = kernel.astype(x.dtype), (stride, stride)
    (dx,) = jax.linear_transpose(lambda x: convolve(x, rounded, strides), x)(total(own, z, offset, inverse))
    return dx, d_kernel, d_scale, d_bias


conv_norm_relu_pool.defvjp(_conv_norm_relu_pool, _conv_norm_relu_pool_backward)
