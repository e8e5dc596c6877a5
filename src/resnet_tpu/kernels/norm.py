"""A batch norm with known statistics, as the factor and offset that it applies, and its gradients.

Images are NHWC. Each of `num_groups` equal slices of the batch has its own statistics, float32 [num_groups, channels].
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from resnet_tpu.models.architecture import EPSILON
from resnet_tpu.models.layers import POSITIONS, broadcast, to_float32


class Norm(NamedTuple):
    """A batch norm with known statistics, (x - mean) * slope + bias: float32 [num_groups, channels] each.

    In `kernels.cpu`, where the batch is one group, they are [channels].
    """

    mean: jax.Array
    slope: jax.Array
    bias: jax.Array

    @classmethod
    def of(cls, mean: jax.Array, var: jax.Array, scale: jax.Array, bias: jax.Array) -> "Norm":
        """From mean and variance [num_groups, channels], and scale and bias [channels]."""
        return cls(mean, jax.lax.rsqrt(var + EPSILON) * scale, jnp.broadcast_to(bias, mean.shape))

    def linear(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, c] -> x normalised, grouped, float32."""
        return self._to_float32(x) * broadcast(self.slope) + broadcast(self.bias - self.mean * self.slope)

    def relu(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, c] -> x normalised and activated, grouped, in its dtype."""
        return jnp.maximum(self.linear(x), 0.0).astype(x.dtype)

    def linear_vjp(self, x: jax.Array, dy: jax.Array) -> tuple[jax.Array, "Norm"]:
        """The gradients of x and of the norm, from dy, that of `linear(x)`. dx and dy are grouped, float32."""
        d_bias, d_slope = dy.sum(POSITIONS), ((self._to_float32(x) - broadcast(self.mean)) * dy).sum(POSITIONS)
        return dy * broadcast(self.slope), Norm(-self.slope * d_bias, d_slope, d_bias)

    def relu_vjp(self, x: jax.Array, dy: jax.Array) -> tuple[jax.Array, "Norm"]:
        """The gradients of x and of the norm, from dy, that of `relu(x)`. dx and dy are grouped, float32."""
        return self.linear_vjp(x, jnp.where(self.linear(x) > 0, dy, 0.0))

    def _to_float32(self, x: jax.Array) -> jax.Array:
        return to_float32(x, self.mean.shape[0])


@jax.custom_vjp
def materialize(x: jax.Array, norm: Norm) -> jax.Array:
    """relu(norm(x)), [n, h, w, c] in x's dtype; for the gradient, only x and the norm are kept."""
    return norm.relu(x).reshape(x.shape)


def _materialize_backward(residuals: tuple[jax.Array, Norm], dy: jax.Array) -> tuple[jax.Array, Norm]:
    x, norm = residuals
    dx, d_norm = norm.relu_vjp(x, to_float32(dy, norm.mean.shape[0]))
    return dx.astype(x.dtype).reshape(x.shape), d_norm


materialize.defvjp(lambda x, norm: (materialize(x, norm), (x, norm)), _materialize_backward)


def add_moments_gradient(own: jax.Array, x: jax.Array, mean: jax.Array, d_moments: Sequence[jax.Array]) -> jax.Array:
    """The gradient of x [n, h, w, c]: `own` plus the part that comes through the `moments` of x."""
    num_groups, count = mean.shape[0], x.size // mean.size
    d_mean, d_var = d_moments
    slope = 2 * d_var / count
    offset = d_mean / count - slope * mean
    total = to_float32(own, num_groups) + to_float32(x, num_groups) * broadcast(slope) + broadcast(offset)
    return total.astype(x.dtype).reshape(x.shape)
