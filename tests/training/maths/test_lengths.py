"""When a run evaluates, reports and saves."""

from collections.abc import Callable

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.lengths import Lengths, kept_steps, lengths_of

LENGTHS = Lengths(total=20, per_eval=6, per_loop=4, per_save=8, kept=(0, 7))


@pytest.mark.parametrize(
    ("is_due", "steps"),
    [
        (LENGTHS.evaluates_at, {6, 12, 18, 20}),
        (LENGTHS.saves_at, {0, 7, 8, 16, 20}),
        (LENGTHS.reports_at, {0, 4, 6, 7, 8, 12, 16, 18, 20}),
    ],
)
def test_periods_end_at_their_multiples_and_with_the_run(is_due: Callable[[int], bool], steps: set[int]) -> None:
    assert {step for step in range(21) if is_due(step)} == steps


def test_a_checkpoint_is_due_every_5000_steps_or_after_a_longer_loop() -> None:
    config = Config().replace(num_train_images=1000, train_batch_size=10, save_checkpoints_steps=None)
    assert lengths_of(config.replace(iterations_per_loop=100)).per_save == 5000
    assert lengths_of(config.replace(iterations_per_loop="60epochs")).per_save == 6000


def test_more_steps_than_a_device_can_count_are_refused() -> None:
    config = Config().replace(num_train_images=1000, train_batch_size=10)
    assert lengths_of(config.replace(train_steps=2**31 - 1)).total == 2**31 - 1
    for length in (2**31, "21474837epochs"):
        with pytest.raises(
            UserError, match=r"train_steps: got .* = 2,147,483,[67]\d\d steps, expected at most 2,147,483,647"
        ):
            lengths_of(config.replace(train_steps=length))


def test_steps_to_keep_are_sorted_and_must_be_numbers() -> None:
    assert kept_steps("30, 0,12,30") == (0, 12, 30)
    with pytest.raises(UserError, match="lottery_checkpoint_iters: got '1;2', expected steps such as 0,11259"):
        kept_steps("1;2")
