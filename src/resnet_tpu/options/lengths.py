"""Durations, in steps or in epochs."""

import re
from typing import Annotated

from resnet_tpu.errors import UserError

Length = Annotated[int | str, "length"]
"""A duration: a number of optimizer steps, or epochs over the training images as text: `15epochs`, `0.5epochs`."""

_EPOCHS = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:ep|epoch|epochs)\s*")


def to_steps(length: Length, *, what: str, num_train_images: int, train_batch_size: int) -> int:
    """`length` in optimizer steps: `int(epochs * num_train_images / train_batch_size)`, the original's formula.

    Raises UserError, naming `what`, when `length` is neither a number of steps >= 0 nor epochs.
    """
    if isinstance(length, int):
        if length >= 0:
            return length
    elif match := _EPOCHS.fullmatch(length):
        count = float(match[1]) * num_train_images / train_batch_size
        if count < 2**63:
            return int(count)
    raise UserError(what, repr(length), "steps such as 1000 or epochs such as 15epochs", "Change the value.")


def check_length(length: Length, *, what: str) -> None:
    """Raises UserError, as `to_steps` does, unless `length` is a number of steps or epochs."""
    to_steps(length, what=what, num_train_images=1, train_batch_size=1)
