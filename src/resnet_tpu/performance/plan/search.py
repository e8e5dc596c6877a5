"""The largest batch that fits, in few compilations."""

import math
from collections.abc import Callable

GRAIN = 8
"""Images by which the batch of a device changes: the TPU's tiles have 8 rows."""

ENOUGH = 0.9
"""Of what is available: a batch that takes as much is the answer, as to prove that the next one fails costs most."""

AIM = 0.96
"""Of what is available, at which a guess is aimed: what fits only by computing things anew is slow."""


def find_largest(needed: Callable[[int], float], available: float, start: int, *, most: int = 4096) -> int | None:
    """The largest batch per device for which `needed(batch)` bytes are at most `available`, or one that takes `ENOUGH`.

    Begins at `start`, and guesses on from there by a straight line through what it has seen: two or three calls as a
    rule, each of which compiles. Ends as well when a batch larger by a 16th is known to fail. infinity stands for too
    much of unknown size. At most `most`; None when not even one image fits.
    """
    seen: dict[int, float] = {}
    fits, fails = 0, most + 1
    batch = min(max(1, start), most)
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
