"""A bottleneck block in training as one function, whose products take at once what would else be read twice.

On a TPU a pass over large activations costs more than the arithmetic of a product. The products of the last convolution
and of a projection of every pixel add up in one operation, and so do those that give the gradient of their inputs. The
gradients of their kernels are one product over the channels of both inputs side by side, without a copy: what lies in
memory is padded with channels of zeros as it is read, then normalised and added up. All activations of a block
lie in memory in one order. A strided projection is a convolution of its own.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from resnet_tpu.models import paired
from resnet_tpu.models.fused import Expansion, inner, multiply
from resnet_tpu.models.layers import LANES, convolve
from resnet_tpu.models.normed import (
    POSITIONS,
    Activations,
    Norm,
    Normed,
    Pending,
    add_up,
    group,
    moments,
    moments_gradient,
    raw,
    spread,
    widen,
)

Moments = tuple[jax.Array, jax.Array]
"""(mean, variance) of a batch norm, float32 [num_groups, features] each."""


class ConvParams(NamedTuple):
    """A convolution's kernel, HWIO, and scale and bias [out] of the batch norm behind it: float32."""

    kernel: jax.Array
    scale: jax.Array
    bias: jax.Array


class _Conv(NamedTuple):
    """A convolution's result, its batch norm, which is yet to normalise it, and the gradients of both."""

    z: jax.Array
    moments: Moments
    norm: Norm
    pull_conv: Any
    pull_norm: Any

    @classmethod
    def of(cls, x: jax.Array, params: ConvParams, stride: int, num_groups: int, epsilon: float) -> "_Conv":
        z, pull_conv = jax.vjp(functools.partial(_convolve, stride=stride), x, params.kernel)
        found = moments(z, num_groups)
        norm, pull_norm = jax.vjp(functools.partial(Norm.of, epsilon=epsilon), *found, params.scale, params.bias)
        return cls(z, found, norm, pull_conv, pull_norm)

    def gradients(self, dz: jax.Array, d_norm: Norm) -> tuple[jax.Array, ConvParams]:
        """Of x and the parameters, by those of the norm and of its argument, dz, like z."""
        *d_moments, d_scale, d_bias = self.pull_norm(d_norm)
        mean, _ = self.moments
        parts = moments_gradient(mean, d_moments, self.z.size // mean.size)
        dx, d_kernel = self.pull_conv(add_up(dz, self.z, *parts))
        return dx, ConvParams(d_kernel, d_scale, d_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def bottleneck(
    x: Activations, params: tuple[ConvParams, ...], stride: int, num_groups: int, epsilon: float, in_pairs: bool
) -> tuple[jax.Array, tuple[Moments, ...]]:
    """x [n, h, w, in] -> ([n, h/stride, w/stride, out] behind the last ReLU, the moments of every batch norm).

    The parameters are those of the convolutions of 1x1, 3x3 and 1x1, and of the projection, 1x1, of a block that has
    one; so stand the moments, which have no gradient. `in_pairs`: the 3x3 is computed as in `paired.norm_conv`.
    """
    return _bottleneck(x, params, stride, num_groups, epsilon, in_pairs)[0]


def _bottleneck(
    x: Activations, params: tuple[ConvParams, ...], stride: int, num_groups: int, epsilon: float, in_pairs: bool
) -> tuple[Any, Any]:
    params1, params2, *expanding = params
    active = _place(x, num_groups).reshape(raw(x).shape)
    conv1 = _Conv.of(active, params1, 1, num_groups, epsilon)
    norm_conv = paired.norm_conv if in_pairs else functools.partial(_norm_conv, stride)
    (z2, *moments2), pull_conv2 = jax.vjp(norm_conv, conv1.z, conv1.norm, params2.kernel)
    norm2, pull_norm2 = jax.vjp(functools.partial(Norm.of, epsilon=epsilon), *moments2, params2.scale, params2.bias)

    sources: list[Activations] = [Pending(z2, norm2)]  # of the last convolution, and of a projection of every pixel
    projection = None
    if len(expanding) > 1 and stride == 1:
        sources.append(x)
    elif len(expanding) > 1:
        projection = _Conv.of(active, expanding.pop(), stride, num_groups, epsilon)
    expansions = [_expand(conv, source, num_groups, epsilon) for conv, source in zip(expanding, sources, strict=True)]
    products = (
        multiply(_place(source, num_groups), each.kernel * each.slope[:, None])
        for source, each in zip(sources, expansions, strict=True)
    )
    y = functools.reduce(jnp.add, products)
    for conv, each in zip(expanding, expansions, strict=True):
        y += spread(conv.bias - each.mean * each.slope)
    if projection is not None:
        y += projection.norm.linear(projection.z)
    elif len(sources) == 1:
        y += _place(x, num_groups).astype(jnp.float32)
    y = _pin(jnp.maximum(y, 0.0).astype(z2.dtype).reshape(*z2.shape[:-1], -1), y.shape[-1] // 4)
    every = [conv1.moments, tuple(moments2), *((each.mean, each.var) for each in expansions)]
    every += [] if projection is None else [projection.moments]
    return (y, tuple(every)), (x, y, conv1, projection, sources, expansions, (pull_conv2, pull_norm2))


def _bottleneck_backward(
    stride: int, num_groups: int, epsilon: float, in_pairs: bool, kept: Any, gradients: Any
) -> tuple[Activations, tuple[ConvParams, ...]]:
    del stride, epsilon, in_pairs
    x, y, conv1, projection, sources, expansions, (pull_conv2, pull_norm2) = kept
    dy = _pin(jnp.where(y > 0, gradients[0], 0), y.shape[-1] // 4)
    (d_active, *d_source), d_expanding = _pull_expansions(dy, sources, expansions, num_groups)
    z2, norm2 = sources[0]
    dz2, d_norm2 = norm2.pull_relu(z2, d_active)
    dz2 = _pin(dz2.astype(z2.dtype).reshape(z2.shape), z2.shape[-1])
    *d_moments2, d_scale2, d_bias2 = pull_norm2(d_norm2)
    dz1, d_norm1, d_kernel2 = pull_conv2((dz2, *d_moments2))
    dx, d_params1 = conv1.gradients(dz1, d_norm1)

    dx = widen(dx, num_groups)
    if projection is not None:
        dz, d_norm = projection.norm.pull_linear(projection.z, widen(dy, num_groups))
        d_strided, d_projection = projection.gradients(dz.reshape(dy.shape), d_norm)
        dx += widen(d_strided, num_groups)
        d_expanding.append(d_projection)
    else:
        dx += d_source[0] if d_source else widen(dy, num_groups)
    d_params = d_params1, ConvParams(d_kernel2, d_scale2, d_bias2), *d_expanding
    if isinstance(x, Pending):
        dx, d_norm = x.norm.pull_relu(x.x, dx)
        return Pending(dx.astype(y.dtype).reshape(x.x.shape), d_norm), d_params
    return dx.astype(y.dtype).reshape(x.shape), d_params


bottleneck.defvjp(_bottleneck, _bottleneck_backward)


def _pull_expansions(
    dy: jax.Array, sources: list[Activations], expansions: list[Expansion], num_groups: int
) -> tuple[list[jax.Array], list[ConvParams]]:
    """The gradients of the sources, grouped and float32, and of the convolutions, by that of their sum."""
    grouped = group(dy, num_groups)
    total = grouped.astype(jnp.float32).sum(POSITIONS)
    products = inner(_beside(num_groups, *sources), grouped)
    d_sources, d_convs, end = [], [], 0
    for source, expansion in zip(sources, expansions, strict=True):
        begin, end = end, end + raw(source).shape[-1]
        parts = expansion.gradients(products[:, begin:end], total, grouped.size // total.size)
        d_source = multiply(grouped, parts.back) + multiply(_place(source, num_groups), parts.again)
        d_sources.append(d_source + spread(parts.constant))
        d_convs.append(ConvParams(parts.kernel[None, None], parts.scale, total.sum(0)))
    return d_sources, d_convs


def _expand(conv: ConvParams, source: Activations, num_groups: int, epsilon: float) -> Expansion:
    active = _place(source, num_groups)
    before = active.shape[-1]
    products = inner(_place(source, num_groups, after=8, fill=1.0), active)  # those with ones are the sum
    products /= active.size // (num_groups * before)
    mean = products[:, before]
    covariance = products[:, :before] - mean[:, :, None] * mean[:, None, :]
    return Expansion.of(conv.kernel[0, 0], conv.scale, mean, covariance, epsilon, raw(source).dtype)


def _beside(num_groups: int, *parts: Activations) -> jax.Array:
    """The activations, channels side by side: [num_groups, n / num_groups, h, w, all channels]."""
    ends = list(itertools.accumulate(raw(part).shape[-1] for part in parts))
    placed = (
        _place(part, num_groups, before=end - raw(part).shape[-1], after=ends[-1] - end)
        for part, end in zip(parts, ends, strict=True)
    )
    return functools.reduce(jnp.add, placed)


def _place(part: Activations, num_groups: int, *, before: int = 0, after: int = 0, fill: float = 0.0) -> jax.Array:
    """The activations, grouped, between channels of `fill`, which is not negative."""

    def pad(values: jax.Array, fill: float) -> jax.Array:
        return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(before, after)], constant_values=fill)

    if not isinstance(part, Pending):
        return group(pad(part, fill), num_groups)
    mean, slope, bias = part.norm
    return Norm(pad(mean, 0.0), pad(slope, 0.0), pad(bias, fill)).relu(pad(part.x, 0.0))


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return _pin(convolve(x, kernel.astype(x.dtype), (stride, stride)), kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm_conv(stride: int, x: jax.Array, norm: Norm, kernel: jax.Array) -> Normed:
    """As `paired.norm_conv`, column by column and with any stride."""
    return _norm_conv_forward(stride, x, norm, kernel)[0]


def _norm_conv_forward(stride: int, x: jax.Array, norm: Norm, kernel: jax.Array) -> tuple[Normed, Any]:
    z, pull = jax.vjp(functools.partial(_convolve, stride=stride), norm.relu(x).reshape(x.shape), kernel)
    mean, var = moments(z, norm.mean.shape[0])
    return (z, mean, var), (x, norm, z, mean, pull)


def _norm_conv_backward(stride: int, kept: Any, gradients: Normed) -> tuple[jax.Array, Norm, jax.Array]:
    del stride
    x, norm, z, mean, pull = kept
    dz, *d_moments = gradients
    parts = moments_gradient(mean, d_moments, z.size // mean.size)
    d_active, _ = pull(add_up(dz, z, *parts))
    # once more: what both convolutions take, the compiler for a v4 writes to memory first
    _, d_kernel = pull(add_up(jax.lax.optimization_barrier(dz), z, *parts))
    dx, d_norm = norm.pull_relu(x, widen(d_active, norm.mean.shape[0]))
    return dx.astype(x.dtype).reshape(x.shape), d_norm, d_kernel


_norm_conv.defvjp(_norm_conv_forward, _norm_conv_backward)


def _pin(x: jax.Array, narrow: int) -> jax.Array:
    """Lays x out as activations with `narrow` channels are, which stand beside it: few of them by image."""
    return paired.lay_out(x, (1, 2, 3, 0) if narrow < LANES else (1, 2, 0, 3))
