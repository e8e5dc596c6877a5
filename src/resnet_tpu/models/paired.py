"""Convolutions with few channels out, computed two neighbouring columns at a time, with the batch norms beside them.

A matrix unit of 128 x 128 is half empty where a convolution has 64 channels out. A kernel that stands twice, the second
time a stride further on, gives two columns as 128 channels: a 3x3 convolution takes 0.62 of the time on a TPU v2.
Pairs [n, h, w/2, 2c] and columns [n, h, w, c] are the same bytes, but the compiler fuses nothing across the change:
what stands beside a convolution is computed in the shape of this one, from what lies in memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.fused import pool_gradient
from resnet_tpu.models.layers import convolve, max_pool
from resnet_tpu.models.normed import POSITIONS, Norm, Normed, add_up, moments_gradient, widen

_BATCH_MINOR = (1, 2, 3, 0)  # as the compiler lays out few channels, else it copies pairs
_KERNEL = (0, 1, 2, 3)  # transposed, the convolution would take twice the time


def _twice(statistic: jax.Array) -> jax.Array:
    """Of columns -> of pairs, along the last axis."""
    return jnp.concatenate([statistic, statistic], axis=-1)


def _fold(sums: jax.Array) -> jax.Array:
    """Sums over pairs -> over columns, of the last axis."""
    first, second = jnp.split(sums, 2, axis=-1)
    return first + second


def lay_out(x: jax.Array, order: tuple[int, ...]) -> jax.Array:
    """x, on a TPU with its dimensions in memory in this order, from the outermost to the innermost."""
    # elsewhere it is of no use, and XLA for CPU (jaxlib 0.10.2) errs where such an x is the result of a program
    return jax.lax.platform_dependent(x, tpu=lambda x: with_layout_constraint(x, Layout(order)), default=lambda x: x)


def _in_memory(x: jax.Array) -> jax.Array:
    return jax.lax.optimization_barrier(lay_out(x, _BATCH_MINOR))


def _to_pairs(x: jax.Array) -> jax.Array:
    n, height, width, channels = x.shape
    return _in_memory(x.reshape(n, height, width // 2, 2 * channels))


def _to_columns(pairs: jax.Array) -> jax.Array:
    n, height, width, channels = pairs.shape
    return _in_memory(_in_memory(pairs).reshape(n, height, width * 2, channels // 2))


def _double(kernel: jax.Array, stride: int) -> jax.Array:
    """[k, k, in, out] -> [k, k + stride, in, 2 * out]."""
    first, second = (jnp.pad(kernel, ((0, 0), pads, (0, 0), (0, 0))) for pads in ((0, stride), (stride, 0)))
    doubled = lay_out(jnp.concatenate([first, second], axis=-1), _KERNEL)
    return jax.lax.optimization_barrier(doubled)


def _convolve(x: jax.Array, doubled: jax.Array, stride: int) -> jax.Array:
    """x [n, h, w, in] -> pairs [n, h/stride, w/stride/2, 2 * out], padded as `Conv`."""
    return lay_out(convolve(x, doubled, (stride, 2 * stride)), _BATCH_MINOR)


def _kernel_gradient(x: jax.Array, d_pairs: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    size, _, before, after = kernel.shape
    like = jax.ShapeDtypeStruct((size, size + stride, before, 2 * after), x.dtype)
    (doubled,) = jax.linear_transpose(lambda doubled: _convolve(x, doubled, stride), like)(d_pairs)
    first, second = jnp.split(doubled.astype(jnp.float32), 2, axis=-1)
    return (first[:, :size] + second[:, stride:]).astype(kernel.dtype)


def _moments(pairs: jax.Array, num_groups: int) -> tuple[jax.Array, jax.Array]:
    """`normed.moments` of the columns."""
    wide = widen(pairs, num_groups)
    mean, square = (_fold(values.mean(POSITIONS)) / 2 for values in (wide, jnp.square(wide)))
    return mean, jnp.maximum(square - jnp.square(mean), 0.0)


@jax.custom_vjp
def norm_conv(x: jax.Array, norm: Norm, kernel: jax.Array) -> Normed:
    """A convolution of stride 1 of `norm.relu(x)`, x [n, h, w, in] -> ([n, h, w, out], its mean, its variance).

    The kernel is float32 [k, k, in, out], its k odd; w is even. These mean and variance have gradients.
    """
    return _norm_conv(x, norm, kernel)[0]


def _norm_conv(x: jax.Array, norm: Norm, kernel: jax.Array) -> tuple[Normed, Any]:
    pairs = _convolve(norm.relu(x).reshape(x.shape), _double(kernel.astype(x.dtype), 1), 1)
    mean, var = _moments(pairs, norm.mean.shape[0])
    z = _to_columns(pairs)
    return (z, mean, var), (x, norm, kernel, z, mean)


def _norm_conv_backward(kept: Any, gradients: Normed) -> tuple[jax.Array, Norm, jax.Array]:
    x, norm, kernel, z, mean = kept
    dz, *d_moments = gradients
    parts = moments_gradient(mean, d_moments, z.size // mean.size)
    d_pairs = add_up(_to_pairs(dz), _to_pairs(z), *map(_twice, parts))
    d_kernel = _kernel_gradient(norm.relu(x).reshape(x.shape), d_pairs, kernel, 1)
    turned = jnp.flip(kernel.astype(x.dtype), (0, 1)).swapaxes(2, 3)
    d_active = _convolve(add_up(dz, z, *parts), _double(turned, 1), 1)
    dx, d_norm = Norm(*map(_twice, norm)).pull_relu(_to_pairs(x), widen(d_active, norm.mean.shape[0]))
    dx = _to_columns(dx.astype(x.dtype).reshape(d_active.shape))
    return dx, Norm(*map(_fold, d_norm)), d_kernel


norm_conv.defvjp(_norm_conv, _norm_conv_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def conv_pool(x: jax.Array, kernel: jax.Array, stride: int, num_groups: int, padding: PoolPadding) -> Normed:
    """`fused.pool` of a convolution's result: the kernel is float32 [k, k, in, out], k odd."""
    return _conv_pool(x, kernel, stride, num_groups, padding)[0]


def _conv_pool(
    x: jax.Array, kernel: jax.Array, stride: int, num_groups: int, padding: PoolPadding
) -> tuple[Normed, Any]:
    pairs = _convolve(x, _double(kernel.astype(x.dtype), stride), stride)
    mean, var = _moments(pairs, num_groups)
    z = _to_columns(pairs)
    return (max_pool(z, padding), mean, var), (x, kernel, z, mean)


def _conv_pool_backward(
    stride: int, num_groups: int, padding: PoolPadding, kept: Any, gradients: Normed
) -> tuple[jax.Array, jax.Array]:
    del num_groups
    x, kernel, z, mean = kept
    own, *parts = pool_gradient(z, mean, gradients, padding)
    d_pairs = add_up(_to_pairs(own), _to_pairs(z), *map(_twice, parts))
    d_kernel = _kernel_gradient(x, d_pairs, kernel, stride)
    rounded, strides = kernel.astype(x.dtype), (stride, stride)
    (dx,) = jax.linear_transpose(lambda x: convolve(x, rounded, strides), x)(add_up(own, z, *parts))
    return dx, d_kernel


conv_pool.defvjp(_conv_pool, _conv_pool_backward)
