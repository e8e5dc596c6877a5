"""Batch sizes that the devices cannot share are refused."""

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import division


@pytest.mark.parametrize(("batch_size", "choice"), [(20, r"Use 16 or 24\."), (3, r"Use 8\."), (9, r"Use 8 or 16\.")])
def test_a_batch_that_does_not_divide_is_refused_with_one_that_does(batch_size: int, choice: str) -> None:
    with pytest.raises(
        UserError, match=rf"train_batch_size: got {batch_size}, .* multiple of the 8 devices\. {choice}"
    ):
        division.check_batch_divides(Config().replace(train_batch_size=batch_size), 8)


def test_each_part_of_a_batch_must_divide() -> None:
    expected = r"train_batch_size: got 24, .* the 8 devices times gradient_accumulation_steps=2\. Use 16 or 32\."
    with pytest.raises(UserError, match=expected):
        division.check_batch_divides(Config().replace(train_batch_size=24, gradient_accumulation_steps=2), 8)
