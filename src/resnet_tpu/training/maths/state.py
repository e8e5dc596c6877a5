"""Everything that changes from step to step, as one pytree."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import OptimizerConfig
from resnet_tpu.training.maths.optimizer import make_optimizer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """`step` int32 [] counts the optimizer steps done; masks are bool, everything else is float32."""

    step: jax.Array
    params: Arrays
    batch_stats: Arrays
    opt_state: Any
    ema: Arrays | None = None  # moving averages: {"params": ..., "batch_stats": ...}
    masks: Arrays | None = None  # of a pruned network, see `masking`

    def to_arrays(self) -> Arrays:
        """The state as a checkpoint holds it: step, params, batch_stats, momentum; ema and masks if there are any."""
        arrays = {
            "step": self.step,
            "params": self.params,
            "batch_stats": self.batch_stats,
            "momentum": optax.tree.get(self.opt_state, "trace"),  # so that no types of the optimizer are stored
        }
        kept = {"ema": self.ema, "masks": self.masks}
        return arrays | {name: values for name, values in kept.items() if values is not None}

    def with_arrays(self, arrays: Arrays) -> "TrainState":
        """The state with the arrays of a checkpoint."""
        opt_state = optax.tree.set(self.opt_state, trace=arrays["momentum"])
        ema, masks = arrays.get("ema"), arrays.get("masks")
        return TrainState(arrays["step"], arrays["params"], arrays["batch_stats"], opt_state, ema, masks)

    def eval_arrays(self) -> tuple[Arrays, Arrays]:
        """(params, batch_stats) to evaluate with: the moving averages when they are kept."""
        return (self.params, self.batch_stats) if self.ema is None else (self.ema["params"], self.ema["batch_stats"])


def create_state(network: Network, config: OptimizerConfig, seed: int) -> TrainState:
    """The state before the first step, decided by `seed`."""
    return start_state(config, *network.init(seed))


def start_state(config: OptimizerConfig, params: Arrays, batch_stats: Arrays) -> TrainState:
    """The state before the first step of a run that starts from these arrays."""
    # copied, because the step reuses the memory of both
    ema = jax.tree.map(jnp.copy, {"params": params, "batch_stats": batch_stats}) if config.keeps_average else None
    opt_state = make_optimizer(config)(0.0).init(params)
    return TrainState(jnp.zeros((), jnp.int32), params, batch_stats, opt_state, ema)


def update_average(average: Arrays, values: Arrays, decay: float, updates: jax.Array) -> Arrays:
    """`average` moved a step towards `values`: a <- a - (1 - d) (a - v), d = min(decay, (1 + updates)/(10 + updates)).

    updates: optimizer steps made, int32 []. The ramp keeps the initial weights from dominating a young average; it is
    that of TensorFlow's ExponentialMovingAverage with `num_updates`.
    """
    rate = 1 - jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))
    return jax.tree.map(lambda mean, value: mean - rate * (mean - value), average, values)
