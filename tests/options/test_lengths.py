"""Lengths in optimizer steps."""

import pytest

from resnet_tpu.options.lengths import to_steps


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1000, 1000), (0, 0), ("15epochs", 42), ("1epoch", 2), ("0.5ep", 1), ("0.1epochs", 0), (".5 epochs", 1)],
)
def test_steps_by_the_formula_of_the_original(length: int | str, expected: int) -> None:
    # int(15 * 2934 / 1024) = 42 is the worked example of the original's tutorial.
    assert to_steps(length, what="train_steps", num_train_images=2934, train_batch_size=1024) == expected
