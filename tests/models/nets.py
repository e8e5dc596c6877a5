"""Networks and parts of networks with their own arrays, for tests."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.models.architecture import Architecture
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.models.named_arrays import NamedArrays
from resnet_tpu.models.named_layers import NamedLayers, Training

TRAINING = Training()
"""Training for layers that draw no random numbers."""


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def architecture(*blocks_per_group: int, bottleneck: bool = True, **settings: Any) -> Architecture:
    """A narrow network in which no branch starts at zero."""
    return Architecture(blocks_per_group or (1, 1, 1, 1), bottleneck, width=8, zero_scale=False, **settings)


class Part:
    """Some layers of a network, `call(net, x)`, with new arrays."""

    def __init__(
        self,
        call: Callable[[NamedLayers, jax.Array], jax.Array],
        settings: Architecture,
        x: Any,
        *,
        dtype: Any = jnp.float32,
        scope: str = "",
    ) -> None:
        """x: an example of its input activations. scope: where its arrays are."""
        rng = np.random.default_rng(0)
        self._call, self._settings, self._dtype, self._scope = call, settings, dtype, scope
        new = NamedArrays({}, {}, make=lambda draw, shape: draw(rng, shape))
        jax.eval_shape(lambda x: self._run(NamedLayers(settings, dtype, new), x), x)
        self.params: Arrays = new.params
        self.batch_stats: Arrays = new.batch_stats

    def __call__(self, x: Any, training: Training | None = None, kernels: Kernels = PLAIN) -> jax.Array:
        """Applies the layers to x and leaves the running statistics as they are."""
        return self.step(self.params, x, training, kernels)[0]

    def step(
        self, params: Arrays, x: Any, training: Training | None = None, kernels: Kernels = PLAIN
    ) -> tuple[jax.Array, Arrays]:
        """(output of the layers, running statistics afterwards)."""

        @jax.jit  # compiled as a whole: operation by operation takes many times as long
        def apply(params: Arrays, batch_stats: Arrays, x: jax.Array) -> tuple[jax.Array, Arrays]:
            arrays = NamedArrays(params, batch_stats)
            net = NamedLayers(self._settings, self._dtype, arrays, training=training, kernels=kernels)
            return self._run(net, x), arrays.batch_stats

        return apply(params, self.batch_stats, jnp.asarray(x))

    def randomize(self) -> None:
        """Gives scales, biases and the like random values of both signs; initial ones would hide effects or agree."""
        leaves, structure = jax.tree.flatten(self.params)
        changed = [
            leaf + 0.3 * random(*leaf.shape, seed=i) if leaf.ndim == 1 else leaf for i, leaf in enumerate(leaves)
        ]
        self.params = jax.tree.unflatten(structure, changed)

    def _run(self, net: NamedLayers, x: jax.Array) -> jax.Array:
        if not self._scope:
            return self._call(net, x)
        with net.scope(self._scope):
            return self._call(net, x)
