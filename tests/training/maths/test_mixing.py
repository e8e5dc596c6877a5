"""Mixup and cutmix: what is mixed, and how much."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.mixing import mix

N, SIZE = 6, 20

run = jax.jit(mix, static_argnums=2)


def make_batch() -> dict[str, jax.Array]:
    """Images of uniform brightness 10, 20 ... 60, so that a mixture shows where its parts come from."""
    brightness = jnp.arange(10, 10 * N + 1, 10, dtype=jnp.uint8)
    return {
        "image": jnp.broadcast_to(brightness[:, None, None, None], (N, SIZE, SIZE, 3)),
        "label": jnp.arange(N, dtype=jnp.int32),
        "weight": jnp.ones(N),
    }


def mixed(seed: int, **options: Any) -> dict[str, np.ndarray]:
    found = run(make_batch(), jax.random.key(seed), Config().replace(**options).optimizer)
    return {name: np.asarray(value) for name, value in found.items()}


def test_mixup_blends_image_and_label_by_the_same_share() -> None:
    for seed in range(5):
        batch = mixed(seed, mixup_alpha=1.0)
        (fraction,) = set(batch["fraction"].tolist())
        own = np.arange(10, 10 * N + 1, 10)
        assert 0 < fraction < 1
        expected = (fraction * own + (1 - fraction) * own[::-1])[:, None, None, None]
        np.testing.assert_allclose(batch["image"], np.broadcast_to(expected, batch["image"].shape), rtol=1e-5)
        assert batch["partner"].tolist() == list(range(N))[::-1]


def test_cutmix_pastes_a_rectangle_and_counts_its_area() -> None:
    for seed in range(20):
        batch = mixed(seed, cutmix_alpha=1.0)
        assert batch["image"].dtype == np.uint8
        other = batch["image"][0, :, :, 0] == 10 * N
        assert np.array_equal(~other, batch["image"][0, :, :, 0] == 10)
        rows, columns = other.any(1), other.any(0)
        assert np.array_equal(other, rows[:, None] & columns)  # a rectangle
        for line in (rows, columns):
            assert np.abs(np.diff(line.astype(int))).sum() <= 2  # in one piece
        assert batch["fraction"][0] == pytest.approx(1 - other.mean(), abs=1e-6)


def areas_left(shares: np.ndarray) -> np.ndarray:
    """What cutmix leaves of an image for these shares, with centres drawn anywhere."""
    centres = np.random.default_rng(1).uniform(0, SIZE, (2, len(shares)))
    sides = SIZE * np.sqrt(1 - shares)
    low, high = (np.clip(np.round(centres + offset), 0, SIZE) for offset in (-sides / 2, sides / 2))
    return 1 - (high - low).prod(0) / SIZE**2


@pytest.mark.parametrize(
    ("option", "alpha"),
    [
        ("mixup_alpha", 0.2),
        pytest.param("mixup_alpha", 1.0, marks=pytest.mark.long),
        pytest.param("cutmix_alpha", 0.2, marks=pytest.mark.long),
        pytest.param("cutmix_alpha", 1.0, marks=pytest.mark.long),
    ],
)
def test_shares_are_drawn_from_beta(option: str, alpha: float) -> None:
    keys = jax.random.split(jax.random.key(0), 4000)
    config = Config().replace(**{option: alpha}).optimizer
    fractions = np.asarray(jax.jit(jax.vmap(lambda key: mix(make_batch(), key, config)["fraction"][0]))(keys))
    shares = np.random.default_rng(0).beta(alpha, alpha, 400_000)
    expected = shares if option == "mixup_alpha" else areas_left(shares)
    assert fractions.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / np.sqrt(4000))
    assert fractions.std() == pytest.approx(expected.std(), rel=0.05)


def test_both_take_turns() -> None:
    kinds = {len(np.unique(mixed(seed, mixup_alpha=1.0, cutmix_alpha=1.0)["image"][0])) for seed in range(20)}
    assert kinds == {1, 2}  # blended images have one brightness, pasted ones two


def test_the_same_key_gives_the_same_mixture() -> None:
    first, again = (mixed(3, mixup_alpha=1.0, cutmix_alpha=1.0) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
