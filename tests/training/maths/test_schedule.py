"""Learning rates: the original's at every recorded step, the others worked out by hand."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, epoch_boundaries
from resnet_tpu.recipes import find_recipe
from resnet_tpu.training.maths.schedule import (
    Constant,
    CosineDecay,
    PolynomialDecay,
    StepDecay,
    make_schedule,
    schedule_warnings,
    standard_boundaries,
)

# Four units in the last place of float32, for the roundings of the few operations of a schedule.
RTOL = 5e-7


def rates(schedule: Any, steps: Any) -> np.ndarray:
    """The rates at `steps`, computed in one compiled call as in training."""
    values = jax.jit(jax.vmap(schedule))(jnp.asarray(steps, jnp.int32))
    assert values.dtype == jnp.float32
    return np.asarray(values)


def make_config(**options: Any) -> Config:
    return Config().replace(**options)


@pytest.mark.parametrize("kind", ["step", "lars", "rewinding_step"])
def test_original_schedules(golden: Callable[[str], Path], kind: str) -> None:
    runs = json.loads(golden("schedules/schedules.json").read_text())[kind]
    assert runs
    for run in runs:
        with golden(f"schedules/{run['file']}").open() as file:
            rows = list(csv.DictReader(file))
        options = run["params"] | {"enable_lars": kind == "lars"}
        if kind == "rewinding_step":  # its boundaries cover 90 epochs, however long the run is
            options["learning_rate_epochs"] = 90
        actual = rates(make_schedule(make_config(**options)), [int(row["step"]) for row in rows])
        expected = np.array([row["learning_rate"] for row in rows], np.float32)
        tolerance = RTOL * expected
        if kind == "lars":  # peak * (1 - done)^2: 1 - done loses digits where done is nearly 1
            tolerance += 2 * np.spacing(np.float32(0.5)) * np.sqrt(run["max_lr"] * expected)
        assert (np.abs(actual - expected) <= tolerance).all(), run["file"]


@pytest.mark.parametrize(
    ("images", "batch", "steps", "boundaries"),
    [
        (1281167, 1024, 112590, (5, 30, 60, 80)),
        (1281167, 1024, 113854, (5, 30, 60, 80)),
        (1281167, 4096, 28464, (5, 30, 60, 81)),
        (1281167, 8192, 14232, (5, 30, 60, 81)),
        (1281167, 4096, 56304, (10, 60, 120, 160)),
        (1281167, 4096, 109475, (19, 116, 233, 311)),
        (2934, 1024, 42, (1, 7, 14, 18)),
    ],
)
def test_step_boundaries(images: int, batch: int, steps: int, boundaries: tuple[int, ...]) -> None:
    config = make_config(num_train_images=images, train_batch_size=batch, train_steps=steps)
    peak = 0.1 * batch / 256
    changes = [int(np.ceil(epoch * images / batch)) for epoch in boundaries]
    before, after = (rates(make_schedule(config), [change + offset for change in changes]) for offset in (-1, 0))
    np.testing.assert_allclose(after, peak * np.array([1, 0.1, 0.01, 0.001]), rtol=RTOL)
    np.testing.assert_allclose(before[1:], after[:-1], rtol=RTOL)
    assert before[0] < peak
    assert rates(make_schedule(config), [0])[0] == 0  # the first update of the warm-up changes nothing


def test_very_short_runs_of_the_step_schedule_have_the_originals_quirk() -> None:
    config = make_config(num_train_images=1281167, train_batch_size=1024, train_steps=1024)
    np.testing.assert_allclose(rates(make_schedule(config), [0, 1023]), 0.0004, rtol=RTOL)


def test_step_decay_at_given_boundaries() -> None:
    """The rates of the original's fast DAWNBench training: full after epoch 4, a tenth from 21, and so on."""
    schedule = StepDecay(0.4, (4, 21, 35, 43), steps_per_epoch=10)
    expected = {0: 0, 1: 0.01, 20: 0.2, 39: 0.39, 40: 0.4, 209: 0.4, 210: 0.04, 349: 0.04, 350: 0.004, 429: 0.004}
    np.testing.assert_allclose(rates(schedule, list(expected)), list(expected.values()), rtol=RTOL)
    np.testing.assert_allclose(rates(schedule, [430, 10**6]), 0.0004, rtol=RTOL)
    halved = StepDecay(0.4, (0.5,), steps_per_epoch=4)
    np.testing.assert_allclose(rates(halved, [0, 1, 2, 3]), [0, 0.2, 0.4, 0.4], rtol=RTOL)


