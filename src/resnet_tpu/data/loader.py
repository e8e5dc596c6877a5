"""Batches of decoded images in exact order, made by threads ahead of their use.

Below is Grain: its threads decode chunks of a few images, which are put together to batches here.
"""

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

import cv2
import grain
import numpy as np

from resnet_tpu.config import DataConfig
from resnet_tpu.data.augment import augment
from resnet_tpu.data.decode import DecodeError, eval_image, train_image
from resnet_tpu.data.order import place_at, random_at
from resnet_tpu.data.source import Source
from resnet_tpu.data.tfrecord import RecordError
from resnet_tpu.errors import UserError

Batch = dict[str, np.ndarray]
"""image uint8 [b, S, S, 3], label int32 [b] (-1: unknown), weight float32 [b] (0: no example, to be left out)."""

_CHUNK = 16  # images a thread decodes at a time: Grain's 0.1 ms per element is spread over them
_ENDLESS = 1 << 62
_MOST_BAD_IN_A_ROW = 1000


class _Chunk(NamedTuple):
    image: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    skipped: list[str]

    @classmethod
    def of(cls, rows: int, image_size: int) -> "_Chunk":
        """All rows without an example."""
        image = np.zeros((rows, image_size, image_size, 3), np.uint8)
        return cls(image, np.zeros(rows, np.int32), np.zeros(rows, np.float32), [])


