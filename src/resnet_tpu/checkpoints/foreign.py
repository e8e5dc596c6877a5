"""Functions that the readers of TensorFlow's and of PyTorch's weights share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resnet_tpu.errors import UserError

ANY_IMAGE_SIZE = 224
"""Image size of networks made only to see which arrays they have: it has no effect if the stem is given."""


def stand_in(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of zeros that takes the memory of a single one."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def fraction(part: int, whole: int) -> float:
    """part / whole, such that int(whole * fraction) is `part`, as the network computes it."""
    found = part / whole
    return found if int(whole * found) == part else math.nextafter(found, 1)


def unreadable(what: str, error: OSError) -> UserError:
    """The error for a file that cannot be read; what: its name in the message."""
    got = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or error
    return UserError(what, got, "a readable file", "Check path and permissions.")
