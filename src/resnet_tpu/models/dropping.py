"""Random dropping in training: activations (dropout), squares of them (DropBlock), branches (drop connect).

Each function scales up the values that it keeps.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def dropout(x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Sets each value of x, any shape, to 0 with probability `rate`, 0 <= rate < 1. Source: arXiv:1207.0580."""
    return _keep(x, x.shape, key, rate)


def drop_connect(x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Sets each whole image of x [n, h, w, c] to 0 with probability `rate`, 0 <= rate < 1: it skips the branch.

    Source: arXiv:1603.09382, which calls it stochastic depth; the name here is the original's.
    """
    return _keep(x, (x.shape[0], 1, 1, 1), key, rate)


def _keep(x: jax.Array, shape: tuple[int, ...], key: jax.Array, rate: float) -> jax.Array:
    kept = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def dropblock(
    x: jax.Array, key: jax.Array, progress: jax.Array | float, *, fraction: float, size: int, num_groups: int
) -> jax.Array:
    """Sets random `size` x `size` squares in the channels of x [n, w, w, c] to 0. Source: arXiv:1810.12890.

    They cover about `fraction * progress` of all values, where `progress`, float32 [], grows to 1 over the course of
    training. Kept values are divided by the fraction kept in each of the batch's `num_groups` equal slices, as the
    original does in each of its replicas. Raises ValueError when the map is not square.
    """
    n, height, width, channels = x.shape
    if height != width:
        raise ValueError(f"DropBlock: got a map of {height} x {width}, expected a square one")
    block = min(size, width)
    positions = (width - block + 1) ** 2  # at which a whole square fits on the map
    rate = jnp.asarray(progress, jnp.float32) * (fraction * width**2 / block**2 / positions)
    seeds = jax.random.bernoulli(key, rate, x.shape)
    kept = 1 - _squares(seeds, block, x.dtype)
    grouped = kept.reshape(num_groups, n // num_groups, width, width, channels)
    # in two steps, as float32 cannot count beyond 2**24
    kept_fraction = grouped.mean((2, 3, 4), jnp.float32).mean(1).reshape(-1, 1, 1, 1, 1)
    factor = grouped / jnp.maximum(kept_fraction, jnp.finfo(jnp.float32).tiny)  # 0 instead of 0/0 if nothing is kept
    return x * factor.reshape(x.shape).astype(x.dtype)


def _squares(seeds: jax.Array, block: int, dtype: DTypeLike) -> jax.Array:
    """1 in the square around each seed whose whole square fits on the map, else 0."""
    width = seeds.shape[1]
    fits = (jnp.arange(width) >= block // 2) & (jnp.arange(width) < width - (block - 1) // 2)
    centers = (seeds & fits[:, None, None] & fits[:, None]).astype(dtype)
    # with SAME padding, the smaller half of an even window comes first, so a square begins block//2 before its seed
    rows = jax.lax.reduce_window(centers, -jnp.inf, jax.lax.max, (1, block, 1, 1), (1, 1, 1, 1), "SAME")
    return jax.lax.reduce_window(rows, -jnp.inf, jax.lax.max, (1, 1, block, 1), (1, 1, 1, 1), "SAME")
