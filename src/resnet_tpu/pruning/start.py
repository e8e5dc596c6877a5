"""The arrays of the checkpoint that retraining starts from: step, params, batch_stats, momentum, ema, masks."""

from typing import Literal

import jax
import numpy as np

from resnet_tpu.models.arrays import Arrays, Path, put
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.masks import Masks
from resnet_tpu.training.maths.masking import apply_masks
from resnet_tpu.training.maths.state import create_state

_FRESH = 1_000_003
"""Added to the seed of the run to draw the weights of `reinit`: different ones, but the same each time."""


def start_arrays(
    arrays: Arrays,
    masks: Masks,
    layers: dict[str, Path],
    *,
    step: int,
    rewind_optimizer: Literal["restore", "reset"],
) -> Arrays:
    """The arrays of the checkpoint that retraining starts from: `arrays` masked, at `step`.

    The result includes the masks; masked weights are exactly 0, as are their momentum and average. The rest of the
    momentum is that of `arrays`, as in the paper, or 0 with `reset`.
    """
    nested: Arrays = {}
    for name, path in layers.items():
        put(nested, path, masks[name])
    momentum = arrays["momentum"]
    if rewind_optimizer == "reset":
        momentum = jax.tree.map(np.zeros_like, momentum)
    started = dict(arrays) | {
        "step": np.array(step, np.int32),
        "params": apply_masks(arrays["params"], nested),
        "momentum": apply_masks(momentum, nested),
        "masks": nested,
    }
    if "ema" in arrays:
        started["ema"] = arrays["ema"] | {"params": apply_masks(arrays["ema"]["params"], nested)}
    return jax.tree.map(np.asarray, started)  # several processes cannot save an array on the device of one


def fresh_arrays(network: Network, config: Config) -> Arrays:
    """The arrays of a run before its first step, but with initial weights other than its own."""
    state = create_state(network, config.optimizer, config.train.seed + _FRESH)
    return jax.tree.map(np.asarray, state.to_arrays())