@dataclass(frozen=True)
class _Plan:
    """Which positions of the stream a chunk of this host's batches holds."""

    batch_size: int
    start: int
    num_batches: int
    host_index: int
    num_hosts: int

    @property
    def per_host(self) -> int:
        return self.batch_size // self.num_hosts

    @property
    def parts(self) -> int:
        """Chunks in a batch of one host."""
        return -(-self.per_host // _CHUNK)

    def positions(self, chunk: int) -> range:
        batch, part = divmod(chunk, self.parts)
        first = self.start + batch * self.batch_size + self.host_index * self.per_host
        low, high = (self.per_host * edge // self.parts for edge in (part, part + 1))
        return range(first + low, first + high)


class Batches(Iterator[Batch]):
    """An iterator over batches that can be closed; also a context manager.

    It closes itself when it ends, fails, is interrupted or dropped. Its threads then end with the chunk they are at.
    """

    def __init__(self, fill: Callable[[range, _Chunk], None], plan: _Plan, data: DataConfig) -> None:
        self.skipped: Counter[str] = Counter()
        """Damaged examples met in the batches given out so far: message of each, and how often. `.total()` counts."""
        self._parts = plan.parts
        self._is_closed = False

        def make_chunk(index: int) -> _Chunk:
            positions = plan.positions(index)
            chunk = _Chunk.of(len(positions), data.image_size)
            fill(positions, chunk)
            return chunk

        threads = _num_threads(data)
        cv2.setNumThreads(1)  # each of ours works on an image of its own; more of OpenCV's would wait for each other
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=plan.parts + 2 * threads)
        dataset = grain.MapDataset.range(plan.num_batches * plan.parts).map(make_chunk)
        self._chunks = iter(dataset.to_iter_dataset(options))
        # Grain's threads outlive an iterator that is dropped without being closed.
        weakref.finalize(self, self._chunks.close)

    def __next__(self) -> Batch:
        if self._is_closed:
            raise StopIteration
        try:
            chunks = [next(self._chunks) for _ in range(self._parts)]
        except BaseException as error:
            if self._is_closed and isinstance(error, Exception):  # by another thread, meanwhile
                raise StopIteration from None
            self.close()
            raise
        for chunk in chunks:
            self.skipped.update(chunk.skipped)
        return {
            "image": np.concatenate([chunk.image for chunk in chunks]),
            "label": np.concatenate([chunk.label for chunk in chunks]),
            "weight": np.concatenate([chunk.weight for chunk in chunks]),
        }

    def close(self) -> None:
        """Stops reading ahead. Harmless when repeated."""
        self._is_closed = True
        self._chunks.close()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def train_batches(
    source: Source,
    data: DataConfig,
    *,
    batch_size: int,
    seed: int,
    start_position: int = 0,
    host_index: int = 0,
    num_hosts: int = 1,
) -> Batches:
    """Endless training batches: shuffled anew every epoch, randomly cropped, mirrored and augmented.

    batch_size: over all hosts; batch k holds positions start_position + [k * batch_size, (k + 1) * batch_size) of the
    order that `seed` decides, host r the r-th of num_hosts equal slices. An epoch may end within a batch.
    With `data.skip_bad_records`, the next good record takes the place of a damaged one.
    Raises UserError when the hosts cannot share batch_size; next() raises RecordError and DecodeError.
    """
    _check_hosts("train_batch_size", batch_size, num_hosts)

    tries = min(len(source), _MOST_BAD_IN_A_ROW)

    def fill(positions: range, chunk: _Chunk) -> None:
        for row, position in enumerate(positions):
            record = place_at(position, num_records=len(source), seed=seed).record
            for offset in range(tries):
                rng = random_at(position, seed=seed)
                if _fill_row(source, data, (record + offset) % len(source), rng, chunk, row):
                    break
            else:
                got = f"{tries} damaged records in a row"
                raise UserError("Training data", got, "records that can be read", "Check the data set.")

    plan = _Plan(batch_size, start_position, _ENDLESS // batch_size, host_index, num_hosts)
    return Batches(fill, plan, data)


def eval_batches(
    source: Source,
    data: DataConfig,
    *,
    batch_size: int,
    max_images: int | None = None,
    host_index: int = 0,
    num_hosts: int = 1,
) -> Batches:
    """Centre crops of the first `max_images` examples (default: all), each once, in the order of the source.

    batch_size: over all hosts; host r gets the r-th of num_hosts equal slices of every batch, all hosts the same number
    of batches. What is missing in the last batch, and with `data.skip_bad_records` a damaged example, is black with
    weight 0. Raises as `train_batches`.
    """
    _check_hosts("eval_batch_size", batch_size, num_hosts)
    num_images = min(len(source), max_images or len(source))

    def fill(positions: range, chunk: _Chunk) -> None:
        for row, record in enumerate(positions):
            if record < num_images:
                _fill_row(source, data, record, None, chunk, row)

    plan = _Plan(batch_size, 0, -(-num_images // batch_size), host_index, num_hosts)
    return Batches(fill, plan, data)


def _fill_row(
    source: Source, data: DataConfig, record: int, rng: np.random.Generator | None, chunk: _Chunk, row: int
) -> bool:
    """Puts an example in a row of the chunk, for training when there is `rng`; False when it is skipped."""
    out = chunk.image[row]
    try:
        sample = source[record]
        if isinstance(sample.encoded, np.ndarray):
            out[...] = sample.encoded
        elif rng:
            train_image(
                sample.encoded,
                data.image_size,
                rng,
                out,
                honour_exif=source.honour_exif,
                min_crop_area=data.min_crop_area,
                random_flip=data.random_flip,
            )
            # Last, so that crop and flip draw the same numbers with and without it.
            augmented = augment(out, rng, data)
            if augmented is not out:
                out[...] = augmented
        else:
            eval_image(sample.encoded, data.image_size, out, honour_exif=source.honour_exif)
    except (RecordError, DecodeError) as error:
        error = error.at(source.where(record)) if isinstance(error, DecodeError) else error
        if not data.skip_bad_records:
            raise error from None
        chunk.skipped.append(str(error))
        return False
    chunk.label[row], chunk.weight[row] = sample.label, 1
    return True


def _check_hosts(option: str, batch_size: int, num_hosts: int) -> None:
    if batch_size % num_hosts:
        nearby = max(batch_size // num_hosts, 1) * num_hosts
        raise UserError(option, batch_size, f"a multiple of {num_hosts} hosts", f"Use {nearby}.")


def _num_threads(data: DataConfig) -> int:
    if data.num_parallel_calls:
        return data.num_parallel_calls
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
