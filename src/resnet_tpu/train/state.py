"""All that changes from step to step, as one pytree."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from resnet_tpu.models.network import Arrays, Network


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """`step` int32 [] counts the optimizer steps done; everything else is float32."""

    step: jax.Array
    params: Arrays
    batch_stats: Arrays
    opt_state: Any

    def to_arrays(self) -> Arrays:
        """The state as a checkpoint holds it: step, params, batch_stats, momentum; no types of the optimizer's."""
        return {
            "step": self.step,
            "params": self.params,
            "batch_stats": self.batch_stats,
            "momentum": optax.tree.get(self.opt_state, "trace"),
        }

    def with_arrays(self, arrays: Arrays) -> "TrainState":
        """The state with the arrays of a checkpoint."""
        opt_state = optax.tree.set(self.opt_state, trace=arrays["momentum"])
        return TrainState(arrays["step"], arrays["params"], arrays["batch_stats"], opt_state)


def create_state(network: Network, optimizer: optax.GradientTransformationExtraArgs, seed: int) -> TrainState:
    """The state before the first step, decided by `seed`."""
    params, batch_stats = network.init(seed)
    return TrainState(jnp.zeros((), jnp.int32), params, batch_stats, optimizer.init(params))
