"""The order of training for data that are read again in each epoch: neighbours in a file are used close together.

A piece is a group of neighbouring records. An epoch's pieces are laid end to end in random order, like a tape, which is
cut into as many equal stretches as a batch has rows. Each row moves along its stretch, one record per step. The part of
a piece that lies in one stretch is a segment, whose records come in random order. Only one host reads a segment, with
one request, whichever rows a host has. So a batch holds records of as many pieces as it has rows.

As in `order`, everything is computed from the position: the order is the same for any number of hosts and workers, and
from any position on. But it depends on the batch size.
"""

import bisect
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from resnet_tpu.data.loader.order import epoch_seed, record_at_position


class Segment(NamedTuple):
    """Records of one piece that one row of the batches needs, step by step."""

    positions: range  # in the stream, one batch apart
    records: tuple[int, ...]  # at these positions


class _Tape(NamedTuple):
    """An epoch's pieces in order, the number of records up to the end of each, and whether each is laid backwards.

    Where a stretch ends within a piece, one end of the piece comes late in the epoch and the other early. Which
    end comes late must not be the same in every epoch.
    """

    pieces: list[int]
    ends: list[int]
    is_backwards: list[bool]


class PieceOrder:
    """Which record stands at a position of the endless stream; every epoch is a permutation of all records.

    starts: int64 [pieces], the first record of each piece, from 0 on.
    """

    def __init__(self, starts: np.ndarray, num_records: int, batch_size: int, seed: int) -> None:
        self._starts, self._num_records, self._batch_size, self._seed = starts, num_records, batch_size, seed
        self._sizes = np.diff(starts, append=num_records)
        self._tape = functools.lru_cache(maxsize=4)(self._lay_tape)
        self._segment = functools.lru_cache(maxsize=4 * batch_size)(self._cut)

    def __reduce__(self) -> tuple[Any, ...]:  # functions with a cache cannot be pickled
        return type(self), (self._starts, self._num_records, self._batch_size, self._seed)

    def record_at(self, position: int) -> int:
        """The record at `position` (from 0)."""
        segment = self.segment_at(position)
        return segment.records[segment.positions.index(position)]

    def segment_at(self, position: int) -> Segment:
        """The segment that `position` belongs to."""
        epoch, index = divmod(position, self._num_records)
        step, row = divmod(index, self._batch_size)  # rows are counted from the one in which the epoch begins
        start, _ = self._row_span(row)
        return self._segment(epoch, row, bisect.bisect_right(self._tape(epoch).ends, start + step))

    def _row_span(self, row: int) -> tuple[int, int]:
        """Where on the tape the records of a row begin and end."""
        steps, longer = divmod(self._num_records, self._batch_size)
        start = row * steps + min(row, longer)
        return start, start + steps + (row < longer)

    def _lay_tape(self, epoch: int) -> _Tape:
        count = len(self._starts)
        first = epoch * count
        pieces = [record_at_position(first + i, num_records=count, seed=self._seed) for i in range(count)]
        bits = np.random.Philox(key=[epoch_seed(self._seed, epoch), self._num_records]).random_raw(count)
        return _Tape(
            pieces, list(itertools.accumulate(self._sizes[pieces].tolist())), (bits >> 63).astype(bool).tolist()
        )

    def _cut(self, epoch: int, row: int, number: int) -> Segment:
        """The segment of `row` in the piece that is number `number` on the tape."""
        tape = self._tape(epoch)
        piece, begin, end = tape.pieces[number], tape.ends[number - 1] if number else 0, tape.ends[number]
        start, stop = self._row_span(row)
        low, high = max(begin, start), min(end, stop)
        first = epoch * self._num_records + row + (low - start) * self._batch_size
        positions = range(first, first + (high - low) * self._batch_size, self._batch_size)
        # Not Generator.permutation: NumPy may change it.
        bits = np.random.Philox(key=[epoch_seed(self._seed, epoch), low]).random_raw(high - low)
        offset = end - high if tape.is_backwards[number] else low - begin
        shuffled = np.argsort(bits, kind="stable") + (int(self._starts[piece]) + offset)
        return Segment(positions, tuple(shuffled.tolist()))
