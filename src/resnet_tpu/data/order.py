"""The exact order of training: which record stands at a position, and its random numbers, by arithmetic alone.

Nothing is advanced or remembered, so the same seed gives the same order and crops for any number of threads and hosts
and any batch size, and a run can begin at any position.
"""

import functools
from typing import NamedTuple

import numpy as np
from grain.experimental import index_shuffle

_ROUNDS = 4  # of the cipher that permutes the indices; Grain's own choice


class Place(NamedTuple):
    """Where a position of the endless stream lies."""

    epoch: int
    record: int


def place_at(position: int, *, num_records: int, seed: int) -> Place:
    """The epoch and the record at `position` (from 0). Every epoch is another permutation of all records."""
    epoch, index = divmod(position, num_records)
    return Place(epoch, index_shuffle(index, num_records - 1, _epoch_seed(seed, epoch), _ROUNDS))


def random_at(position: int, *, seed: int) -> np.random.Generator:
    """The random numbers of the image at `position`."""
    return np.random.Generator(np.random.Philox(key=[_stream_key(seed), position]))


# The seeds are hashed: with seed + epoch, the runs of neighbouring seeds would share their epochs.
@functools.lru_cache(maxsize=64)
def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


@functools.lru_cache(maxsize=64)
def _stream_key(seed: int) -> int:
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
