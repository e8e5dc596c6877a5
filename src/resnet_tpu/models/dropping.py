"""What is left out at random in training: activations (dropout), squares of them (DropBlock), branches (drop connect).

Each scales up what it keeps. Each is one place of the network, whose `number` goes into its random draws.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from resnet_tpu.models.training import Training


@dataclass(frozen=True)
class Dropout:
    """Sets each value to 0 with probability `rate`, 0 <= rate < 1, in training. Source: arXiv:1207.0580."""

    number: int
    rate: float

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x, any shape -> the same shape and dtype."""
        return _keep(x, x.shape, self.rate, self.number, training)


@dataclass(frozen=True)
class DropConnect:
    """Sets all of an image to 0 with probability `rate`, 0 <= rate < 1, in training: its residual branch is skipped.

    Source: arXiv:1603.09382, with the original's name for it.
    """

    number: int
    rate: float

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x [n, h, w, c] -> the same shape and dtype."""
        return _keep(x, (x.shape[0], 1, 1, 1), self.rate, self.number, training)


def _keep(x: jax.Array, shape: tuple[int, ...], rate: float, number: int, training: Training | None) -> jax.Array:
    if training is None or rate == 0:
        return x
    kept = jax.random.bernoulli(training.key_of(number), 1 - rate, shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


@dataclass(frozen=True)
class DropBlock:
    """Sets squares of `size` x `size` activations of a channel to 0 in training. Source: arXiv:1810.12890.

    About `share` of them at the end of the training, less in proportion before. What is kept is divided by the share
    that was kept in each of the batch's `num_groups` equal slices, as by the original on each of its devices.
    """

    number: int
    share: float
    size: int
    num_groups: int

    def __call__(self, x: jax.Array, training: Training | None) -> jax.Array:
        """x [n, w, w, c] -> the same shape and dtype. Raises ValueError when the map is not square."""
        if training is None or self.share == 0:
            return x
        n, height, width, channels = x.shape
        if height != width:
            raise ValueError(f"DropBlock: got a map of {height} x {width}, expected a square one")
        seeds = jax.random.bernoulli(training.key_of(self.number), self._rate(width, training), x.shape)
        kept = 1 - self._blocks(seeds, x.dtype)
        grouped = kept.reshape(self.num_groups, n // self.num_groups, width, width, channels)
        # in two steps, for float32 counts no further than 2**24
        share = grouped.mean((2, 3, 4), jnp.float32).mean(1).reshape(-1, 1, 1, 1, 1)
        factor = grouped / jnp.maximum(share, jnp.finfo(jnp.float32).tiny)  # nothing kept: 0 everywhere, not 0/0
        return x * factor.reshape(x.shape).astype(x.dtype)

    def _rate(self, width: int, training: Training) -> jax.Array:
        """Probability that a square is dropped around a place where it fits: float32 []."""
        block = min(self.size, width)
        places = (width - block + 1) ** 2
        return jnp.asarray(training.progress, jnp.float32) * (self.share * width**2 / block**2 / places)

    def _blocks(self, seeds: jax.Array, dtype: DTypeLike) -> jax.Array:
        """1 in the square around each seed that lies where the whole square is on the map, else 0."""
        width = seeds.shape[1]
        block = min(self.size, width)
        fits = (jnp.arange(width) >= block // 2) & (jnp.arange(width) < width - (block - 1) // 2)
        centres = (seeds & fits[:, None, None] & fits[:, None]).astype(dtype)
        # SAME puts the smaller half of an even window first; seen from a seed, its square reaches block//2 back
        rows = nnx.max_pool(centres, (block, 1), padding="SAME")
        return nnx.max_pool(rows, (1, block), padding="SAME")
