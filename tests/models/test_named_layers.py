"""Layers that find their arrays by name: what they update at each step, draw at random, and refuse."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models.named_layers import Training
from tests.models.nets import TRAINING, Part, architecture, random


def norm(x: np.ndarray, **settings: Any) -> Part:
    """A batch norm with arrays that differ from the initial ones."""
    part = Part(lambda net, x: net.batch_norm("norm", x), architecture(**settings), x)
    scale, bias, mean, deviation = random(4, x.shape[-1], seed=1)
    part.params = {"norm": {"scale": scale, "bias": bias}}
    part.batch_stats = {"norm": {"mean": mean, "var": np.square(deviation)}}
    return part


def test_batch_norm_moves_its_running_statistics_in_training_alone() -> None:
    x = random(4, 5, 6, 3)
    part = norm(x, bn_momentum=0.8)
    before = part.batch_stats["norm"]
    _, moved = part.step(part.params, x, TRAINING)
    batch_mean, batch_var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    np.testing.assert_allclose(moved["norm"]["mean"], 0.8 * before["mean"] + 0.2 * batch_mean, rtol=1e-5, atol=1e-6)
    # the running variance is updated with the unbiased one: factor n/(n-1), n = 4 * 5 * 6
    np.testing.assert_allclose(moved["norm"]["var"], 0.8 * before["var"] + 0.2 * batch_var * 120 / 119, rtol=1e-5)
    y, kept = part.step(part.params, x)
    expected = (x - before["mean"]) / np.sqrt(before["var"] + 1e-5) * part.params["norm"]["scale"]
    np.testing.assert_allclose(y, expected + part.params["norm"]["bias"], rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, kept, {"norm": before})


def test_groups_are_normalised_apart_and_their_statistics_averaged() -> None:
    x = random(8, 3, 3, 3) + np.repeat(np.arange(4), 2)[:, None, None, None].astype(np.float32)
    part, alone = norm(x, batch_norm_groups=4), norm(x)
    y, moved = part.step(part.params, x, TRAINING)
    parts = [alone.step(alone.params, x[2 * i : 2 * i + 2], TRAINING) for i in range(4)]
    np.testing.assert_allclose(y, np.concatenate([y for y, _ in parts]), atol=1e-5)
    for name in ("mean", "var"):
        each = [stats["norm"][name] for _, stats in parts]
        np.testing.assert_allclose(moved["norm"][name], np.mean(each, axis=0), rtol=1e-5)


def test_batch_norm_of_one_value_per_channel_is_finite() -> None:
    x = np.ones((2, 1, 1, 2), np.float32)
    part = Part(lambda net, x: net.batch_norm("norm", x), architecture(batch_norm_groups=2, bn_momentum=0.5), x)
    y, moved = part.step(part.params, x, TRAINING)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(moved["norm"]["var"], 0.5)


def test_a_frozen_batch_norm_normalises_by_its_running_statistics_and_keeps_them() -> None:
    x = random(4, 5, 5, 3)
    part = norm(x, freeze_batch_norm=True, batch_norm_groups=2)
    y, kept = part.step(part.params, x, TRAINING)
    np.testing.assert_array_equal(y, part(x))
    jax.tree.map(np.testing.assert_array_equal, kept, part.batch_stats)


def test_a_convolution_adds_its_bias() -> None:
    x = random(2, 4, 4, 2)
    part = Part(lambda net, x: net.conv("conv", x, 3, 1, bias=True), architecture(), x, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(part.params["conv"]["bias"], 0)
    without = part(x)
    part.params["conv"]["bias"] = jnp.array([1.0, 2.0, 4.0])
    assert without.dtype == jnp.bfloat16
    np.testing.assert_array_equal(part(x), without + jnp.array([1, 2, 4], jnp.bfloat16))


def test_the_classifier_is_float32() -> None:
    x = jnp.asarray(random(2, 512), jnp.bfloat16)
    part = Part(lambda net, x: net.dense("dense", x, 10), architecture(), x, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(part.params["dense"]["bias"], 0)
    y = part(x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, np.asarray(x, np.float64) @ np.asarray(part.params["dense"]["kernel"]), atol=1e-5)


DROPS = {
    "dropout": lambda net, x, site=0: net.dropout(x, site),
    "drop_connect": lambda net, x, site=0: net.drop_connect(x, 4, site),
    "dropblock": lambda net, x, site=0: net.dropblock(x, 4, site),
}


def dropping(name: str, amount: float = 0.5) -> Part:
    settings = {
        "dropout": architecture(dropout_rate=amount),
        "drop_connect": architecture(drop_connect_rate=amount),
        "dropblock": architecture(dropblock_groups=(4,), dropblock_keep_prob=1 - amount, dropblock_size=2),
    }
    return Part(DROPS[name], settings[name], jnp.ones((4, 6, 6, 3)))


@pytest.mark.parametrize("name", DROPS)
def test_evaluation_drops_nothing_and_needs_no_key(name: str) -> None:
    np.testing.assert_array_equal(dropping(name)(jnp.ones((4, 6, 6, 3))), 1)


@pytest.mark.parametrize("name", DROPS)
def test_training_without_a_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="key: got None, expected a key"):
        dropping(name)(jnp.ones((4, 6, 6, 3)), Training())


@pytest.mark.parametrize("name", DROPS)
def test_what_drops_nothing_needs_no_key(name: str) -> None:
    np.testing.assert_array_equal(dropping(name, 0.0)(jnp.ones((4, 6, 6, 3)), Training()), 1)


@pytest.mark.parametrize("name", DROPS)
def test_draws_follow_from_the_key_and_the_number_of_the_place(name: str) -> None:
    x, part = jnp.ones((64, 8, 8, 2)), dropping(name)
    first = part(x, Training(jax.random.key(1), 1.0))
    np.testing.assert_array_equal(first, part(x, Training(jax.random.key(1), 1.0)))
    assert not np.array_equal(first, part(x, Training(jax.random.key(2), 1.0)))
    part._call = functools.partial(DROPS[name], site=1)
    assert not np.array_equal(first, part(x, Training(jax.random.key(1), 1.0)))


def test_sites_are_numbered_block_by_block_with_dropout_last() -> None:
    settings = architecture(2, 1)
    assert [settings.first_site(*place) for place in ((1, 1), (1, 2), (2, 1))] == [0, 5, 10]
    assert settings.dropout_site == 15
    assert architecture(2, 1, bottleneck=False).dropout_site == 0  # the only one


def test_fractions_grow_from_group_to_group() -> None:
    settings = architecture(dropblock_groups=(2, 3, 4), dropblock_keep_prob=0.9, drop_connect_rate=0.5)
    fractions = [settings.dropblock_fraction(group) for group in (1, 2, 3, 4)]
    assert fractions == pytest.approx([0, 0.1 / 16, 0.1 / 4, 0.1])
    rates = [settings.drop_connect_in(group) for group in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.2, 0.3, 0.4, 0.5])
