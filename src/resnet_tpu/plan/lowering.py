"""The steps of a run, lowered for devices that are not here."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding

from resnet_tpu import distributed
from resnet_tpu.config import Config
from resnet_tpu.distributed import DeviceBatch
from resnet_tpu.models.network import network_of
from resnet_tpu.train.optimizer import make_optimizer
from resnet_tpu.train.run import lengths
from resnet_tpu.train.schedule import make_schedule
from resnet_tpu.train.state import start_state
from resnet_tpu.train.step import make_eval_step, make_train_step


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """The devices in one row, as `train` lays them out."""
    return Mesh(np.asarray(devices), (distributed.BATCH_AXIS,))


def lower_train_step(config: Config, mesh: Mesh) -> jax.stages.Lowered:
    """One optimizer step of the whole batch. Counts of images and classes must be resolved, and the batch divide."""
    network = network_of(config, mesh)
    optimizer = make_optimizer(config.optimizer)
    step = make_train_step(
        network,
        optimizer,
        make_schedule(config),
        config.optimizer,
        seed=config.train.seed,
        total_steps=lengths(config).total,
        num_devices=mesh.devices.size,
    )
    average = config.optimizer.moving_average_decay > 0
    state = jax.eval_shape(lambda *arrays: start_state(optimizer, *arrays, average=average), *network.shapes())
    lowering: Any = step  # jitted
    return lowering.lower(
        _place(state, distributed.replicated(mesh)), _batch(config, config.train.train_batch_size, mesh)
    )


def lower_eval_step(config: Config, mesh: Mesh) -> jax.stages.Lowered:
    """One step of evaluation."""
    network = network_of(config, mesh)
    step: Any = make_eval_step(network, config.optimizer)
    params, batch_stats = _place(network.shapes(), distributed.replicated(mesh))
    return step.lower(params, batch_stats, _batch(config, eval_batch_size(config, mesh.devices.size), mesh))


def eval_batch_size(config: Config, devices: int) -> int:
    """Images of one step of evaluation: `eval_batch_size`, rounded up to a multiple of the devices."""
    return -(-config.eval.eval_batch_size // devices) * devices


def _place(shapes: Any, sharding: Sharding) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


def _batch(config: Config, batch_size: int, mesh: Mesh) -> DeviceBatch:
    """A batch as the loader makes it."""
    side = config.data.image_size
    shapes = {
        "image": jax.ShapeDtypeStruct((batch_size, side, side, 3), jnp.uint8),
        "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
        "weight": jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }
    return _place(shapes, distributed.split_batch(mesh))
