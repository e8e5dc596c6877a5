"""A batch norm of a training computed with the layer beside it, which spares passes over the large activations.

On a TPU such a pass costs more than the arithmetic of a small convolution. The functions give what the layers one by
one give, but for rounding; all statistics are float32. Images are NHWC. `num_groups` equal slices of the batch are
normalised each by its own mean and biased variance, which come back as float32 [num_groups, features].
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.layers import convolve, max_pool
from resnet_tpu.models.normed import POSITIONS, Normed, add_up, group, moments, moments_gradient, spread, widen

_EXACT = jax.lax.Precision.HIGHEST  # of products of small matrices, which a TPU would round to bfloat16


class ExpansionGradients(NamedTuple):
    """Of the kernel [in, out] and the scale [out], and three parts of that of the input x, by that of the result, dy.

    It is x @ again + dy @ back + constant, with again [g, in, in], back [g, out, in] and constant [g, in].
    """

    kernel: jax.Array
    scale: jax.Array
    again: jax.Array
    back: jax.Array
    constant: jax.Array


class Expansion(NamedTuple):
    """A 1x1 convolution x @ kernel with its batch norm, by mean and covariance of x, which has fewer channels.

    The kernel is rounded as the convolution's is. All are float32; by group are all but kernel [in, out] and scale.
    """

    kernel: jax.Array
    scale: jax.Array
    mean_in: jax.Array
    shared: jax.Array  # the covariance of x and the result
    mean: jax.Array
    var: jax.Array
    factor: jax.Array  # one over the deviation of the result

    @classmethod
    def of(
        cls,
        kernel: jax.Array,
        scale: jax.Array,
        mean_in: jax.Array,
        covariance: jax.Array,
        epsilon: float,
        dtype: DTypeLike,
    ) -> "Expansion":
        """mean_in [g, in], covariance [g, in, in]."""
        wide = kernel.astype(dtype).astype(jnp.float32)
        shared = jnp.einsum("gij,jo->gio", covariance, wide, precision=_EXACT)
        mean = jnp.einsum("gi,io->go", mean_in, wide, precision=_EXACT)
        var = jnp.maximum((wide * shared).sum(1), 0.0)
        return cls(wide, scale, mean_in, shared, mean, var, jax.lax.rsqrt(var + epsilon))

    @property
    def slope(self) -> jax.Array:
        """What the norm multiplies by, [g, out]."""
        return self.factor * self.scale

    def gradients(self, product: jax.Array, total: jax.Array, count: int) -> ExpansionGradients:
        """By the sums over `count` positions of the products of x and dy, [g, in, out], and of dy, [g, out]."""
        product = product - self.mean_in[:, :, None] * total[:, None, :]
        d_scale = self.factor * (self.kernel * product).sum(1)
        # the gradient of the convolution's result is slope * dy + inverse * (x @ kernel) + offset: arXiv:1502.03167
        slope = self.slope
        inverse = -slope * self.factor * d_scale / count
        offset = -slope * total / count - inverse * self.mean
        return ExpansionGradients(
            (product * slope[:, None] + count * self.shared * inverse[:, None]).sum(0),
            d_scale.sum(0),
            jnp.einsum("io,go,jo->gij", self.kernel, inverse, self.kernel, precision=_EXACT),
            (self.kernel * slope[:, None]).swapaxes(1, 2),
            jnp.einsum("io,go->gi", self.kernel, offset, precision=_EXACT),
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def conv_norm(
    x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float
) -> Normed:
    """A 1x1 convolution of stride 1 and its batch norm: x [n, h, w, in], kernel [in, out] -> [n, h, w, out].

    The statistics of x @ kernel follow from the mean and the covariance of x, which has fewer channels: they are known
    before the convolution, whose result is then normalised, added to and activated where it arises, and is never kept.
    The gradient needs x and the gradient that comes in alone. Mean and variance have none.
    """
    return _conv_norm(x, kernel, scale, bias, num_groups, epsilon)[0]


def _conv_norm(
    x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float
) -> tuple[Normed, Any]:
    grouped = group(x, num_groups)
    count = x.size // x.shape[-1] // num_groups
    # a product, for as a reduction the sum costs a pass of its own, and with one column it is made one
    ones = jnp.ones((*grouped.shape[:-1], 8), x.dtype)
    mean_in = inner(grouped, ones)[..., 0] / count
    covariance = inner(grouped, grouped) / count - mean_in[:, :, None] * mean_in[:, None, :]
    expansion = Expansion.of(kernel, scale, mean_in, covariance, epsilon, x.dtype)
    y = widen(convolve(x, kernel.astype(x.dtype)[None, None], (1, 1)), num_groups)
    y = (y - spread(expansion.mean)) * spread(expansion.slope) + bias
    return (y.astype(x.dtype).reshape(*x.shape[:-1], -1), expansion.mean, expansion.var), (x, expansion)


def _conv_norm_backward(num_groups: int, epsilon: float, kept: Any, gradients: Normed) -> tuple[jax.Array, ...]:
    del epsilon
    x, expansion = kept
    grouped, dy = group(x, num_groups), group(gradients[0], num_groups)
    total = dy.astype(jnp.float32).sum(POSITIONS)
    parts = expansion.gradients(inner(grouped, dy), total, dy.size // total.size)
    dx = multiply(dy, parts.back) + multiply(grouped, parts.again) + spread(parts.constant)
    return dx.astype(x.dtype).reshape(x.shape), parts.kernel, parts.scale, total.sum(0)


conv_norm.defvjp(_conv_norm, _conv_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def pool(x: jax.Array, num_groups: int, padding: PoolPadding) -> Normed:
    """`max_pool` of x, with mean and variance of x itself: [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c].

    By a norm that turns no channel over, the largest of a window is the largest before it is normalised too: a quarter
    of the values is left to normalise. Mean and variance have gradients.
    """
    return _pool(x, num_groups, padding)[0]


def _pool(x: jax.Array, num_groups: int, padding: PoolPadding) -> tuple[Normed, Any]:
    mean, var = moments(x, num_groups)
    return (max_pool(x, padding), mean, var), (x, mean)


def _pool_backward(num_groups: int, padding: PoolPadding, kept: Any, gradients: Normed) -> tuple[jax.Array]:
    del num_groups
    x, mean = kept
    own, *parts = pool_gradient(x, mean, gradients, padding)
    return (add_up(own, x, *parts),)


pool.defvjp(_pool, _pool_backward)


def pool_gradient(
    x: jax.Array, mean: jax.Array, gradients: Normed, padding: PoolPadding
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(own, slope, offset) of the gradient of x, see `add_up`, by those of what `pool` gives."""
    d_pooled, *d_moments = gradients
    (own,) = jax.vjp(lambda x: max_pool(x, padding), x)[1](d_pooled)
    return own, *moments_gradient(mean, d_moments, x.size // mean.size)


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), which the gradient asks where x was positive: x itself is not kept."""
    # else a TPU's compiler takes the maximum wherever it is used, and keeps x beside it for the other uses
    return jax.lax.optimization_barrier(jnp.maximum(x, 0))


def _relu(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = relu(x)
    return y, y


relu.defvjp(_relu, lambda y, dy: (jnp.where(y > 0, dy, 0),))


def inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """[g, n, h, w, i], [g, n, h, w, o] -> the sum over all positions of the products, float32 [g, i, o]."""
    return jnp.einsum("gnhwi,gnhwo->gio", x, y, preferred_element_type=jnp.float32)


def multiply(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[g, n, h, w, i], float32 [g, i, o] -> the products of the rows and the kernel, which is rounded as x: float32."""
    return jnp.einsum("gnhwi,gio->gnhwo", x, kernel.astype(x.dtype), preferred_element_type=jnp.float32)
