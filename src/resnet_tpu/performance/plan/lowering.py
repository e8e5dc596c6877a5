"""Lowers the steps of a run for devices that are not attached."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from resnet_tpu.options.config import Config
from resnet_tpu.parallel import division, meshes, placement
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.training.kernel_choice.setting import KernelSetting
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.state import start_state
from resnet_tpu.training.maths.step import make_eval_step, train_step_of


def lower_train_step(config: Config, mesh: Mesh, setting: KernelSetting | None = None) -> jax.stages.Lowered:
    """One optimizer step of the whole batch. Counts must be resolved, and the batch divisible among the devices.

    setting: how the step is computed; None: as the options say, see `train_step_of`.
    """
    network = network_on(config, mesh)
    step: Any = (setting.train_step if setting else train_step_of)(network, config, mesh)
    state = jax.eval_shape(functools.partial(start_state, config.optimizer), *network.shapes())
    state = placement.with_sharding(state, meshes.replicated(mesh))
    return step.lower(state, _batch(config, config.train.train_batch_size, mesh))


def lower_eval_step(config: Config, mesh: Mesh) -> jax.stages.Lowered:
    """One step of evaluation."""
    network = network_on(config, mesh)
    step: Any = make_eval_step(network, config.optimizer, device=mesh.devices.flat[0])
    params, batch_stats = placement.with_sharding(network.shapes(), meshes.replicated(mesh))
    return step.lower(params, batch_stats, _batch(config, eval_batch_size(config, mesh.devices.size), mesh))


def eval_batch_size(config: Config, devices: int) -> int:
    """Images of one step of evaluation: `eval_batch_size`, rounded up to a multiple of the devices."""
    return division.round_up(config.eval.eval_batch_size, devices)


def _batch(config: Config, batch_size: int, mesh: Mesh) -> DeviceBatch:
    """The shapes and shardings of a batch from the loader."""
    side = config.data.image_size
    shapes = {
        "image": jax.ShapeDtypeStruct((batch_size, side, side, 3), jnp.uint8),
        "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
        "weight": jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }
    return placement.with_sharding(shapes, meshes.batch_sharding(mesh))
