"""What is dropped at random: how much, where, and from which key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu import distributed
from resnet_tpu.models.architecture import Architecture
from resnet_tpu.models.dropping import DropBlock, DropConnect, Dropout
from resnet_tpu.models.training import Training

Place = Dropout | DropConnect | DropBlock


def training(seed: int = 0, progress: float = 1.0) -> Training:
    return Training(jax.random.key(seed), progress)


def make_dropblock(share: float, *, size: int = 7, num_groups: int = 1, number: int = 0) -> DropBlock:
    return DropBlock(number, share, size, num_groups)


PLACES = [Dropout(0, 0.5), DropConnect(0, 0.5), make_dropblock(0.5, size=2)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: type(place).__name__)
def test_evaluation_drops_nothing_and_needs_no_key(place: Place) -> None:
    x = jnp.ones((4, 6, 6, 3))
    assert place(x, None) is x


@pytest.mark.parametrize("place", PLACES, ids=lambda place: type(place).__name__)
def test_training_without_a_key_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="key: got None, expected a key"):
        place(jnp.ones((4, 6, 6, 3)), Training())


@pytest.mark.parametrize("place", [Dropout(0, 0.0), DropConnect(0, 0.0), make_dropblock(0.0)])
def test_a_place_that_drops_nothing_needs_no_key(place: Place) -> None:
    x = jnp.ones((4, 6, 6, 3))
    assert place(x, Training()) is x


@pytest.mark.parametrize(
    "kind", [Dropout, DropConnect, lambda number, rate: make_dropblock(rate, number=number, size=2)]
)
def test_draws_follow_from_the_key_and_the_number_of_the_place(kind: type[Dropout]) -> None:
    x = jnp.ones((64, 8, 8, 2))
    first, again = kind(3, 0.5)(x, training(1)), kind(3, 0.5)(x, training(1))
    np.testing.assert_array_equal(first, again)
    for number, seed in ((4, 1), (3, 2)):
        assert not np.array_equal(first, kind(number, 0.5)(x, training(seed)))


@pytest.mark.parametrize("place", PLACES, ids=lambda place: type(place).__name__)
def test_types_stay_and_the_mean_too(place: Place) -> None:
    x = jnp.ones((512, 8, 8, 4), jnp.bfloat16)
    y = place(x, training())
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    # drop connect draws 512 times: its mean is known to 1/sqrt(512) = 4.4 %, three times over
    assert abs(float(y.astype(jnp.float32).mean()) - 1) < 0.14


def test_dropout_drops_single_values_and_scales_up_the_rest() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(400, 250)), jnp.float32)
    y = Dropout(0, 0.25)(x, training())
    dropped = np.asarray(y == 0)
    assert abs(dropped.mean() - 0.25) < 0.005  # 100 000 draws: known to 0.14 %, three times over
    np.testing.assert_allclose(y[~dropped], x[~dropped] / 0.75, rtol=1e-6)


def test_drop_connect_drops_whole_images_and_scales_up_the_rest() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4000, 2, 2, 3)), jnp.float32)
    y = DropConnect(0, 0.2)(x, training())
    dropped = np.asarray((y == 0).all((1, 2, 3)))
    np.testing.assert_array_equal(dropped, np.asarray((y == 0).any((1, 2, 3))))
    assert abs(dropped.mean() - 0.2) < 0.02  # 4000 draws: known to 0.6 %, three times over
    np.testing.assert_allclose(y[~dropped], x[~dropped] / 0.8, rtol=1e-6)


def test_shares_grow_from_group_to_group() -> None:
    architecture = Architecture(
        (1, 1, 1, 1), bottleneck=True, width=4, dropblock_groups=(2, 3, 4), dropblock_keep_prob=0.9,
        drop_connect_rate=0.5,
    )  # fmt: skip
    shares = [architecture.dropblock_share(group) for group in (1, 2, 3, 4)]
    assert shares == pytest.approx([0, 0.1 / 16, 0.1 / 4, 0.1])
    rates = [architecture.drop_connect_share(group) for group in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(
    ("width", "size", "progress", "rate"),
    [
        (14, 7, 1.0, 0.5 * 14**2 / 7**2 / 8**2),
        (14, 7, 0.5, 0.25 * 14**2 / 7**2 / 8**2),
        (8, 4, 1.0, 0.5 * 8**2 / 4**2 / 5**2),
        (4, 7, 1.0, 0.5),  # the square is as large as the map
        (6, 1, 1.0, 0.5),
    ],
)
def test_squares_are_drawn_at_the_rate_of_the_formula(width: int, size: int, progress: float, rate: float) -> None:
    y = make_dropblock(0.5, size=size)(jnp.ones((100, width, width, 64)), training(progress=progress))
    corners = np.asarray(y[:, 0, 0] == 0)  # only one square reaches a corner
    assert abs(corners.mean() - rate) < 4 * np.sqrt(rate / corners.size)


@pytest.mark.parametrize(("width", "size"), [(9, 4), (8, 3), (5, 5), (4, 7)])
def test_what_is_dropped_are_whole_squares_at_every_place(width: int, size: int) -> None:
    block = min(size, width)
    y = make_dropblock(0.1, size=size)(jnp.ones((300, width, width, 4)), training())
    maps = np.asarray(y == 0).transpose(0, 3, 1, 2).reshape(-1, width, width)
    windows = np.asarray(np.lib.stride_tricks.sliding_window_view(maps, (block, block), (1, 2)).all((-1, -2)))
    covered = np.zeros_like(maps)
    for row in range(width - block + 1):
        for column in range(width - block + 1):
            covered[:, row : row + block, column : column + block] |= windows[:, row, column, None, None]
    np.testing.assert_array_equal(covered, maps)  # nothing is dropped that is not part of a whole square
    assert windows.any(0).all()  # and a square may lie anywhere on the map
    per_map = maps.any((1, 2)).reshape(300, 4)
    assert (per_map.any(1) & ~per_map.all(1)).any()  # each channel draws its own


def test_what_is_kept_is_divided_by_the_share_kept_in_its_group() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 5)), jnp.float32)
    y = make_dropblock(0.3, size=3, num_groups=3)(x, training())
    kept = np.asarray(y != 0)
    shares = kept.reshape(3, -1).mean(1)
    assert len(set(shares)) == 3
    np.testing.assert_allclose(y, x * kept / np.repeat(shares, 2)[:, None, None, None], rtol=1e-5)
    whole = make_dropblock(0.3, size=3)(x, training())
    np.testing.assert_allclose(whole, x * kept / kept.mean(), rtol=1e-5)


def test_nothing_is_dropped_at_the_start_of_training() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 8, 5)), jnp.float32)
    np.testing.assert_array_equal(make_dropblock(0.9, size=3)(x, training(progress=0.0)), x)


def test_a_map_of_which_nothing_is_kept_is_zero() -> None:
    np.testing.assert_array_equal(make_dropblock(1.0, size=4)(jnp.ones((2, 4, 4, 3)), training()), 0)


def test_maps_that_are_not_square_are_refused() -> None:
    with pytest.raises(ValueError, match="got a map of 4 x 5, expected a square one"):
        make_dropblock(0.1)(jnp.ones((2, 4, 5, 3)), training())


@pytest.mark.parametrize(
    "place", [Dropout(0, 0.5), DropConnect(0, 0.5), make_dropblock(0.5, size=2, num_groups=8)], ids=str
)
def test_devices_draw_together_what_one_would_and_need_nothing_of_each_other(place: Place) -> None:
    x = np.random.default_rng(0).normal(size=(16, 4, 4, 3)).astype(np.float32)
    apply = jax.jit(lambda x, key: place(x, Training(key, 1.0)))
    mesh = distributed.make_mesh(8)
    spread = distributed.put_batch({"image": x}, mesh)["image"]
    key = distributed.put_replicated(jax.random.key(0), mesh)
    compiled = apply.lower(spread, key).compile()
    np.testing.assert_allclose(compiled(spread, key), apply(jnp.asarray(x), jax.random.key(0)), rtol=1e-6)
    assert not any(name in (compiled.as_text() or "") for name in ("all-reduce(", "all-gather(", "collective-permute("))
