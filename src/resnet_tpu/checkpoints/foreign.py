"""What the readers of others' weights share, TensorFlow's and PyTorch's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from resnet_tpu.errors import UserError

ANY_IMAGE_SIZE = 224
"""Of networks that are made to see which arrays they have: it decides nothing where the stem is given."""


def stand_in(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of zeros that takes the memory of one of them."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def unreadable(what: str, error: OSError) -> UserError:
    """The error for a file that cannot be read; what: its name in the message."""
    got = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or error
    return UserError(what, got, "a readable file", "Check path and permissions.")
