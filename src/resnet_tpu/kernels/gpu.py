"""Kernels for GPUs, where memory bandwidth limits the step: they save passes over the activations.

XLA leaves convolutions on a GPU to a library and fuses nothing into them, so each norm costs passes of its own. The
kernels are pure JAX: they run anywhere, and agree with the plain layers except for rounding.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from resnet_tpu.kernels import fused
from resnet_tpu.kernels.fused import Expansion, Normed, inner
from resnet_tpu.kernels.norm import Norm, add_moments_gradient
from resnet_tpu.models import layers
from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.kernel_table import Kernels
from resnet_tpu.models.layers import POSITIONS, ConvNorm, Statistics, broadcast, group, moments, to_float32

_SIZE, _STRIDE = 3, 2  # of the max-pool's windows


def conv_norm(
    x: jax.Array, layer: ConvNorm, *, stride: int, num_groups: int, relu: bool, pool: PoolPadding | None
) -> tuple[jax.Array, Statistics] | None:
    """See `ConvNormKernel`. Computes all layers with batch statistics; `expand` computes 1x1 ones that add channels."""
    if layer.frozen is not None or (pool is not None and not relu):
        return None
    if pool is not None:
        own = functools.partial(max_pool, padding=pool)
        return fused.conv_norm_pool(x, layer, stride, num_groups, own)
    size, _, before, after = layer.kernel.shape
    if (size, stride) == (1, 1) and before <= after and not relu:
        normed: Any = expand(x, layer.kernel[0, 0], layer.scale, layer.bias, num_groups)
    else:
        z = layers.conv(x, layer.kernel, stride)
        normed = norm_act(z, layer.scale, layer.bias, num_groups, relu)
    y, mean, var = normed
    return y, Statistics(mean, var, y.size // after // num_groups)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def expand(x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int) -> Normed:
    """Like `fused.expand`, with the norm folded into the convolution's kernel and an offset.

    This lets the library's convolution add the shortcut and apply the ReLU before it writes its result.
    """
    return _expand_forward(x, kernel, scale, bias, num_groups)[0]


def _expand_forward(
    x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int
) -> tuple[Normed, Any]:
    grouped = group(x, num_groups)
    mean_in = to_float32(x, num_groups).mean(POSITIONS)
    products = inner(grouped, grouped) / (x.size // mean_in.size)
    expansion = Expansion.of(kernel, scale, mean_in, products - mean_in[:, :, None] * mean_in[:, None, :], x.dtype)
    scaled = (expansion.kernel * expansion.slope[:, None]).astype(x.dtype)
    offset = bias - (mean_in[:, :, None] * scaled).sum(1)  # from the rounded kernel, so that the mean is bias
    y = _multiply(x, scaled) + broadcast(offset.astype(x.dtype))
    return (y.reshape(*x.shape[:-1], -1), expansion.mean, expansion.var), (x, expansion)


def _expand_backward(num_groups: int, residuals: Any, gradients: Normed) -> tuple[jax.Array, ...]:
    x, expansion = residuals
    dy = gradients[0]
    grouped = group(dy, num_groups)
    total = to_float32(dy, num_groups).sum(POSITIONS)
    parts = expansion.gradients(inner(group(x, num_groups), grouped), total, dy.size // total.size, x.dtype)
    products = _multiply(dy, parts.dy_factor), _multiply(x, parts.x_factor)
    dx = sum((each.astype(jnp.float32) for each in products), broadcast(parts.constant))
    return dx.astype(x.dtype).reshape(x.shape), parts.kernel, parts.scale, total.sum(0)


expand.defvjp(_expand_forward, _expand_backward)


def _multiply(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[n, h, w, i], [g, i, o] -> [g, n / g, h, w, o] in x's dtype; for one group, by the library's convolution."""
    num_groups = kernel.shape[0]
    if num_groups == 1:
        return group(layers.conv(x, kernel[None]), 1)
    return jnp.einsum("gnhwi,gio->gnhwo", group(x, num_groups), kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def norm_act(x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, relu: bool) -> Normed:
    """Batch norm of x [n, h, w, c] by its own statistics, then a ReLU if `relu`. Mean and variance have no gradient.

    Only x is kept for the gradient, which takes two passes over x: one for the sums and one for the result.
    """
    return _norm_act_forward(x, scale, bias, num_groups, relu)[0]


def _norm_act_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, relu: bool
) -> tuple[Normed, Any]:
    mean, var = moments(x, num_groups)
    norm, norm_vjp = jax.vjp(Norm.of, mean, var, scale, bias)
    y = norm.relu(x) if relu else norm.linear(x)
    return (y.astype(x.dtype).reshape(x.shape), mean, var), (x, mean, norm, norm_vjp)


def _norm_act_backward(num_groups: int, relu: bool, residuals: Any, gradients: Normed) -> tuple[jax.Array, ...]:
    x, mean, norm, norm_vjp = residuals
    x = jax.lax.optimization_barrier(x)  # otherwise XLA also keeps what passed the ReLU, instead of recomputing it
    dy = to_float32(gradients[0], num_groups)
    dx, d_norm = norm.relu_vjp(x, dy) if relu else norm.linear_vjp(x, dy)
    *d_moments, d_scale, d_bias = norm_vjp(d_norm)
    return add_moments_gradient(dx.reshape(x.shape), x, mean, d_moments), d_scale, d_bias


norm_act.defvjp(_norm_act_forward, _norm_act_backward)


def max_pool(x: jax.Array, padding: PoolPadding) -> jax.Array:
    """`layers.max_pool` with the same results, but with a gradient that is computed by sums instead of a scatter."""
    windows = _windows(x, padding)
    largest, at = windows[0], jnp.zeros(windows[0].shape, jnp.int8)
    for index, window in enumerate(windows[1:], start=1):
        at = jnp.where(window > largest, jnp.int8(index), at)  # the first of equal values, as in the plain gradient
        largest = jnp.maximum(largest, window)
    at = jax.lax.stop_gradient(at)
    picked = (jnp.where(at == index, window, 0) for index, window in enumerate(windows))
    return functools.reduce(operator.add, picked)


def _windows(x: jax.Array, padding: PoolPadding) -> list[jax.Array]:
    """The values at each position of the windows, [n, ceil(h/2), ceil(w/2), c] each; -inf outside the map."""
    sides = [(1, 1)] * 2
    if padding == "same":
        sides = jax.lax.padtype_to_pads(x.shape[1:3], (_SIZE,) * 2, (_STRIDE,) * 2, "SAME")
    x = jnp.pad(x, [(0, 0), *sides, (0, 0)], constant_values=-jnp.inf)
    rows, columns = ((side - _SIZE) // _STRIDE + 1 for side in x.shape[1:3])
    ends = (_STRIDE * (rows - 1) + 1, _STRIDE * (columns - 1) + 1)
    return [
        x[:, row : row + ends[0] : _STRIDE, column : column + ends[1] : _STRIDE]
        for row in range(_SIZE)
        for column in range(_SIZE)
    ]


GPU = Kernels("gpu", conv_norm, fused.add_relu)
