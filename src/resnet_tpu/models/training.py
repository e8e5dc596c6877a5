"""What a network is told of the step of training that it runs in."""

from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Training:
    """A step of training: its randomness, and how far the training is. In evaluation layers get None instead.

    key: the step's own; None will do for a network that draws nothing. progress: fraction of all steps done,
    float32 [].
    """

    key: jax.Array | None = None
    progress: jax.Array | float = 0.0

    def key_of(self, site: int) -> jax.Array:
        """The key of one random site of the network, by its number: no two draw the same."""
        if self.key is None:
            raise ValueError("key: got None, expected a key, for this network draws random numbers in training")
        return jax.random.fold_in(self.key, site)
