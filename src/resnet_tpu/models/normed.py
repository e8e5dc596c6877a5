"""Batch norms by statistics of the batch, kept apart from the activations that they are yet to normalise.

Images are NHWC. `num_groups` equal slices of the batch have each its own statistics, float32 [num_groups, features].
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

Normed = tuple[jax.Array, jax.Array, jax.Array]
"""(activations, mean, variance)."""

POSITIONS = (1, 2, 3)
"""Of what `group` gives: all but groups and channels."""


class Norm(NamedTuple):
    """A batch norm whose statistics are known, (x - mean) * slope + bias: float32 [num_groups, features] each.

    In `models.cpu`, where the batch is one group, [features].
    """

    mean: jax.Array
    slope: jax.Array
    bias: jax.Array

    @classmethod
    def of(cls, mean: jax.Array, var: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> "Norm":
        """By mean and variance [num_groups, features], and scale and bias [features]."""
        return cls(mean, jax.lax.rsqrt(var + epsilon) * scale, jnp.broadcast_to(bias, mean.shape))

    def linear(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, c] -> `widen` of it, normalised."""
        return self._widen(x) * spread(self.slope) + spread(self.bias - self.mean * self.slope)

    def relu(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, c] -> `group` of it, normalised and activated, of its dtype."""
        return jnp.maximum(self.linear(x), 0.0).astype(x.dtype)

    def pull_linear(self, x: jax.Array, dy: jax.Array) -> tuple[jax.Array, "Norm"]:
        """The gradients of x and of the norm, by that of `linear`; both are `widen`ed."""
        d_bias, d_slope = dy.sum(POSITIONS), ((self._widen(x) - spread(self.mean)) * dy).sum(POSITIONS)
        return dy * spread(self.slope), Norm(-self.slope * d_bias, d_slope, d_bias)

    def pull_relu(self, x: jax.Array, dy: jax.Array) -> tuple[jax.Array, "Norm"]:
        """The gradients of x and of the norm, by that of `relu`; both are `widen`ed."""
        return self.pull_linear(x, jnp.where(self.linear(x) > 0, dy, 0.0))

    def _widen(self, x: jax.Array) -> jax.Array:
        return widen(x, self.mean.shape[0])


class Pending(NamedTuple):
    """Activations [n, h, w, features] that whoever takes them has yet to normalise."""

    x: jax.Array
    norm: Norm


Activations = jax.Array | Pending
"""What one layer hands to the next."""


def active(x: Activations) -> jax.Array:
    """The activations: what is pending is normalised, and activated by a ReLU."""
    return _activate(*x) if isinstance(x, Pending) else x


def raw(x: Activations) -> jax.Array:
    """The activations, or what they are yet to be computed from."""
    return x.x if isinstance(x, Pending) else x


@jax.custom_vjp
def _activate(x: jax.Array, norm: Norm) -> jax.Array:
    return norm.relu(x).reshape(x.shape)


def _activate_backward(kept: tuple[jax.Array, Norm], dy: jax.Array) -> tuple[jax.Array, Norm]:
    x, norm = kept
    dx, d_norm = norm.pull_relu(x, widen(dy, norm.mean.shape[0]))
    return dx.astype(x.dtype).reshape(x.shape), d_norm


_activate.defvjp(lambda x, norm: (_activate(x, norm), (x, norm)), _activate_backward)


def moments_gradient(mean: jax.Array, d_moments: Sequence[jax.Array], count: int) -> tuple[jax.Array, jax.Array]:
    """(slope, offset) of the gradient slope * x + offset that x has by its mean and variance over `count` values."""
    d_mean, d_var = d_moments
    slope = 2 * d_var / count
    return slope, d_mean / count - slope * mean


def add_up(own: jax.Array, x: jax.Array, slope: jax.Array, offset: jax.Array) -> jax.Array:
    """The gradient own + slope * x + offset, like x: [n, h, w, c], with parts [num_groups, c]."""
    num_groups = slope.shape[0]
    total = widen(own, num_groups) + widen(x, num_groups) * spread(slope) + spread(offset)
    return total.astype(x.dtype).reshape(x.shape)


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
