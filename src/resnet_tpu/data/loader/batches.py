"""Batches of decoded images in a deterministic order, prepared ahead of use.

Threads write chunks of a few images straight into the rows of the batch, or have worker processes do it.
"""

import contextlib
import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from resnet_tpu.data.loader.ahead import ReadAhead, by_chunks, by_segments
from resnet_tpu.data.loader.cache import CacheReport, open_cache
from resnet_tpu.data.loader.filling import Chunk, FillChunk, FillerProcesses, RowFiller
from resnet_tpu.data.loader.order_choice import choose_order, piece_order
from resnet_tpu.data.loader.prefetch import Prefetch
from resnet_tpu.data.loader.slots import Layout, Slot, Slots
from resnet_tpu.data.pixels.decode import TrainImage, train_image
from resnet_tpu.data.sources.image_files import FolderSource
from resnet_tpu.data.sources.source import Source, as_remote
from resnet_tpu.data.sources.tfrecords import RecordSource
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.system.machine import num_cores

log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]
"""image uint8 [b, S, S, 3], label int32 [b] (-1: unknown), weight float32 [b] (0: no example, to be left out)."""

MOST_IN_CHUNK = {"threads": 16, "processes": 128}
"""The most images in a chunk, by kind of worker: handing a chunk to a thread costs a fraction of an image's time,
handing one to a process costs about 300 us of this process's time."""

MOST_THREADS = 8  # an image holds the GIL for about 45 of its 700 us: with more threads, it is held over half the time
_ENDLESS = 1 << 62
_MOST_NAMED = 5  # damaged examples, in the log


