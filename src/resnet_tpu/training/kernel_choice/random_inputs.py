"""Random inputs of a training step, the same ones every time, to compare and to time steps with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from resnet_tpu.options.config import Config
from resnet_tpu.parallel import placement
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.state import TrainState, start_state


def random_state(config: Config, mesh: Mesh, last_bit: float = 0.0, seed: int = 0) -> TrainState:
    """A state with random scales and biases, because those that begin at zero hide the layers before them.

    Its step is 1: the momentum of LARS contains the learning rate, which is 0 at step 0 and would hide everything.
    last_bit: the fraction by which every weight is raised or lowered, drawn from `seed`.
    """
    params, batch_stats = network_on(config, mesh).init(0)
    leaves, structure = jax.tree.flatten(params)
    rng, noise = np.random.default_rng(0), np.random.default_rng(seed)
    changed = [leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32) if leaf.ndim == 1 else leaf for leaf in leaves]
    changed = [leaf * (1 + last_bit * noise.choice((-1, 1), leaf.shape).astype(np.float32)) for leaf in changed]
    params = jax.tree.unflatten(structure, changed)
    state = start_state(config.optimizer, params, batch_stats)
    return placement.put_replicated(dataclasses.replace(state, step=jnp.ones_like(state.step)), mesh)


def random_batch(config: Config, mesh: Mesh) -> DeviceBatch:
    """Images and labels of a run whose options are resolved."""
    return placement.put_batch(random_rows(config), mesh)


def random_rows(config: Config) -> dict[str, np.ndarray]:
    """This process's share of `random_batch`, in the form that the loader gives."""
    rng = np.random.default_rng(jax.process_index())
    count, side = config.train.train_batch_size // jax.process_count(), config.data.image_size
    labels = rng.integers(0, config.data.num_label_classes or 1, count, np.int32)
    images = rng.integers(0, 256, (count, side, side, 3), np.uint8)
    return {"image": images, "label": labels, "weight": np.ones(count, np.float32)}
