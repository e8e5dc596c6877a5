"""Gradient accumulation: the step of a whole batch, computed in parts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes, placement
from resnet_tpu.training.maths.schedule import Constant
from resnet_tpu.training.maths.state import TrainState, create_state
from resnet_tpu.training.maths.step import make_train_step

CONFIG = Config().replace(resnet_depth=8, resnet_width=4, precision="float32", weight_decay=0.01)
BATCH = 16

Result = tuple[TrainState, dict[str, jax.Array]]


@functools.cache
def one_step(*, parts: int = 1, devices: int = 1, groups: int = 1, count: int = BATCH, **options: Any) -> Result:
    """The state after a step and its metrics, from the same state and batch for all options."""
    config = CONFIG.replace(gradient_accumulation_steps=parts, **options)
    network = create_network(config.model, num_classes=7, image_size=16, batch_norm_groups=groups)
    # One block has every kind of layer; its branch must not start at zero, which would hide it.
    one_block = dataclasses.replace(network.architecture, blocks_per_group=(1,), zero_scale=False)
    network = dataclasses.replace(network, architecture=one_block)
    mesh = meshes.make_mesh(devices)
    step: Callable[..., Result] = make_train_step(network, Constant(0.1), config.optimizer, mesh=mesh)
    rng = np.random.default_rng(0)
    brightness = rng.uniform(0, 1, (count, 1, 1, 1))  # differs between parts, and so do their statistics
    batch = {
        "image": (brightness * rng.integers(0, 256, (count, 16, 16, 3))).astype(np.uint8),
        "label": rng.integers(0, 7, count, dtype=np.int32),
        "weight": np.ones(count, np.float32),
    }
    state = create_state(network, config.optimizer, seed=0)
    statistics = jax.tree.map(lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32), state.batch_stats)
    state = placement.put_replicated(dataclasses.replace(state, batch_stats=statistics), mesh)
    return step(state, placement.put_batch(batch, mesh))


def assert_same(one: Result, other: Result) -> None:
    """Checks that both are equal up to the order of float32 sums."""
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert np.abs(a - b).max() <= 1e-5 * max(np.abs(b).max(), 1e-2), jax.tree_util.keystr(path)


def test_parts_are_the_whole_batch_with_a_group_of_batch_norm_each() -> None:
    assert_same(one_step(parts=4), one_step(groups=4))


@pytest.mark.long
def test_each_part_on_each_of_eight_devices_is_a_batch_norm_group() -> None:
    assert jax.device_count() == 8
    assert_same(one_step(parts=2, devices=8, groups=8), one_step(groups=16))


@pytest.mark.long
def test_with_frozen_batch_norm_parts_change_nothing() -> None:
    assert_same(one_step(parts=4, freeze_batch_norm=True), one_step(freeze_batch_norm=True))


@pytest.mark.long
def test_frozen_statistics_are_the_same_to_the_bit() -> None:
    parts, whole = (one_step(parts=parts, count=3, freeze_batch_norm=True)[0].batch_stats for parts in (3, 1))
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


def test_parts_with_statistics_of_their_own_do_change_the_step() -> None:
    # shows that the tests above can fail
    loss, whole = (float(one_step(parts=parts)[1]["loss"]) for parts in (4, 1))
    assert abs(loss - whole) > 1e-4  # rounding alone is about 1e-6


@pytest.mark.long
def test_parts_keep_the_mixture_of_the_whole_batch() -> None:
    assert_same(
        one_step(parts=4, freeze_batch_norm=True, mixup_alpha=0.4), one_step(freeze_batch_norm=True, mixup_alpha=0.4)
    )
