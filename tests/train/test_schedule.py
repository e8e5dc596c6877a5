"""Learning rates: the original's at every recorded step, and the others by hand."""

import csv
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.config import Config
from resnet_tpu.train.schedule import constant, cosine_decay, make_schedule, polynomial_decay, step_decay

# Four units in the last place of float32 for each of the few operations of a schedule.
RTOL = 5e-7


def rates(schedule: Any, steps: Any) -> np.ndarray:
    """The rates at `steps`, computed in one compiled call as in training."""
    values = jax.jit(jax.vmap(schedule))(jnp.asarray(steps, jnp.int32))
    assert values.dtype == jnp.float32
    return np.asarray(values)


def make_config(**options: Any) -> Config:
    return Config().replace(**options)


@pytest.mark.parametrize("kind", ["step", "lars", "rewinding_step"])
def test_original_schedules(golden: Path, kind: str) -> None:
    runs = json.loads((golden / "schedules/schedules.json").read_text())[kind]
    assert len(runs) == 6
    for run in runs:
        with (golden / "schedules" / run["file"]).open() as file:
            rows = list(csv.DictReader(file))
        options = run["params"] | {"enable_lars": kind == "lars"}
        if kind == "rewinding_step":  # stretches its boundaries over 90 epochs whatever the length of the run
            options["learning_rate_epochs"] = 90
        actual = rates(make_schedule(make_config(**options)), [int(row["step"]) for row in rows])
        expected = np.array([row["learning_rate"] for row in rows], np.float32)
        tolerance = RTOL * expected
        if kind == "lars":  # peak * (1 - done)^2: where done is nearly 1, what is left has lost digits
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
    assert rates(make_schedule(config), [0])[0] == 0  # the first update of the warm-up does nothing


def test_very_short_runs_of_the_step_schedule_have_the_originals_quirk() -> None:
    config = make_config(num_train_images=1281167, train_batch_size=1024, train_steps=1024)
    np.testing.assert_allclose(rates(make_schedule(config), [0, 1023]), 0.0004, rtol=RTOL)


def test_lengths_may_be_epochs() -> None:
    options = {"num_train_images": 2934, "train_batch_size": 1024}
    steps = np.arange(60)
    by_steps = rates(make_schedule(make_config(train_steps=42, **options)), steps)
    by_epochs = rates(make_schedule(make_config(train_steps="15epochs", **options)), steps)
    np.testing.assert_array_equal(by_steps, by_epochs)


@pytest.mark.parametrize(
    ("batch", "peak", "warmup_epochs"), [(8192, 10.0, 5), (16384, 25.0, 5), (32768, 32.0, 14), (65536, 35.6, 40)]
)
def test_lars_warms_up_to_the_peak_of_its_batch_and_ends_at_a_ten_thousandth(
    batch: int, peak: float, warmup_epochs: int
) -> None:
    images, total = 1281167, 90 * 1281167 // batch
    schedule = polynomial_decay(batch, num_train_images=images, train_steps=total)
    warmup = warmup_epochs * images // batch
    steps = np.arange(warmup + 1)
    np.testing.assert_allclose(rates(schedule, steps), peak * steps * batch / images / warmup_epochs, rtol=1e-6)
    later = rates(schedule, np.arange(warmup + 1, total + 10))
    assert (np.diff(later) <= 0).all()
    assert later[0] < peak
    np.testing.assert_allclose(later[-1], 0.0001, rtol=1e-6)


def test_a_given_peak_of_lars_replaces_the_one_of_the_batch() -> None:
    given = polynomial_decay(16384, num_train_images=1281167, train_steps=7037, poly_rate=12.0)
    default = polynomial_decay(16384, num_train_images=1281167, train_steps=7037)
    np.testing.assert_allclose(rates(given, [100]) / rates(default, [100]), 12 / 25, rtol=1e-6)


def test_cosine() -> None:
    schedule = cosine_decay(0.8, warmup=4, total=12)
    expected = [0.2, 0.4, 0.6, 0.8, 0.8, 0.8 * (1 + np.cos(np.pi / 8)) / 2]
    np.testing.assert_allclose(rates(schedule, range(6)), expected, rtol=RTOL)
    np.testing.assert_allclose(rates(schedule, [8, 12, 100]), [0.4, 0, 0], atol=1e-7)
    np.testing.assert_allclose(rates(cosine_decay(1.0, warmup=0, total=2), [0, 1, 2]), [1, 0.5, 0], atol=1e-7)


def test_constant() -> None:
    np.testing.assert_allclose(rates(constant(0.3), [0, 1, 10**9]), 0.3, rtol=RTOL)
    np.testing.assert_allclose(rates(constant(0.3, warmup=2), range(4)), [0.15, 0.3, 0.3, 0.3], rtol=RTOL)


def test_options_choose_the_schedule_and_scale_its_peak_with_the_batch() -> None:
    options = {"num_train_images": 1000, "train_batch_size": 512, "train_steps": 36, "base_learning_rate": 0.1}
    steps = np.arange(40)
    cosine = make_schedule(make_config(learning_rate_schedule="cosine", **options))
    np.testing.assert_array_equal(rates(cosine, steps), rates(cosine_decay(0.2, warmup=2, total=36), steps))
    flat = make_schedule(make_config(learning_rate_schedule="constant", **options))
    np.testing.assert_array_equal(rates(flat, steps), rates(constant(0.2), steps))
    warm = make_schedule(make_config(learning_rate_schedule="constant", warmup_steps="2epochs", **options))
    np.testing.assert_array_equal(rates(warm, steps), rates(constant(0.2, warmup=3), steps))
    step = make_schedule(make_config(**options))
    np.testing.assert_array_equal(
        rates(step, steps), rates(step_decay(0.2, steps_per_epoch=1000 / 512, epochs=36), steps)
    )
