"""A kernel for a whole bottleneck block, whose products read at once what would otherwise be read twice.

On a TPU, a pass over large activations costs more than the arithmetic of a product. The products of the last
convolution and of an unstrided projection are added in one operation, and so are those that give the gradients of their
inputs. The gradients of their kernels are one product over the channels of both inputs side by side, without a copy:
stored activations are padded with channels of zeros as they are read, then normalised and added. All activations of a
block have the same memory layout. A strided projection is a convolution of its own.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from resnet_tpu.kernels import fused
from resnet_tpu.kernels.deferred import Activations, Deferred, Norm, add_gradients, moments, moments_vjp, stored
from resnet_tpu.kernels.fused import Expansion, Normed, inner, multiply
from resnet_tpu.models import layers
from resnet_tpu.models.kernel_table import Kernels
from resnet_tpu.models.layers import POSITIONS, ConvNorm, Statistics, broadcast, group, to_float32

_LANES = 128  # values in a row of a TPU's vector memory: one channel of this many images, where channels are few

Moments = tuple[jax.Array, jax.Array]
"""(mean, variance) of a batch norm, float32 [num_groups, channels] each."""


def block_kernels(num_devices: int) -> Kernels:
    """Kernels for whole bottleneck blocks on `num_devices` devices, and those of `kernels.fused` for the rest."""
    return Kernels("block", fused.conv_norm, fused.add_relu, functools.partial(block, num_devices=num_devices))


def block(
    x: jax.Array,
    branch: Sequence[ConvNorm],
    projection: ConvNorm | None,
    *,
    stride: int,
    num_groups: int,
    num_devices: int,
) -> tuple[jax.Array, list[Statistics]] | None:
    """See `BlockKernel`: for bottlenecks, if the images of each device fill whole rows of vector memory."""
    if len(branch) != 3 or branch[0].frozen is not None or x.shape[0] % (_LANES * num_devices):
        return None
    found: Any = _bottleneck(x, (*branch, *([projection] if projection else [])), stride, num_groups)
    y, every = found
    counts = (like.size // like.shape[-1] // num_groups for like in (x, y, y, y))
    return y, [Statistics(mean, var, count) for (mean, var), count in zip(every, counts, strict=False)]


class _Conv(NamedTuple):
    """A convolution's result, the batch norm that is yet to be applied to it, and the gradients of both."""

    z: jax.Array
    moments: Moments
    norm: Norm
    conv_vjp: Any
    norm_vjp: Any

    @classmethod
    def of(cls, x: jax.Array, layer: ConvNorm, stride: int, num_groups: int) -> "_Conv":
        z, conv_vjp = jax.vjp(functools.partial(_conv, stride=stride), x, layer.kernel)
        found = moments(z, num_groups)
        norm, norm_vjp = jax.vjp(Norm.of, *found, layer.scale, layer.bias)
        return cls(z, found, norm, conv_vjp, norm_vjp)

    def gradients(self, dz: jax.Array, d_norm: Norm) -> tuple[jax.Array, ConvNorm]:
        """The gradients of x and the parameters, from those of the norm and of its argument, dz, like z."""
        *d_moments, d_scale, d_bias = self.norm_vjp(d_norm)
        mean, _ = self.moments
        parts = moments_vjp(mean, d_moments, self.z.size // mean.size)
        dx, d_kernel = self.conv_vjp(add_gradients(dz, self.z, *parts))
        return dx, ConvNorm(d_kernel, d_scale, d_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _bottleneck(
    x: jax.Array, convs: tuple[ConvNorm, ...], stride: int, num_groups: int
) -> tuple[jax.Array, tuple[Moments, ...]]:
    """x [n, h, w, in] -> ([n, h/stride, w/stride, out] after the last ReLU, the moments of every batch norm).

    The convolutions are 1x1, 3x3 and 1x1, then the 1x1 projection of a block that has one; the moments come in this
    order, and have no gradient.
    """
    return _forward(x, convs, stride, num_groups)[0]


def _forward(x: jax.Array, convs: tuple[ConvNorm, ...], stride: int, num_groups: int) -> tuple[Any, Any]:
    layer1, layer2, *expanding = convs
    conv1 = _Conv.of(_read(x, num_groups).reshape(x.shape), layer1, 1, num_groups)
    (z2, *moments2), conv2_vjp = jax.vjp(functools.partial(_norm_conv, stride), conv1.z, conv1.norm, layer2.kernel)
    norm2, norm2_vjp = jax.vjp(Norm.of, *moments2, layer2.scale, layer2.bias)

    sources: list[Activations] = [Deferred(z2, norm2)]  # inputs of the last convolution and of an unstrided projection
    projection = None
    if len(expanding) > 1 and stride == 1:
        sources.append(x)
    elif len(expanding) > 1:
        projection = _Conv.of(x, expanding.pop(), stride, num_groups)
    expansions = [_expand(conv, source, num_groups) for conv, source in zip(expanding, sources, strict=True)]
    products = (
        multiply(_read(source, num_groups), each.kernel * each.slope[:, None])
        for source, each in zip(sources, expansions, strict=True)
    )
    y = functools.reduce(jnp.add, products)
    for conv, each in zip(expanding, expansions, strict=True):
        y += broadcast(conv.bias - each.mean * each.slope)
    if projection is not None:
        y += projection.norm.linear(projection.z)
    elif len(sources) == 1:
        y += to_float32(x, num_groups)
    y = _lay_out(jnp.maximum(y, 0.0).astype(z2.dtype).reshape(*z2.shape[:-1], -1), y.shape[-1] // 4)
    every = [conv1.moments, tuple(moments2), *((each.mean, each.var) for each in expansions)]
    every += [] if projection is None else [projection.moments]
    return (y, tuple(every)), (x, y, conv1, projection, sources, expansions, (conv2_vjp, norm2_vjp))


def _backward(stride: int, num_groups: int, residuals: Any, gradients: Any) -> tuple[jax.Array, tuple[ConvNorm, ...]]:
    del stride
    x, y, conv1, projection, sources, expansions, (conv2_vjp, norm2_vjp) = residuals
    dy = _lay_out(jnp.where(y > 0, gradients[0], 0), y.shape[-1] // 4)
    (d_active, *d_source), d_expanding = _expansions_vjp(dy, sources, expansions, num_groups)
    z2, norm2 = sources[0]
    dz2, d_norm2 = norm2.relu_vjp(z2, d_active)
    dz2 = _lay_out(dz2.astype(z2.dtype).reshape(z2.shape), z2.shape[-1])
    *d_moments2, d_scale2, d_bias2 = norm2_vjp(d_norm2)
    dz1, d_norm1, d_kernel2 = conv2_vjp((dz2, *d_moments2))
    dx, d_layer1 = conv1.gradients(dz1, d_norm1)

    dx = to_float32(dx, num_groups)
    if projection is not None:
        dz, d_norm = projection.norm.linear_vjp(projection.z, to_float32(dy, num_groups))
        d_strided, d_projection = projection.gradients(dz.reshape(dy.shape), d_norm)
        dx += to_float32(d_strided, num_groups)
        d_expanding.append(d_projection)
    else:
        dx += d_source[0] if d_source else to_float32(dy, num_groups)
    d_layers = d_layer1, ConvNorm(d_kernel2, d_scale2, d_bias2), *d_expanding
    return dx.astype(y.dtype).reshape(x.shape), d_layers


_bottleneck.defvjp(_forward, _backward)


def _expansions_vjp(
    dy: jax.Array, sources: list[Activations], expansions: list[Expansion], num_groups: int
) -> tuple[list[jax.Array], list[ConvNorm]]:
    """The gradients of the sources, grouped and float32, and of the convolutions, from that of their sum."""
    grouped = group(dy, num_groups)
    total = grouped.astype(jnp.float32).sum(POSITIONS)
    products = inner(_side_by_side(num_groups, *sources), grouped)
    d_sources, d_convs, end = [], [], 0
    for source, expansion in zip(sources, expansions, strict=True):
        begin, end = end, end + stored(source).shape[-1]
        parts = expansion.gradients(products[:, begin:end], total, grouped.size // total.size, dy.dtype)
        d_source = multiply(grouped, parts.back) + multiply(_read(source, num_groups), parts.again)
        d_sources.append(d_source + broadcast(parts.constant))
        d_convs.append(ConvNorm(parts.kernel[None, None], parts.scale, total.sum(0)))
    return d_sources, d_convs


def _expand(conv: ConvNorm, source: Activations, num_groups: int) -> Expansion:
    active = _read(source, num_groups)
    before = active.shape[-1]
    products = inner(_read(source, num_groups, after=8, fill=1.0), active)  # products with ones are sums
    products /= active.size // (num_groups * before)
    mean = products[:, before]
    covariance = products[:, :before] - mean[:, :, None] * mean[:, None, :]
    return Expansion.of(conv.kernel[0, 0], conv.scale, mean, covariance, stored(source).dtype)


def _side_by_side(num_groups: int, *parts: Activations) -> jax.Array:
    """The channels of all activations side by side: [num_groups, n / num_groups, h, w, all channels]."""
    ends = list(itertools.accumulate(stored(part).shape[-1] for part in parts))
    padded = (
        _read(part, num_groups, before=end - stored(part).shape[-1], after=ends[-1] - end)
        for part, end in zip(parts, ends, strict=True)
    )
    return functools.reduce(jnp.add, padded)


def _read(source: Activations, num_groups: int, *, before: int = 0, after: int = 0, fill: float = 0.0) -> jax.Array:
    """The activations, grouped, padded with channels of `fill`, which is not negative."""

    def pad(values: jax.Array, fill: float) -> jax.Array:
        return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(before, after)], constant_values=fill)

    if not isinstance(source, Deferred):
        return group(pad(source, fill), num_groups)
    mean, slope, bias = source.norm
    return Norm(pad(mean, 0.0), pad(slope, 0.0), pad(bias, fill)).relu(pad(source.x, 0.0))


def _conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return _lay_out(layers.conv(x, kernel, stride), kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm_conv(stride: int, x: jax.Array, norm: Norm, kernel: jax.Array) -> Normed:
    """A convolution of relu(norm(x)), x [n, h, w, in] -> ([n, h', w', out], its mean, its variance).

    The kernel is float32 [k, k, in, out]. Mean and variance have gradients.
    """
    return _norm_conv_forward(stride, x, norm, kernel)[0]


def _norm_conv_forward(stride: int, x: jax.Array, norm: Norm, kernel: jax.Array) -> tuple[Normed, Any]:
    z, vjp = jax.vjp(functools.partial(_conv, stride=stride), norm.relu(x).reshape(x.shape), kernel)
    mean, var = moments(z, norm.mean.shape[0])
    return (z, mean, var), (x, norm, z, mean, vjp)


def _norm_conv_backward(stride: int, residuals: Any, gradients: Normed) -> tuple[jax.Array, Norm, jax.Array]:
    del stride
    x, norm, z, mean, vjp = residuals
    dz, *d_moments = gradients
    parts = moments_vjp(mean, d_moments, z.size // mean.size)
    d_active, _ = vjp(add_gradients(dz, z, *parts))
    # computed twice: the compiler for a TPU v4 would first write what both convolutions read to memory
    _, d_kernel = vjp(add_gradients(jax.lax.optimization_barrier(dz), z, *parts))
    dx, d_norm = norm.relu_vjp(x, to_float32(d_active, norm.mean.shape[0]))
    return dx.astype(x.dtype).reshape(x.shape), d_norm, d_kernel


_norm_conv.defvjp(_norm_conv_forward, _norm_conv_backward)


def _lay_out(x: jax.Array, narrow: int) -> jax.Array:
    """Gives x the layout of the block's activations with `narrow` channels: images innermost if these are few."""
    order = (1, 2, 3, 0) if narrow < _LANES else (1, 2, 0, 3)
    # elsewhere this is of no use, and XLA for CPU (jaxlib 0.10.2) errs where such an x is the result of a program
    return jax.lax.platform_dependent(x, tpu=lambda x: with_layout_constraint(x, Layout(order)), default=lambda x: x)
