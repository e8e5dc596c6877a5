"""Checks that results are finite, made where they reach the host."""

from collections.abc import Callable
from typing import Any

import numpy as np

from resnet_tpu.errors import NonFiniteError


def check_finite(what: str, values: Any, advise: Callable[[], str]) -> None:
    """Raises NonFiniteError unless all of `values`, an array on the host or a number, are finite.

    what: what they are, by step and batch. advise: says what to do; called only then.
    """
    array = np.asarray(values)
    if not (finite := np.isfinite(array)).all():
        raise NonFiniteError(what, array[~finite].flat[0], "a finite number", advise())
