"""Policies: outcomes have the right frequencies, and runs resemble the original's own."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu.data.pixels.operations import OPERATIONS, Flavor
from resnet_tpu.data.pixels.policies import (
    AUTOAUGMENT,
    AUTOAUGMENT_V0,
    RANDAUGMENT,
    Reach,
    autoaugment,
    draw_arguments,
    randaugment,
)

Policy = Callable[..., np.ndarray]
POLICIES: list[Policy] = [randaugment, autoaugment]


def picture() -> np.ndarray:
    """A small image, so that outcomes are computed quickly."""
    return np.random.default_rng(0).integers(0, 250, (12, 12, 3), np.uint8)


def assert_rates(found: Counter[bytes], expected: dict[bytes, float]) -> None:
    """Checks that each outcome's count is within 5 standard deviations, and that there are no other outcomes."""
    assert found.keys() <= expected.keys()
    total = found.total()
    for outcome, rate in expected.items():
        assert abs(found[outcome] - rate * total) < 5 * math.sqrt(rate * (1 - rate) * total) + 1e-9, rate


def ways(name: str, level: int, reach: Reach, flavor: Flavor, image: np.ndarray) -> list[np.ndarray]:
    """The equally likely outcomes of an operation."""
    operation = OPERATIONS[flavor][name]
    arguments = draw_arguments(name, level, reach, image.shape, np.random.default_rng(0))
    if name == "Cutout":
        return [operation(image, arguments[0], y, x) for y, x in np.ndindex(*image.shape[:2])]
    if name in {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}:
        return [operation(image, sign * arguments[0]) for sign in (1, -1)]
    return [operation(image, *arguments)]


# ---------------------------------------------------------------------------------------------------------- randaugment


@pytest.mark.parametrize("flavor", ["tf", "corrected"])
def test_each_operation_is_chosen_as_often_as_the_others(flavor: Flavor) -> None:
    image = picture()
    expected: dict[bytes, float] = defaultdict(float)
    for name in OPERATIONS[flavor]:
        results = ways(name, 3, RANDAUGMENT, flavor, image)
        for result in results:
            expected[result.tobytes()] += 1 / 16 / len(results)
    rng = np.random.default_rng(1)
    draws = (randaugment(image, rng, num_layers=1, magnitude=3, flavor=flavor) for _ in range(8000))
    assert_rates(Counter(draw.tobytes() for draw in draws), expected)


def test_layers_follow_each_other() -> None:
    image = picture()
    np.testing.assert_array_equal(randaugment(image, np.random.default_rng(0), num_layers=0), image)
    names = ("Invert", "Posterize", "Solarize", "AutoContrast")
    expected = {
        after.tobytes()
        for first in names
        for second in names
        for before in ways(first, 9, RANDAUGMENT, "tf", image)
        for after in ways(second, 9, RANDAUGMENT, "tf", before)
    }
    rng = np.random.default_rng(0)
    assert expected <= {randaugment(image, rng).tobytes() for _ in range(3000)}


def test_cutouts_lie_anywhere_in_the_image() -> None:
    rng, count = np.random.default_rng(0), 4000
    drawn = [draw_arguments("Cutout", 9, RANDAUGMENT, (5, 8, 3), rng) for _ in range(count)]
    assert_rates(Counter(bytes(map(int, centre)) for _, *centre in drawn), {bytes(c): 1 / 40 for c in np.ndindex(5, 8)})


@pytest.mark.parametrize(
    ("magnitude", "expected"),
    [(9, (27, 3, 230, 99, 1.72, 0.27, 90, 36)), (10, (30, 4, 256, 110, 1.9, 0.30, 100, 40)),
     (15, (45, 6, 384, 165, 2.8, 0.45, 150, 60))],
)  # fmt: skip
def test_arguments_of_magnitudes(magnitude: int, expected: tuple[float, ...]) -> None:
    names = ("Rotate", "Posterize", "Solarize", "SolarizeAdd", "Sharpness", "ShearY", "TranslateX", "Cutout")
    rng = np.random.default_rng(0)
    found = [abs(draw_arguments(name, magnitude, RANDAUGMENT, (224, 224, 3), rng)[0]) for name in names]
    assert found == pytest.approx(expected)