def test_cifar_has_the_rates_of_the_pruning_paper() -> None:
    schedule = make_schedule(find_recipe("cifar").replace(num_train_images=50000))
    steps = {0: 0.1, 35546: 0.1, 35547: 0.01, 53124: 0.01, 53126: 0.001, 71107: 0.001}
    np.testing.assert_allclose(rates(schedule, list(steps)), list(steps.values()), rtol=RTOL)


@pytest.mark.parametrize("text", ["4,3", "-1,2", "4;5", "1,,2", "nan", "1,inf"])
def test_boundaries_that_are_no_list_of_epochs(text: str) -> None:
    with pytest.raises(UserError, match=r"learning_rate_boundaries: got .*, expected epochs in ascending order"):
        epoch_boundaries(text)


def test_lengths_may_be_epochs() -> None:
    options = {"num_train_images": 2934, "train_batch_size": 1024}
    steps = np.arange(60)
    by_steps = rates(make_schedule(make_config(train_steps=42, **options)), steps)
    by_epochs = rates(make_schedule(make_config(train_steps="15epochs", **options)), steps)
    np.testing.assert_array_equal(by_steps, by_epochs)


IMAGES = 1281167


def lars_by_hand(step: int, *, batch: int, train_steps: int, peak: float, warmup_epochs: int) -> float:
    """The rate of LARS at one step, in float64."""
    epoch = step * batch / IMAGES
    if epoch <= warmup_epochs:
        return peak * epoch / warmup_epochs
    warmup_steps = math.floor(warmup_epochs * IMAGES / batch)
    length = train_steps - warmup_steps + 1
    done = min(max(1, step - warmup_steps), length)
    return (peak - 0.0001) * (1 - done / length) ** 2 + 0.0001


@pytest.mark.parametrize(
    ("batch", "train_steps", "peak", "warmup_epochs", "warmup_steps"),
    [
        (8192, 14232, 10.0, 5, 781),
        (16383, 7038, 10.0, 5, 391),
        (16384, 7116, 25.0, 5, 390),
        (32767, 3519, 25.0, 5, 195),
        (32768, 3558, 32.0, 14, 547),
        (65535, 1760, 32.0, 14, 273),
        (65536, 1780, 35.6, 40, 781),
    ],
)
def test_lars_at_every_step(batch: int, train_steps: int, peak: float, warmup_epochs: int, warmup_steps: int) -> None:
    """Neighbouring batch sizes here have different peaks and warm-ups."""
    options = {"num_train_images": IMAGES, "train_batch_size": batch, "train_steps": train_steps, "enable_lars": True}
    steps = np.arange(train_steps + 10)
    actual = rates(make_schedule(make_config(**options)), steps)
    by_hand = {"batch": batch, "train_steps": train_steps, "peak": peak, "warmup_epochs": warmup_epochs}
    expected = np.array([lars_by_hand(int(step), **by_hand) for step in steps])
    # peak * (1 - done)^2 loses digits where done is nearly 1: XLA multiplies by a reciprocal in place of dividing. That
    # rounds by up to 1 spacing of 0.5, and the product by half of one, unless it is part of a fused multiply-add.
    lost = 2 * 1.5 * np.spacing(np.float32(0.5)) * np.sqrt(peak * expected)
    assert (np.abs(actual - expected) <= RTOL * expected + lost).all()
    assert actual[0] == 0
    assert (np.diff(actual[: warmup_steps + 1]) > 0).all()
    assert (np.diff(actual[warmup_steps + 1 :]) <= 0).all()
    np.testing.assert_allclose(actual[train_steps + 1 :], 0.0001, rtol=1e-6)
    assert actual[train_steps - 1] > 0.0001


