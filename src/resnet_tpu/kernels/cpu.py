"""Kernels for a CPU, computed by the library of `kernels.native`.

A batch norm needs no pass of its own. The result of a convolution is stored before normalisation, with its mean and
variance. The layer that reads it normalises and activates it, a few images at a time, while they are in the cache. The
gradient is computed in the same way. So each convolution's result is written once and read twice in all.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from resnet_tpu.kernels import native
from resnet_tpu.kernels.norm import Norm
from resnet_tpu.models import layers
from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.kernel_table import Kernels
from resnet_tpu.models.layers import ConvNorm, Statistics

_NORMED, _MEASURED, _FORKED, _NEEDS_INPUT = 1, 2, 4, 8  # as in native/conv.c


class Deferred(NamedTuple):
    """relu(norm(x)) of x [n, h, w, c], not computed yet: the layer that reads it computes it."""

    x: jax.Array
    norm: Norm


Activations = jax.Array | Deferred
"""The activations that one layer passes to the next, computed or deferred."""


def stored(x: Activations) -> jax.Array:
    """The array in memory: the activations, or the array from which they will be computed."""
    return x.x if isinstance(x, Deferred) else x


def conv_norm(
    x: jax.Array, layer: ConvNorm, *, stride: int, num_groups: int, relu: bool, pool: PoolPadding | None
) -> tuple[jax.Array, Statistics] | None:
    """See `ConvNormKernel`. Computes any layer if the batch is one group."""
    if num_groups != 1:
        return None
    deferred, statistics, _ = _conv_then_defer_norm(x, layer, stride)
    if pool is not None and relu:
        return max_pool(deferred, pool), statistics
    y = normalize(deferred)
    y = layers.relu(y) if relu else y
    return y if pool is None else layers.max_pool(y, pool), statistics


def block(
    x: jax.Array, branch: Sequence[ConvNorm], projection: ConvNorm | None, *, stride: int, num_groups: int
) -> tuple[jax.Array, list[Statistics]] | None:
    """See `BlockKernel`. Computes any block if the batch is one group."""
    if num_groups != 1:
        return None
    strides = (stride, 1) if len(branch) == 2 else (1, stride, 1)
    y, statistics, x = _conv_then_defer_norm(x, branch[0], strides[0])
    every, shortcut, of_shortcut = [statistics], x, []
    if projection is not None:
        shortcut, statistics, _ = _conv_then_defer_norm(x, projection, stride)
        of_shortcut = [statistics]
    for layer, own_stride in zip(branch[1:], strides[1:], strict=True):
        y, statistics, _ = _conv_then_defer_norm(y, layer, own_stride)
        every.append(statistics)
    return residual_add(y, shortcut), every + of_shortcut


def _conv_then_defer_norm(x: Activations, layer: ConvNorm, stride: int) -> tuple[Deferred, Statistics, jax.Array]:
    """(the convolution with its norm deferred, its statistics, x again): see `convolve`."""
    y, mean, var, again = convolve(x, layer.kernel, stride)
    norm = Norm.of(*((mean, var) if layer.frozen is None else layer.frozen), layer.scale, layer.bias)
    return Deferred(y, norm), Statistics(mean[None], var[None], y.size // y.shape[-1]), again


def _placeholder_norm() -> Norm:
    return Norm(*[jnp.zeros(1)] * 3)


def convolve(x: Activations, kernel: jax.Array, stride: int) -> tuple[jax.Array, ...]:
    """`layers.conv` of x [n, h, w, in], or of relu(norm(x)), with a kernel float32 [k, k, in, out].

    Returns (the result, its mean, its biased variance, x again). A caller that also needs x elsewhere should use the
    returned x, so that its gradient is added where the convolution's gradient is computed. XLA computes convolutions
    that oneDNN lacks.
    """
    before = stored(x)
    after = _shape_after(before, kernel, stride)
    if not native.has_convolution(before.shape, after, kernel.shape[0], stride, before.dtype.name):
        return _convolve_by_xla(x, kernel, stride)
    if isinstance(x, Deferred):
        return _convolve(x.x, kernel, x.norm, stride, True)
    return _convolve(x, kernel, _placeholder_norm(), stride, False)


def _shape_after(x: jax.Array, kernel: jax.Array, stride: int) -> tuple[int, ...]:
    n, height, width, _ = x.shape
    return n, -(-height // stride), -(-width // stride), kernel.shape[-1]


def _convolve_by_xla(x: Activations, kernel: jax.Array, stride: int) -> tuple[jax.Array, ...]:
    active = jax.nn.relu(normalize(x)) if isinstance(x, Deferred) else x
    y = layers.conv(active, kernel, stride)
    wide = y.astype(jnp.float32)
    return y, wide.mean((0, 1, 2)), wide.var((0, 1, 2)), stored(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _convolve(x: jax.Array, kernel: jax.Array, norm: Norm, stride: int, is_deferred: bool) -> Any:
    moments = kernel.shape[-1:], jnp.float32
    results = [(_shape_after(x, kernel, stride), x.dtype), moments, moments]
    settings = _settings(kernel, stride, is_deferred * _NORMED | _MEASURED)
    y, mean, var = native.call("conv_forward", results, x, kernel, *norm, settings=settings)
    return y, mean, var, x


def _settings(kernel: jax.Array, stride: int, flags: int) -> list[int]:
    return [stride, native.padding_before(kernel.shape[0]), flags]


def _convolve_forward(x: Any, kernel: Any, norm: Any, stride: int, is_deferred: bool) -> tuple[Any, Any]:
    plain = Norm(*(leaf.value for leaf in norm))
    results: Any = _convolve(x.value, kernel.value, plain, stride, is_deferred)
    needs_input = () if x.perturbed else None  # encoded in the structure, as values would be traced
    return results, (x.value, kernel.value, plain, results[0], results[1], needs_input)


def _convolve_backward(stride: int, is_deferred: bool, residuals: Any, gradients: Any) -> tuple[Any, Any, Any]:
    x, kernel, norm, y, mean, needs_input = residuals
    is_zero = [isinstance(gradient, SymbolicZero) for gradient in gradients]
    dy, d_mean, d_var = map(_instantiate, gradients[:3])
    count = math.prod(y.shape[:-1])
    measured = Norm(mean, 2 * d_var / count, d_mean / count)
    flags = is_deferred * _NORMED
    flags |= (not (is_zero[1] and is_zero[2])) * _MEASURED | (not is_zero[3]) * _FORKED
    flags |= (needs_input is not None) * _NEEDS_INPUT
    features = (kernel.shape[2:3], jnp.float32)
    results = [(x.shape if flags & _NEEDS_INPUT else (1,), x.dtype), features, features, (kernel.shape, jnp.float32)]
    arguments = x, kernel, *norm, y, dy, *measured, dy if is_zero[3] else gradients[3]
    settings = _settings(kernel, stride, flags)
    dx, d_slope, d_bias, d_kernel = native.call("conv_backward", results, *arguments, settings=settings)
    dx = dx if flags & _NEEDS_INPUT else jnp.zeros_like(x)
    return dx, d_kernel, _norm_gradient(norm, d_slope, d_bias, is_deferred)


def _instantiate(gradient: Any) -> jax.Array:
    if not isinstance(gradient, SymbolicZero):
        return gradient
    missing: Any = gradient.aval
    return jnp.zeros(missing.shape, missing.dtype)


def _norm_gradient(norm: Norm, d_slope: jax.Array, d_bias: jax.Array, is_used: bool) -> Norm:
    return Norm(-norm.slope * d_bias, d_slope, d_bias) if is_used else Norm(*map(jnp.zeros_like, norm))


_convolve.defvjp(_convolve_forward, _convolve_backward, symbolic_zeros=True)


def normalize(deferred: Deferred) -> jax.Array:
    """norm(x), for when the next layer cannot apply the norm itself."""
    x, norm = deferred
    return ((x.astype(jnp.float32) - norm.mean) * norm.slope + norm.bias).astype(x.dtype)


def residual_add(branch: Deferred, shortcut: Activations) -> jax.Array:
    """relu(norm(branch) + shortcut), the shortcut normalised too if it is deferred: [n, h, w, features]."""
    has_norm = isinstance(shortcut, Deferred)
    beside, other = shortcut if isinstance(shortcut, Deferred) else (shortcut, _placeholder_norm())
    return _residual_add(branch.x, branch.norm, beside, other, has_norm)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _residual_add(x: jax.Array, norm: Norm, beside: jax.Array, other: Norm, has_norm: bool) -> jax.Array:
    (y,) = native.call("residual_forward", [(x.shape, x.dtype)], x, *norm, beside, *other, settings=[has_norm])
    return y


def _residual_add_forward(
    x: jax.Array, norm: Norm, beside: jax.Array, other: Norm, has_norm: bool
) -> tuple[jax.Array, Any]:
    y: Any = _residual_add(x, norm, beside, other, has_norm)
    return y, (x, norm, beside if has_norm else None, other, y)


def _residual_add_backward(has_norm: bool, residuals: Any, dy: jax.Array) -> tuple[jax.Array, Norm, jax.Array, Norm]:
    x, norm, beside, other, y = residuals
    sums = [((x.shape[-1],), jnp.float32)] * 3
    arguments = x, *norm, x if beside is None else beside, *other, y, dy
    dx, d_beside, d_slope, d_bias, d_other = native.call(
        "residual_backward", [(x.shape, x.dtype)] * 2 + sums, *arguments, settings=[has_norm]
    )
    return dx, _norm_gradient(norm, d_slope, d_bias, True), d_beside, _norm_gradient(other, d_other, d_bias, has_norm)


_residual_add.defvjp(_residual_add_forward, _residual_add_backward)


def max_pool(deferred: Deferred, padding: PoolPadding) -> jax.Array:
    """max_pool(relu(norm(x)), padding): [n, h, w, features] -> [n, ceil(h/2), ceil(w/2), features]."""
    height = deferred.x.shape[1]
    before = 1 if padding == "symmetric" or height % 2 else 0
    return _pool(deferred.x, deferred.norm, before)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _pool(x: jax.Array, norm: Norm, before: int) -> jax.Array:
    return _pool_forward(x, norm, before)[0]


def _pool_forward(x: jax.Array, norm: Norm, before: int) -> tuple[jax.Array, Any]:
    n, height, width, features = x.shape
    shape = (n, -(-height // 2), -(-width // 2), features)
    y, positions = native.call("pool_forward", [(shape, x.dtype), (shape, jnp.uint8)], x, *norm, settings=[before])
    return y, (x, norm, positions)


def _pool_backward(before: int, residuals: Any, dy: jax.Array) -> tuple[jax.Array, Norm]:
    x, norm, positions = residuals
    sums = [((x.shape[-1],), jnp.float32)] * 2
    dx, d_slope, d_bias = native.call(
        "pool_backward", [(x.shape, x.dtype), *sums], x, *norm, dy, positions, settings=[before]
    )
    return dx, _norm_gradient(norm, d_slope, d_bias, True)


_pool.defvjp(_pool_forward, _pool_backward)


CPU = Kernels("cpu", conv_norm, block=block)