# ---------------------------------------------------------------------------------------------------------- autoaugment


@pytest.mark.parametrize("flavor", ["tf", pytest.param("corrected", marks=pytest.mark.long)])
def test_each_pair_and_step_is_taken_with_its_probability(flavor: Flavor) -> None:
    image = picture()
    expected: dict[bytes, float] = defaultdict(float)
    for pair in AUTOAUGMENT_V0:
        outcomes = [(1 / len(AUTOAUGMENT_V0), image)]
        for step in pair:
            after = [(rate * (1 - step.probability), result) for rate, result in outcomes]
            for rate, result in outcomes:
                results = ways(step.operation, step.level, AUTOAUGMENT, flavor, result)
                after += [(rate * step.probability / len(results), changed) for changed in results]
            outcomes = after
        for rate, result in outcomes:
            expected[result.tobytes()] += rate
    assert sum(expected.values()) == pytest.approx(1)
    rng = np.random.default_rng(2)
    assert_rates(Counter(autoaugment(image, rng, flavor=flavor).tobytes() for _ in range(20_000)), expected)


def test_table_is_written_without_a_slip() -> None:
    """Compares how often each operation occurs, and the sums of its probabilities and levels."""
    steps = [step for pair in AUTOAUGMENT_V0 for step in pair]
    found = {
        name: (len(own), round(sum(step.probability for step in own), 1), sum(step.level for step in own))
        for name in sorted({step.operation for step in steps})
        for own in [[step for step in steps if step.operation == name]]
    }
    assert found == {
        "AutoContrast": (2, 1.0, 9),
        "Color": (9, 5.0, 37),
        "Equalize": (12, 8.0, 55),
        "Invert": (1, 0.4, 9),
        "Posterize": (2, 1.2, 8),
        "Rotate": (7, 4.6, 39),
        "ShearX": (2, 0.2, 9),
        "ShearY": (4, 2.6, 14),
        "Solarize": (8, 4.6, 41),
        "SolarizeAdd": (2, 1.4, 10),
        "TranslateY": (1, 0.8, 9),
    }


def test_operations_of_the_policy_are_the_originals(golden: Callable[[str], Path]) -> None:
    used = json.loads(golden("augment/ops.json").read_text())["policy_v0_operations_used"]
    assert {step.operation for pair in AUTOAUGMENT_V0 for step in pair} == set(used)
    assert len(AUTOAUGMENT_V0) == 25


# ----------------------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize(("name", "policy"), [("randaugment_2_9", randaugment), ("autoaugment_v0", autoaugment)])
def test_runs_look_like_the_originals(golden: Callable[[str], Path], name: str, policy: Policy) -> None:
    """Means and shares over 2000 runs of each differ by less than 4 standard deviations of the difference."""
    image = np.load(golden("augment/ops.npz"))["images"][0]
    theirs = json.loads(golden("augment/ops.json").read_text())["end_to_end_random"][name]
    runs = theirs["runs"]
    rng = np.random.default_rng(0)
    results = [policy(image, rng) for _ in range(runs)]
    means = np.array([result.mean() for result in results])
    deviation = theirs["std_of_image_means"]
    assert abs(np.mean(means) - theirs["mean_of_image_means"]) < 4 * deviation * math.sqrt(2 / runs)
    kurtosis = np.mean((means - np.mean(means)) ** 4) / np.var(means) ** 2
    assert abs(np.std(means) - deviation) < 4 * deviation * math.sqrt((kurtosis - 1) / 4 * 2 / runs)
    unchanged = np.mean([np.array_equal(result, image) for result in results])
    rate = theirs["unchanged_fraction"]
    assert abs(unchanged - rate) < 4 * math.sqrt(rate * (1 - rate) * 2 / runs)


@pytest.mark.parametrize("policy", POLICIES)
def test_numbers_decide_everything(policy: Policy) -> None:
    image = picture()
    kept = image.copy()
    results = [[policy(image, np.random.default_rng(seed)).tobytes() for seed in range(200)] for _ in range(2)]
    assert results[0] == results[1]
    assert len(set(results[0])) > 25
    np.testing.assert_array_equal(image, kept)