@dataclass(frozen=True)
class _Chunking:
    """Maps the chunks of this host's batches to positions of the stream."""

    batch_size: int
    start: int
    num_batches: int
    host_index: int
    num_hosts: int
    most: int  # images in a chunk

    @property
    def per_host(self) -> int:
        return self.batch_size // self.num_hosts

    @property
    def parts(self) -> int:
        """Chunks in a batch of one host."""
        return -(-self.per_host // self.most)

    @property
    def num_chunks(self) -> int:
        """Chunks in all batches."""
        return self.num_batches * self.parts

    def positions(self, chunk: int) -> range:
        """The positions that a chunk holds."""
        return self.locate(chunk)[2]

    def locate(self, chunk: int) -> tuple[int, int, range]:
        """The batch of a chunk, its first row in that batch, and the positions that it holds."""
        batch, part = divmod(chunk, self.parts)
        first = self.start + batch * self.batch_size + self.host_index * self.per_host
        low, high = (self.per_host * edge // self.parts for edge in (part, part + 1))
        return batch, low, range(first + low, first + high)


class _ChunkMaker:
    """Makes chunks in the memory of the batches they belong to; callable from any number of threads."""

    def __init__(
        self, chunking: _Chunking, filler: RowFiller, slots: Slots, fill: FillChunk, ahead: ReadAhead | None
    ) -> None:
        self._chunking, self._filler, self._slots, self._fill, self._ahead = chunking, filler, slots, fill, ahead
        self._begun: dict[int, Slot] = {}  # by batch
        self._lock = threading.Lock()

    def make(self, chunk: int) -> list[str]:
        """Fills the rows of a chunk; returns the messages of skipped examples."""
        batch, first_row, positions = self._chunking.locate(chunk)
        with self._lock:
            slot = self._begun.get(batch) or self._begun.setdefault(batch, self._slots.take())
        fetched = self._ahead.take(chunk, self._filler.records_at(positions)) if self._ahead else None
        return self._fill(Chunk(first_row, positions, fetched), slot)

    def take(self, batch: int) -> Slot:
        """The memory of a batch whose chunks are all made."""
        with self._lock:
            return self._begun.pop(batch)


def _read_ahead(filler: RowFiller, chunking: _Chunking) -> ReadAhead | None:
    """Begins to fetch the examples of a remote source before they are needed; None if the source is local."""
    source = as_remote(filler.source)
    if source is None or filler.data.input_pipeline == "basic":
        return None
    if filler.order:
        requests = by_segments(chunking.num_chunks, chunking.positions, filler.order)
    else:
        requests = by_chunks(chunking.num_chunks, lambda chunk: filler.records_at(chunking.positions(chunk)))
    return ReadAhead(source, filler.cache, requests)


class Batches(Iterator[Batch]):
    """An iterator over batches that can be closed; also a context manager.

    Any number of threads may take batches from it: each batch goes to one of them.
    It closes itself when it ends, fails, is interrupted or is garbage-collected. Its threads then finish their current
    chunk; its processes end at once. The memory of a batch is reused when no array refers to it any more.
    """

    def __init__(self, filler: RowFiller, chunking: _Chunking, kind: Literal["threads", "processes"]) -> None:
        """kind: whether the workers are threads or processes."""
        self.skipped: Counter[str] = Counter()
        """Damaged examples in the batches returned so far: how often each message occurred. `.total()` sums them."""
        self._is_closed = False
        self._turn = threading.Lock()
        self._numbers = iter(range(chunking.num_batches))
        self._parts = chunking.parts
        self._cache_report = CacheReport(filler.cache)
        cv2.setNumThreads(1)  # each worker has an image of its own; more OpenCV threads would wait for each other
        slots, workers = Slots(Layout(chunking.per_host, filler.data.image_size)), num_workers(filler.data)
        self._closing = contextlib.ExitStack()
        processes = FillerProcesses(filler, slots, workers) if kind == "processes" else None
        if processes:
            self._closing.callback(processes.close)
        fill: FillChunk = processes or filler.fill
        ahead = _read_ahead(filler, chunking)
        self._maker = _ChunkMaker(chunking, filler, slots, fill, ahead)
        if filler.data.input_pipeline == "basic":
            self._skipped_by_chunk = map(self._maker.make, range(chunking.num_chunks))
        else:
            num_ahead = chunking.parts + 2 * workers
            self._skipped_by_chunk = Prefetch(self._maker.make, chunking.num_chunks, threads=workers, ahead=num_ahead)
            self._closing.callback(self._skipped_by_chunk.close)
        if ahead:
            self._closing.callback(ahead.close)  # runs first, as the threads that fill wait for it
        weakref.finalize(self, self._closing.close)

    def __next__(self) -> Batch:
        with self._turn:
            return self._next()

    def _next(self) -> Batch:
        if self._is_closed:
            raise StopIteration
        try:
            skipped = [next(self._skipped_by_chunk) for _ in range(self._parts)]
        except BaseException as error:
            if isinstance(error, StopIteration) and self.skipped:
                log.warning("Damaged images left out: %d", self.skipped.total())
            if self._is_closed and isinstance(error, Exception):  # by another thread, meanwhile
                raise StopIteration from None
            self.close()
            raise
        for message in itertools.chain.from_iterable(skipped):
            if message not in self.skipped and len(self.skipped) < _MOST_NAMED:
                log.warning("Left out: %s", message)
            self.skipped[message] += 1
        self._cache_report.update()
        return self._maker.take(next(self._numbers)).rows._asdict()

    def close(self) -> None:
        """Stops reading ahead. Harmless when repeated."""
        self._is_closed = True
        self._closing.close()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
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
    train_image: TrainImage = train_image,
) -> Batches:
    """Endless training batches: reshuffled every epoch, randomly cropped, mirrored and augmented.

    batch_size: over all hosts; batch k holds positions start_position + [k * batch_size, (k + 1) * batch_size) of the
    order that `seed` determines, host r the r-th of num_hosts equal slices. An epoch may end within a batch. No
    batch depends on `data.input_workers`, `input_pipeline` or `num_parallel_calls`. With `data.data_order` pieces the
    order is that of `piece_order`, which also depends on batch_size; see `order_choice` for `auto`.
    With `data.skip_bad_records`, the next good record takes the place of a damaged one.
    train_image: replaces the decoder's, to measure everything else; must be importable, for worker processes.
    Raises UserError when the hosts cannot share batch_size; next() raises RecordError and DecodeError, and UserError
    when a worker process dies.
    """
    _check_hosts("train_batch_size", batch_size, num_hosts)
    workers = kind_of_workers(data, source)
    chunking = _Chunking(
        batch_size, start_position, _ENDLESS // batch_size, host_index, num_hosts, MOST_IN_CHUNK[workers]
    )
    order = None
    if choose_order(source, data, rows=chunking.per_host) == "pieces":
        order = piece_order(source, data, batch_size=batch_size, seed=seed)
    cache = open_cache(data, len(source))
    filler = RowFiller(source, data, seed=seed, order=order, cache=cache, train_image=train_image)
    return Batches(filler, chunking, workers)


def eval_batches(
    source: Source,
    data: DataConfig,
    *,
    batch_size: int,
    host_index: int = 0,
    num_hosts: int = 1,
) -> Batches:
    """Centre crops of all examples, each once, in the order of the source.

    batch_size: over all hosts; host r gets the r-th of num_hosts equal slices of every batch, all hosts the same number
    of batches. Rows missing from the last batch and, with `data.skip_bad_records`, damaged examples are black with
    weight 0. Raises what `train_batches` raises.
    """
    _check_hosts("eval_batch_size", batch_size, num_hosts)
    workers = kind_of_workers(data, source, trains=False)
    chunking = _Chunking(batch_size, 0, -(-len(source) // batch_size), host_index, num_hosts, MOST_IN_CHUNK[workers])
    return Batches(RowFiller(source, data), chunking, workers)


def _check_hosts(option: str, batch_size: int, num_hosts: int) -> None:
    if batch_size % num_hosts:
        nearby = max(batch_size // num_hosts, 1) * num_hosts
        raise UserError(option, batch_size, f"a multiple of {num_hosts} hosts", f"Use {nearby}.")


def kind_of_workers(data: DataConfig, source: Source, *, trains: bool = True) -> Literal["threads", "processes"]:
    """Which workers make images: those asked for, else processes for training with many workers on local files.

    Evaluation is too short to start processes for, and remote data would have to pass from this process through pipes.
    """
    if data.input_pipeline == "basic":
        return "threads"
    reads_files = isinstance(source, RecordSource | FolderSource) and not as_remote(source)
    if data.input_workers and (trains or reads_files):
        return data.input_workers
    return "processes" if trains and reads_files and num_workers(data) > MOST_THREADS else "threads"


def num_workers(data: DataConfig) -> int:
    """How many threads or processes make images: one for the basic pipeline, which works in the calling thread."""
    return 1 if data.input_pipeline == "basic" else data.num_parallel_calls or num_cores()
