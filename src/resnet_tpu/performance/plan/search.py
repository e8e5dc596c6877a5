"""Finds the largest batch that fits, in few compilations."""

import math
from collections.abc import Callable

MOST = 4096
"""The largest batch per device to try, unless the search begins at a larger one."""

GRAIN = 8
"""Step by which the batch per device changes: the TPU's tiles have 8 rows."""

ENOUGH = 0.9
"""Fraction of the available memory: a batch that takes this is accepted, as most time goes into proving that the next
fails."""

AIM = 0.96
"""Fraction of the available memory that a guess aims at: a program that fits only by recomputing values is slow."""


def find_largest(needed: Callable[[int], float], available: float, start: int) -> int | None:
    """The largest batch per device for which `needed(batch)` bytes are at most `available`, or one that takes `ENOUGH`.

    Begins at `start` and extrapolates linearly from the results so far, usually with two or three calls, each of which
    compiles. Also ends when a batch larger by a 16th is known to fail. needed: returns infinity for a batch that fails
    with unknown size. The result is at most `MOST` or `start`, None if not even one image fits.
    """
    most = max(MOST, start)
    sizes: dict[int, float] = {}
    fits, fails = 0, most + 1
    batch = max(1, start)
    while fails - fits > _tolerance(fits) and sizes.get(fits, 0) < ENOUGH * available:
        sizes[batch] = needed(batch)
        if sizes[batch] <= available:
            fits = batch
        else:
            fails = batch
        guess = _guess(sizes, available, (fits + fails) / 2)
        guess = guess // GRAIN * GRAIN if guess >= GRAIN else guess
        batch = int(min(max(guess, fits + _tolerance(fits)), fails - 1))
    return fits or None


def _tolerance(batch: int) -> int:
    return max(1, min(GRAIN, batch), batch // 16)


def _guess(sizes: dict[int, float], available: float, middle: float) -> float:
    """The batch at which the line through the two known points nearest to the limit reaches `AIM`, else `middle`."""
    known = sorted((abs(size - available), batch, size) for batch, size in sizes.items() if math.isfinite(size))
    if not known:
        return middle
    (_, batch, size), *others = known
    _, other, other_size = others[0] if others else (0, 0, 0.0)
    slope = (size - other_size) / (batch - other)
    return batch + (AIM * available - size) / slope if slope > 0 else middle
