"""The largest batch that fits, in few compilations."""

import math
from collections.abc import Callable

GRAIN = 8
"""Images by which the batch of a device changes: the TPU's tiles have 8 rows."""


def find_largest(needed: Callable[[int], float], available: float, start: int, *, most: int = 4096) -> int | None:
    """The largest batch per device, to a 16th of it, for which `needed(batch)` bytes are at most `available`.

    Begins at `start`, and guesses on from there by a straight line through what it has seen: three or four calls as a
    rule, each of which compiles. infinity stands for too much of unknown size. At most `most`; None when not even one
    image fits.
    """
    seen: dict[int, float] = {}
    fits, fails = 0, most + 1
    batch = min(max(1, start), most)
    while fails - fits > _tolerance(fits):
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
    """Where the line through the two known batches nearest to the limit comes to 99 % of it, else `middle`."""
    known = sorted((abs(size - available), batch, size) for batch, size in seen.items() if math.isfinite(size))
    if not known:
        return middle
    (_, batch, size), *others = known
    _, other, other_size = others[0] if others else (0, 0, 0.0)
    if size == other_size:
        return middle
    return batch + (0.99 * available - size) * (batch - other) / (size - other_size)