def test_a_given_peak_of_lars_replaces_the_one_of_the_batch() -> None:
    given = PolynomialDecay(16384, num_train_images=1281167, train_steps=7037, poly_rate=12.0)
    default = PolynomialDecay(16384, num_train_images=1281167, train_steps=7037)
    np.testing.assert_allclose(rates(given, [100]) / rates(default, [100]), 12 / 25, rtol=1e-6)


def test_cosine() -> None:
    schedule = CosineDecay(0.8, warmup=4, total=12)
    expected = [0.2, 0.4, 0.6, 0.8, 0.8, 0.8 * (1 + np.cos(np.pi / 8)) / 2]
    np.testing.assert_allclose(rates(schedule, range(6)), expected, rtol=RTOL)
    np.testing.assert_allclose(rates(schedule, [8, 12, 100]), [0.4, 0, 0], atol=1e-7)
    np.testing.assert_allclose(rates(CosineDecay(1.0, warmup=0, total=2), [0, 1, 2]), [1, 0.5, 0], atol=1e-7)


def test_constant() -> None:
    np.testing.assert_allclose(rates(Constant(0.3), [0, 1, 10**9]), 0.3, rtol=RTOL)
    np.testing.assert_allclose(rates(Constant(0.3, warmup=2), range(4)), [0.15, 0.3, 0.3, 0.3], rtol=RTOL)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learning_rate_schedule": "cosine", "warmup_steps": "2epochs"}, ""),
        (
            {"learning_rate_schedule": "cosine", "warmup_steps": 90},
            "The warm-up of 90 steps is as long as the run",
        ),
        ({}, ""),
        ({"train_batch_size": 300}, "after 30 % of the run, not after 8/9. As it counts whole batches"),
        ({"train_batch_size": 80}, "for the last time never, not after 8/9. .* give learning_rate_epochs=72"),
        ({"train_batch_size": 80, "learning_rate_epochs": 72}, ""),
        *(({"train_steps": steps}, "") for steps in ("1epochs", "3epochs", "5epochs", "10epochs")),
        ({"train_steps": 30, "learning_rate_epochs": 90}, ""),
        ({"train_batch_size": 300, "learning_rate_boundaries": "1,2"}, ""),
        ({"train_batch_size": 300, "enable_lars": True}, ""),
    ],
)
def test_warns_when_schedule_behaves_unlike_its_name(options: dict[str, Any], said: str) -> None:
    config = make_config(**({"num_train_images": 100, "train_batch_size": 10, "train_steps": 90} | options))
    (found,) = schedule_warnings(config) if said else ("",)
    assert re.search(said, found)
    assert bool(list(schedule_warnings(config))) == bool(said)


def test_options_choose_the_schedule_and_scale_its_peak_with_the_batch() -> None:
    options = {"num_train_images": 1000, "train_batch_size": 512, "train_steps": 36, "base_learning_rate": 0.1}
    steps = np.arange(40)
    cosine = make_schedule(make_config(learning_rate_schedule="cosine", **options))
    np.testing.assert_array_equal(rates(cosine, steps), rates(CosineDecay(0.2, warmup=2, total=36), steps))
    at_once = make_schedule(make_config(learning_rate_schedule="cosine", warmup_steps=0, **options))
    np.testing.assert_array_equal(rates(at_once, steps), rates(CosineDecay(0.2, warmup=0, total=36), steps))
    flat = make_schedule(make_config(learning_rate_schedule="constant", **options))
    np.testing.assert_array_equal(rates(flat, steps), rates(Constant(0.2), steps))
    warm = make_schedule(make_config(learning_rate_schedule="constant", warmup_steps="2epochs", **options))
    np.testing.assert_array_equal(rates(warm, steps), rates(Constant(0.2, warmup=3), steps))
    step = make_schedule(make_config(**options))
    np.testing.assert_array_equal(
        rates(step, steps), rates(StepDecay(0.2, standard_boundaries(36), steps_per_epoch=1000 / 512), steps)
    )
    forced = make_schedule(make_config(lottery_force_learning_rate=0.0, **options))
    assert not rates(forced, steps).any()
    own = make_schedule(make_config(learning_rate_boundaries="2,5,6.5", **options))
    np.testing.assert_array_equal(
        rates(own, steps), rates(StepDecay(0.2, (2, 5, 6.5), steps_per_epoch=1000 / 512), steps)
    )
