"""Random erasing, and how options decide how an image is augmented."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet_tpu.data.pixels.augment import augment, random_erasing
from resnet_tpu.data.pixels.policies import autoaugment, randaugment
from resnet_tpu.options.config import DataConfig


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)


def noise_after(seed: int, shape: tuple[int, int], probability: float = 1) -> np.ndarray:
    """The mask of the pixels erased in a black image: bool [h, w]."""
    return is_lit(random_erasing(np.zeros((*shape, 3), np.uint8), np.random.default_rng(seed), probability))


def is_lit(image: np.ndarray) -> np.ndarray:
    """Which pixels are not black."""
    return image.max(axis=2) > 0


def extent(is_erased: np.ndarray) -> tuple[slice, slice]:
    rows, columns = np.flatnonzero(is_erased.any(axis=1)), np.flatnonzero(is_erased.any(axis=0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


@given(seed=st.integers(0, 10_000), height=st.integers(24, 90), width=st.integers(24, 90))
def test_a_rectangle_within_bounds_is_erased(seed: int, height: int, width: int) -> None:
    is_erased = noise_after(seed, (height, width))
    if not is_erased.any():  # no attempt fits a long, narrow image
        assert max(height, width) > 1.5 * min(height, width)
        return
    rows, columns = extent(is_erased)
    h, w = rows.stop - rows.start, columns.stop - columns.start
    assert is_erased[rows, columns].mean() > 0.99  # one noise pixel in 2 ** 24 is black
    area, half = height * width, 0.5
    assert (h + half) * (w + half) >= 0.02 * area
    assert (h - half) * (w - half) <= 0.33 * area
    assert (h + half) / (w - half) >= 0.3
    assert (h - half) / (w + half) <= 3.3


def test_rate_place_and_shape_are_random_and_fair() -> None:
    count, probability = 4000, 0.25
    masks = [noise_after(seed, (40, 40), probability) for seed in range(count)]
    erased = [mask for mask in masks if mask.any()]
    deviation = math.sqrt(probability * (1 - probability) * count)
    assert abs(len(erased) - probability * count) < 4 * deviation
    areas = [mask.mean() for mask in erased]
    assert np.mean(areas) == pytest.approx((0.02 + 0.33) / 2, abs=4 * 0.31 / math.sqrt(12 * len(erased)) + 0.005)
    sides = [[part.stop - part.start for part in extent(mask)] for mask in erased]
    aspects = [math.log(h / w) for h, w in sides]
    assert abs(np.mean(aspects)) < 4 * math.log(3.3 / 0.3) / math.sqrt(12 * len(erased))
    assert min(aspects) < math.log(0.4)
    assert max(aspects) > math.log(2.5)
    share = np.mean(erased, axis=0)  # share of images, by pixel
    edges = np.array([[mask[0], mask[-1], mask[:, 0], mask[:, -1]] for mask in erased])
    touching = edges.any(axis=2).sum(axis=0)
    assert np.ptp(touching) < 5 * math.sqrt(2 * touching.max())
    for mirrored in (share[::-1], share[:, ::-1], share.T):
        assert np.abs(share - mirrored).max() < 5 * math.sqrt(0.5 / len(erased))


def test_noise_takes_all_levels_alike() -> None:
    values = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        image = np.zeros((64, 64, 3), np.uint8)
        result = random_erasing(image, rng, 1)
        values.append(result[extent(is_lit(result))].reshape(-1))
    counts = np.bincount(np.concatenate(values), minlength=256)
    mean = counts.mean()
    assert ((counts - mean) ** 2 / mean).sum() < 255 + 5 * math.sqrt(2 * 255)  # chi squared


def test_the_rest_is_kept_and_so_is_the_image() -> None:
    image = picture()
    kept = image.copy()
    results = [random_erasing(image, np.random.default_rng(seed), 1) for seed in range(20)]
    for seed, result in enumerate(results):
        is_erased = noise_after(seed, (32, 32))
        np.testing.assert_array_equal(result[~is_erased], image[~is_erased])
        assert (result[is_erased] != image[is_erased]).any()
        np.testing.assert_array_equal(result, random_erasing(image, np.random.default_rng(seed), 1))
    assert random_erasing(image, np.random.default_rng(0), 0) is image
    np.testing.assert_array_equal(image, kept)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda image, rng: image),
        ({"randaug_num_layers": 3}, lambda image, rng: image),
        ({"augment_name": "autoaugment"}, autoaugment),
        (
            {"augment_name": "autoaugment", "augment_flavor": "corrected"},
            lambda image, rng: autoaugment(image, rng, flavor="corrected"),
        ),
        (
            {"augment_name": "randaugment"},
            lambda image, rng: randaugment(image, rng, num_layers=2, magnitude=9, flavor="tf"),
        ),
        (
            {
                "augment_name": "randaugment", "randaug_num_layers": 1, "randaug_magnitude": 0,
                "augment_flavor": "corrected",
            },
            lambda image, rng: randaugment(image, rng, num_layers=1, magnitude=0, flavor="corrected"),
        ),
        ({"random_erasing": 0.5}, lambda image, rng: random_erasing(image, rng, 0.5)),
        (
            {"augment_name": "autoaugment", "random_erasing": 1.0},
            lambda image, rng: random_erasing(autoaugment(image, rng), rng, 1),
        ),
    ],
)  # fmt: skip
def test_options_name_what_is_done(options: dict[str, Any], expected: Any) -> None:
    image = picture()
    for seed in range(40):
        found = augment(image, np.random.default_rng(seed), DataConfig(**options))
        np.testing.assert_array_equal(found, expected(image, np.random.default_rng(seed)))
