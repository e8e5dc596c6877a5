"""Frozen parameters keep their bits; the head's learning-rate factor scales its steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.schedule import Constant
from resnet_tpu.training.maths.state import TrainState, create_state
from resnet_tpu.training.maths.step import make_train_step
from resnet_tpu.training.maths.trainable import learning_rate_factors

CONFIG = Config().replace(resnet_depth=8, resnet_width=4, precision="float32", weight_decay=0.01)


def make_network(config: Config) -> Network:
    return create_network(config.model, num_classes=5, image_size=16)


def factors(**options: Any) -> dict[str, float]:
    config = CONFIG.replace(**options)
    return named(learning_rate_factors(make_network(config), config.optimizer))


def named(tree: Arrays) -> dict[str, Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(key.key for key in path): leaf for path, leaf in flat}


def test_everything_learns_by_default() -> None:
    assert set(factors().values()) == {1.0}


def test_a_module_freezes_with_all_below_it() -> None:
    for pattern in ("stem,group[12]", "stem/*,group1/*, group2/*", "stem/,group?/*,"):
        frozen = {name for name, factor in factors(freeze=pattern).items() if factor == 0}
        groups = "1234" if "?" in pattern else "12"
        prefixes = ("stem/", *(f"group{group}/" for group in groups))
        assert frozen == {name for name in factors() if name.startswith(prefixes)}


def test_a_pattern_may_choose_kinds_of_parameters() -> None:
    frozen = {name for name, factor in factors(freeze="*/norm/*").items() if factor == 0}
    assert frozen == {name for name in factors() if "/norm/" in name}
    assert frozen == {name for name, factor in factors(freeze_batch_norm=True).items() if factor == 0}


def test_the_head_has_a_factor_of_its_own() -> None:
    found = factors(head_learning_rate_multiplier=10)
    assert {name for name, factor in found.items() if factor == 10} == {"dense/kernel", "dense/bias"}
    assert factors(head_learning_rate_multiplier=10, freeze="dense/bias")["dense/bias"] == 0


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"freeze: got group5/\*, expected a pattern that matches .*group1.*stem"):
        factors(freeze="stem/*,group5/*")


def step_from(state: TrainState, **options: Any) -> TrainState:
    config = CONFIG.replace(**options)
    step = make_train_step(make_network(config), Constant(0.1), config.optimizer)
    rng = np.random.default_rng(0)
    batch = {
        "image": jnp.asarray(rng.integers(0, 256, (8, 16, 16, 3)), jnp.uint8),
        "label": jnp.asarray(rng.integers(0, 5, 8), jnp.int32),
        "weight": jnp.ones(8),
    }
    return step(jax.tree.map(jnp.array, state), batch)[0]


def moving_state(**options: Any) -> TrainState:
    """A state whose momentum would move every parameter."""
    config = CONFIG.replace(**options)
    state = create_state(make_network(config), config.optimizer, seed=0)
    return state.with_arrays(state.to_arrays() | {"momentum": jax.tree.map(jnp.ones_like, state.params)})


@pytest.mark.parametrize("enable_lars", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_frozen_keep_their_bits_and_the_others_move(enable_lars: bool) -> None:
    state = moving_state(enable_lars=enable_lars)
    before, after = (named(s.params) for s in (state, step_from(state, freeze="stem,group1", enable_lars=enable_lars)))
    for name, value in after.items():
        is_same = np.array_equal(value, before[name])
        assert is_same == name.startswith(("stem/", "group1/")), name


@pytest.mark.long
def test_freezing_leaves_the_others_steps_as_they_are() -> None:
    state = moving_state()
    free, held = (named(step_from(state, **options).params) for options in ({}, {"freeze": "stem,group1/block1"}))
    for name, value in held.items():
        if not name.startswith(("stem/", "group1/block1/")):
            np.testing.assert_allclose(value, free[name], rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_the_head_moves_so_many_times_further() -> None:
    state = moving_state()
    plain, fast = (named(step_from(state, head_learning_rate_multiplier=k).params) for k in (1, 10))
    for name, start in named(state.params).items():
        factor = 10 if name.startswith("dense/") else 1
        # the difference of two float32 numbers around 1
        np.testing.assert_allclose(fast[name] - start, factor * (plain[name] - start), rtol=1e-4, atol=1e-6)


def test_frozen_batch_norm_trains_with_the_running_statistics_and_keeps_them() -> None:
    state = moving_state()
    after = step_from(state, freeze_batch_norm=True)
    assert jax.tree.all(jax.tree.map(np.array_equal, after.batch_stats, state.batch_stats))
    for name, value in named(after.params).items():
        assert np.array_equal(value, named(state.params)[name]) == ("/norm/" in name), name
