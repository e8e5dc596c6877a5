"""The EvoNorms: a normalisation and an activation in one. Source: arXiv:2004.02967.

Statistics are float32; the rest is computed in the dtype of the activations. Arrays are [1, 1, 1, c], as in the
original's checkpoints.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from resnet_tpu.models.architecture import EPSILON, evonorm_groups
from resnet_tpu.models.layers import group


class EvoNorm(NamedTuple):
    """The arrays of one EvoNorm: scale and bias of the result, and `v` inside the non-linearity."""

    scale: jax.Array
    bias: jax.Array
    v: jax.Array


def evonorm_s0(x: jax.Array, arrays: EvoNorm) -> jax.Array:
    """x * sigmoid(v x) / (standard deviation of the image's channel group), scaled and shifted: [n, h, w, c].

    The same in training and evaluation. The channel groups are those of `evonorm_groups`.
    """
    n, height, width, channels = x.shape
    groups = evonorm_groups(channels)
    grouped = x.reshape(n, height, width, groups, channels // groups)
    var = grouped.astype(jnp.float32).var((1, 2, 4), keepdims=True)
    active = (x * jax.nn.sigmoid(arrays.v.astype(x.dtype) * x)).reshape(grouped.shape)
    return _scale_and_shift((active / _deviation(var, x)).reshape(x.shape), arrays)


def evonorm_b0(x: jax.Array, arrays: EvoNorm, var: jax.Array) -> jax.Array:
    """x / max(sqrt(var + EPSILON), v x + standard deviation of the image), scaled and shifted: [n, h, w, c].

    var: the variance of the batch, or its running average, broadcastable to x.
    """
    image = x.astype(jnp.float32).var((-3, -2), keepdims=True)
    own = arrays.v.astype(x.dtype) * x + _deviation(image, x)
    return _scale_and_shift(x / jnp.maximum(_deviation(var, x), own), arrays)


def evonorm_b0_by_batch(x: jax.Array, arrays: EvoNorm, num_groups: int) -> tuple[jax.Array, jax.Array]:
    """`evonorm_b0` with the biased variance of each slice of the batch, and the mean of these, [1, 1, 1, c]."""
    grouped = group(x, num_groups)
    var = grouped.astype(jnp.float32).var((1, 2, 3), keepdims=True)
    return evonorm_b0(grouped, arrays, var).reshape(x.shape), var.mean(0)


def _scale_and_shift(x: jax.Array, arrays: EvoNorm) -> jax.Array:
    return x * arrays.scale.astype(x.dtype) + arrays.bias.astype(x.dtype)


def _deviation(var: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.sqrt(var + EPSILON).astype(like.dtype)
