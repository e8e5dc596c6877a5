"""Random dropping: how much is dropped, where, and by which key."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models.dropping import drop_connect, dropblock, dropout
from resnet_tpu.parallel import meshes, placement

KEY = jax.random.key(0)
DROPS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "dropout": lambda x, key: dropout(x, key, 0.5),
    "drop_connect": lambda x, key: drop_connect(x, key, 0.5),
    "dropblock": lambda x, key: dropblock(x, key, 1.0, fraction=0.5, size=2, num_groups=8),
}


def squares(x: jax.Array, fraction: float, *, size: int = 7, num_groups: int = 1, progress: float = 1.0) -> jax.Array:
    """The map after dropblock, with `progress` a value that the compiler does not know, as in training."""
    drop = jax.jit(functools.partial(dropblock, fraction=fraction, size=size, num_groups=num_groups))
    return drop(x, KEY, progress)


@pytest.mark.parametrize("name", DROPS)
def test_types_stay_and_the_mean_too(name: str) -> None:
    x = jnp.ones((512, 8, 8, 4), jnp.bfloat16)
    y = jax.jit(DROPS[name])(x, KEY)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    # drop connect makes 512 draws: the standard error of its mean is 1/sqrt(512) = 4.4 %; the bound is three times that
    assert abs(float(y.astype(jnp.float32).mean()) - 1) < 0.14


def test_dropout_drops_single_values_and_scales_up_the_rest() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(400, 250)), jnp.float32)
    y = jax.jit(dropout, static_argnums=2)(x, KEY, 0.25)
    dropped = np.asarray(y == 0)
    assert abs(dropped.mean() - 0.25) < 0.005  # 100 000 draws: a standard error of 0.14 %, times three
    np.testing.assert_allclose(y[~dropped], x[~dropped] / 0.75, rtol=1e-6)


def test_drop_connect_drops_whole_images_and_scales_up_the_rest() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4000, 2, 2, 3)), jnp.float32)
    y = jax.jit(drop_connect, static_argnums=2)(x, KEY, 0.2)
    dropped = np.asarray((y == 0).all((1, 2, 3)))
    np.testing.assert_array_equal(dropped, np.asarray((y == 0).any((1, 2, 3))))
    assert abs(dropped.mean() - 0.2) < 0.02  # 4000 draws: a standard error of 0.6 %, times three
    np.testing.assert_allclose(y[~dropped], x[~dropped] / 0.8, rtol=1e-6)


@pytest.mark.parametrize(
    ("width", "size", "progress", "rate"),
    [
        (14, 7, 1.0, 0.5 * 14**2 / 7**2 / 8**2),
        (14, 7, 0.5, 0.25 * 14**2 / 7**2 / 8**2),
        pytest.param(8, 4, 1.0, 0.5 * 8**2 / 4**2 / 5**2, marks=pytest.mark.long),
        (4, 7, 1.0, 0.5),  # the square is as large as the map
        (6, 1, 1.0, 0.5),
    ],
)
def test_squares_are_drawn_at_the_rate_of_the_formula(width: int, size: int, progress: float, rate: float) -> None:
    y = squares(jnp.ones((100, width, width, 64)), 0.5, size=size, progress=progress)
    corners = np.asarray(y[:, 0, 0] == 0)  # only a single square can cover a corner
    assert abs(corners.mean() - rate) < 4 * np.sqrt(rate / corners.size)


@pytest.mark.parametrize(
    ("width", "size"), [(9, 4), *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in ((8, 3), (5, 5))), (4, 7)]
)
def test_what_is_dropped_are_whole_squares_at_every_place(width: int, size: int) -> None:
    block = min(size, width)
    y = squares(jnp.ones((300, width, width, 4)), 0.1, size=size)
    maps = np.asarray(y == 0).transpose(0, 3, 1, 2).reshape(-1, width, width)
    windows = np.asarray(np.lib.stride_tricks.sliding_window_view(maps, (block, block), (1, 2)).all((-1, -2)))
    covered = np.zeros_like(maps)
    for row in range(width - block + 1):
        for column in range(width - block + 1):
            covered[:, row : row + block, column : column + block] |= windows[:, row, column, None, None]
    np.testing.assert_array_equal(covered, maps)  # everything dropped is part of a whole square
    assert windows.any(0).all()  # a square may be anywhere on the map
    per_map = maps.any((1, 2)).reshape(300, 4)
    assert (per_map.any(1) & ~per_map.all(1)).any()  # each channel has its own draws


def test_what_is_kept_is_divided_by_the_share_kept_in_its_group() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 5)), jnp.float32)
    y = squares(x, 0.3, size=3, num_groups=3)
    kept = np.asarray(y != 0)
    shares = kept.reshape(3, -1).mean(1)
    assert len(set(shares)) == 3
    np.testing.assert_allclose(y, x * kept / np.repeat(shares, 2)[:, None, None, None], rtol=1e-5)
    whole = squares(x, 0.3, size=3)
    np.testing.assert_allclose(whole, x * kept / kept.mean(), rtol=1e-5)


def test_nothing_is_dropped_at_the_start_of_training() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 5)), jnp.float32)
    np.testing.assert_array_equal(squares(x, 0.9, size=3, progress=0.0), x)


def test_a_map_of_which_nothing_is_kept_is_zero() -> None:
    np.testing.assert_array_equal(squares(jnp.ones((2, 4, 4, 3)), 1.0, size=4), 0)


def test_maps_that_are_not_square_are_refused() -> None:
    with pytest.raises(ValueError, match="got a map of 4 x 5, expected a square one"):
        squares(jnp.ones((2, 4, 5, 3)), 0.1)


def one_group(x: jax.Array, key: jax.Array) -> jax.Array:
    """Needs all devices, since the mean is kept over the whole batch."""
    return dropblock(x, key, 1.0, fraction=0.5, size=2, num_groups=1)


COLLECTIVES = ("all-reduce(", "all-gather(", "collective-permute(")


@pytest.mark.parametrize("name", DROPS)
def test_devices_draw_together_what_one_would_and_need_nothing_of_each_other(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(16, 4, 4, 3)).astype(np.float32)
    mesh = meshes.make_mesh(8)
    everywhere = placement.put_batch({"image": x}, mesh)["image"]
    key = placement.put_replicated(KEY, mesh)
    compiled, together = (jax.jit(drop).lower(everywhere, key).compile() for drop in (DROPS[name], one_group))
    np.testing.assert_allclose(compiled(everywhere, key), jax.jit(DROPS[name])(jnp.asarray(x), KEY), rtol=1e-6)
    assert not any(kind in (compiled.as_text() or "") for kind in COLLECTIVES)
    assert any(kind in (together.as_text() or "") for kind in COLLECTIVES)
