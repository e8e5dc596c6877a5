"""The layers of a training on a CPU, by the library of `models.native`.

A batch norm is not computed where it stands: what comes after a convolution stays as it is, with its mean and variance,
and is normalised and activated by what takes it, a few images at a time, which are in the cache then. The gradient is
computed the same way. So each convolution's result is written once and read twice in all.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike

from resnet_tpu.models import native
from resnet_tpu.models.normed import Activations, Norm, Pending, raw

_NORMED, _MEASURED, _FORKED, _NEEDS_INPUT = 1, 2, 4, 8  # as in native/conv.c


def is_able(dtype: DTypeLike) -> bool:
    """Whether the library is there and can do this type."""
    return jnp.dtype(dtype).name in native.load()


def _nothing() -> Norm:
    return Norm(*[jnp.zeros(1)] * 3)


def convolve(x: Activations, kernel: jax.Array, stride: int) -> tuple[jax.Array, ...]:
    """The convolution of x [n, h, w, in], or of relu(norm(x)), with a kernel float32 [k, k, in, out], padded as `Conv`.

    Returns (the result, its mean, its biased variance, x again). Who needs x elsewhere too takes that one: its gradient
    is then added to the convolution's where that arises. XLA computes what oneDNN has no convolution for.
    """
    before = raw(x)
    after = _shape_after(before, kernel, stride)
    if not native.has_convolution(before.shape, after, kernel.shape[0], stride, before.dtype.name):
        return _convolve_by_xla(x, kernel, stride)
    if isinstance(x, Pending):
        return _convolve(x.x, kernel, x.norm, stride, True)
    return _convolve(x, kernel, _nothing(), stride, False)


def _shape_after(x: jax.Array, kernel: jax.Array, stride: int) -> tuple[int, ...]:
    n, height, width, _ = x.shape
    return n, -(-height // stride), -(-width // stride), kernel.shape[-1]


def _convolve_by_xla(x: Activations, kernel: jax.Array, stride: int) -> tuple[jax.Array, ...]:
    active = jax.nn.relu(normalize(x)) if isinstance(x, Pending) else x
    before = native.padding_before(kernel.shape[0])
    padding = [(before, kernel.shape[0] - 1 - before)] * 2
    y = jax.lax.conv_general_dilated(
        active, kernel.astype(active.dtype), (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    wide = y.astype(jnp.float32)
    return y, wide.mean((0, 1, 2)), wide.var((0, 1, 2)), raw(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _convolve(x: jax.Array, kernel: jax.Array, norm: Norm, stride: int, is_pending: bool) -> Any:
    moments = kernel.shape[-1:], jnp.float32
    results = [(_shape_after(x, kernel, stride), x.dtype), moments, moments]
    settings = _settings(kernel, stride, is_pending * _NORMED | _MEASURED)
    y, mean, var = native.call("conv_forward", results, x, kernel, *norm, settings=settings)
    return y, mean, var, x


def _settings(kernel: jax.Array, stride: int, flags: int) -> list[int]:
    return [stride, native.padding_before(kernel.shape[0]), flags]


def _convolve_forward(x: Any, kernel: Any, norm: Any, stride: int, is_pending: bool) -> tuple[Any, Any]:
    plain = Norm(*(leaf.value for leaf in norm))
    results: Any = _convolve(x.value, kernel.value, plain, stride, is_pending)
    needs_input = () if x.perturbed else None  # told by the structure: values would be traced
    return results, (x.value, kernel.value, plain, results[0], results[1], needs_input)


def _convolve_backward(stride: int, is_pending: bool, kept: Any, gradients: Any) -> tuple[Any, Any, Any]:
    x, kernel, norm, y, mean, needs_input = kept
    is_zero = [isinstance(gradient, SymbolicZero) for gradient in gradients]
    dy, d_mean, d_var = map(_instantiate, gradients[:3])
    count = math.prod(y.shape[:-1])
    measured = Norm(mean, 2 * d_var / count, d_mean / count)
    flags = is_pending * _NORMED
    flags |= (not (is_zero[1] and is_zero[2])) * _MEASURED | (not is_zero[3]) * _FORKED
    flags |= (needs_input is not None) * _NEEDS_INPUT
    features = (kernel.shape[2:3], jnp.float32)
    results = [(x.shape if flags & _NEEDS_INPUT else (1,), x.dtype), features, features, (kernel.shape, jnp.float32)]
    arguments = x, kernel, *norm, y, dy, *measured, dy if is_zero[3] else gradients[3]
    settings = _settings(kernel, stride, flags)
    dx, d_slope, d_bias, d_kernel = native.call("conv_backward", results, *arguments, settings=settings)
    dx = dx if flags & _NEEDS_INPUT else jnp.zeros_like(x)
    return dx, d_kernel, _norm_gradient(norm, d_slope, d_bias, is_pending)


def _instantiate(gradient: Any) -> jax.Array:
    if not isinstance(gradient, SymbolicZero):
        return gradient
    missing: Any = gradient.aval
    return jnp.zeros(missing.shape, missing.dtype)


def _norm_gradient(norm: Norm, d_slope: jax.Array, d_bias: jax.Array, is_used: bool) -> Norm:
    return Norm(-norm.slope * d_bias, d_slope, d_bias) if is_used else Norm(*map(jnp.zeros_like, norm))


_convolve.defvjp(_convolve_forward, _convolve_backward, symbolic_zeros=True)


def normalize(pending: Pending) -> jax.Array:
    """norm(x), where nothing takes it that could do that itself."""
    x, norm = pending
    return ((x.astype(jnp.float32) - norm.mean) * norm.slope + norm.bias).astype(x.dtype)


def join(branch: Pending, shortcut: Activations) -> jax.Array:
    """relu(norm(branch) + shortcut), the shortcut normalised too if it is pending: [n, h, w, features]."""
    has_norm = isinstance(shortcut, Pending)
    beside, other = shortcut if isinstance(shortcut, Pending) else (shortcut, _nothing())
    return _join(branch.x, branch.norm, beside, other, has_norm)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _join(x: jax.Array, norm: Norm, beside: jax.Array, other: Norm, has_norm: bool) -> jax.Array:
    (y,) = native.call("join_forward", [(x.shape, x.dtype)], x, *norm, beside, *other, settings=[has_norm])
    return y


def _join_forward(x: jax.Array, norm: Norm, beside: jax.Array, other: Norm, has_norm: bool) -> tuple[jax.Array, Any]:
    y: Any = _join(x, norm, beside, other, has_norm)
    return y, (x, norm, beside if has_norm else None, other, y)


def _join_backward(has_norm: bool, kept: Any, dy: jax.Array) -> tuple[jax.Array, Norm, jax.Array, Norm]:
    x, norm, beside, other, y = kept
    sums = [((x.shape[-1],), jnp.float32)] * 3
    arguments = x, *norm, x if beside is None else beside, *other, y, dy
    dx, d_beside, d_slope, d_bias, d_other = native.call(
        "join_backward", [(x.shape, x.dtype)] * 2 + sums, *arguments, settings=[has_norm]
    )
    return dx, _norm_gradient(norm, d_slope, d_bias, True), d_beside, _norm_gradient(other, d_other, d_bias, has_norm)


_join.defvjp(_join_forward, _join_backward)


def pool(pending: Pending, padding: str) -> jax.Array:
    """max_pool(relu(norm(x)), padding): [n, h, w, features] -> [n, ceil(h/2), ceil(w/2), features]."""
    height = pending.x.shape[1]
    before = 1 if padding == "symmetric" or height % 2 else 0
    return _pool(pending.x, pending.norm, before)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _pool(x: jax.Array, norm: Norm, before: int) -> jax.Array:
    return _pool_forward(x, norm, before)[0]


def _pool_forward(x: jax.Array, norm: Norm, before: int) -> tuple[jax.Array, Any]:
    n, height, width, features = x.shape
    shape = (n, -(-height // 2), -(-width // 2), features)
    y, places = native.call("pool_forward", [(shape, x.dtype), (shape, jnp.uint8)], x, *norm, settings=[before])
    return y, (x, norm, places)


def _pool_backward(before: int, kept: Any, dy: jax.Array) -> tuple[jax.Array, Norm]:
    x, norm, places = kept
    sums = [((x.shape[-1],), jnp.float32)] * 2
    dx, d_slope, d_bias = native.call(
        "pool_backward", [(x.shape, x.dtype), *sums], x, *norm, dy, places, settings=[before]
    )
    return dx, _norm_gradient(norm, d_slope, d_bias, True)


_pool.defvjp(_pool_forward, _pool_backward)
