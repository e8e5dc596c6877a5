"""Checks that results are finite, once they are on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np

from resnet_tpu.errors import NonFiniteError


def check_finite(what: str, values: Any, advise: Callable[[], str]) -> None:
    """Raises NonFiniteError unless all of `values`, an array on the host or a number, are finite.

    what: names the values, with step and batch. advise: returns what to do; called only if the check fails.
    """
    array = np.asarray(values)
    if not (finite := np.isfinite(array)).all():
        raise NonFiniteError(what, array[~finite].flat[0], "a finite number", advise())
