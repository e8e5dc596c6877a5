"""The largest batch that fits, in few compilations."""

import math
from collections.abc import Callable

MOST = 4096
"""Images per device that are tried at most."""

GRAIN = 8
"""Images by which the batch of a device changes: the TPU's tiles have 8 rows."""

ENOUGH = 0.9
"""Fraction of the available memory: a batch that takes this is accepted, as proving that the next fails costs most."""

AIM = 0.96
"""Fraction of the available memory that a guess aims at: what fits only by recomputing values is slow."""


def find_largest(needed: Callable[[int], float], available: float, start: int) -> int | None:
    """The largest batch per device for which `needed(batch)` bytes are at most `available`, or one that takes `ENOUGH`.

    Begins at `start` and extrapolates linearly from what it has seen: usually two or three calls, each of which
    compiles. Also ends when a batch larger by a 16th is known to fail. `needed` gives infinity for too much of unknown
    size. At most `MOST`; None when not even one image fits.
    """
    seen: dict[int, float] = {}
    fits, fails = 0, MOST + 1
    batch = min(max(1, start), MOST)
    while fails - fits > _tolerance(fits) and seen.get(fits, 0) < ENOUGH * available:
        seen[batch] = needed(batch)
        if seen[batch] <= available:
            fits = batch
        else:
            fails = batch
        guess = _guess(seen, available, (fits + fails) / 2)
        guess = guess // GRAIN * GRAIN if guess >= GRAIN else guess
        batch = int(min(max(guess, fits + _tolerance(fits)), fails - 1))
    return fits or None


def _tolerance(batch: int) -> int:
    return max(1, min(GRAIN, batch), batch // 16)


def _guess(seen: dict[int, float], available: float, middle: float) -> float:
    """Where the line through the two known batches nearest to the limit comes to `AIM`, else `middle`."""
    known = sorted((abs(size - available), batch, size) for batch, size in seen.items() if math.isfinite(size))
    if not known:
        return middle
    (_, batch, size), *others = known
    _, other, other_size = others[0] if others else (0, 0, 0.0)
    slope = (size - other_size) / (batch - other)
    return batch + (AIM * available - size) / slope if slope > 0 else middle
