"""The exact order of training: which record stands at a position, and its random numbers, by arithmetic alone.

No state is advanced or kept, so the same seed gives the same order and crops for any number of threads and hosts and
any batch size, and a run can begin at any position.
"""

import functools
import threading

import numpy as np

from resnet_tpu.data.loader.permutation import record_at


def record_at_position(position: int, *, num_records: int, seed: int) -> int:
    """The record at `position` (from 0) of the endless stream. Every epoch is a new permutation of all records."""
    epoch, index = divmod(position, num_records)
    return record_at(index, num_records=num_records, seed=epoch_seed(seed, epoch))


def random_at(position: int, *, seed: int) -> np.random.Generator:
    """The random generator for the image at `position`; valid until the calling thread asks for another."""
    key = _streams.start["state"]["key"]
    key[0], key[1] = _stream_key(seed), position
    _streams.bits.state = _streams.start
    return _streams.generator


class _Streams(threading.local):
    """A thread's one generator: resetting it to the start of a stream is ten times as fast as making a new one."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.start = self.bits.state


_streams = _Streams()


# The seeds are hashed: with seed + epoch, the runs of neighbouring seeds would share their epochs.
@functools.lru_cache(maxsize=64)
def epoch_seed(seed: int, epoch: int) -> int:
    """A number below 2**32 for each epoch of each seed."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


@functools.lru_cache(maxsize=64)
def _stream_key(seed: int) -> int:
    key = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    return int(float(key)) if key >= 1 << 63 else key  # as older NumPy rounded it, so that earlier runs can be resumed
