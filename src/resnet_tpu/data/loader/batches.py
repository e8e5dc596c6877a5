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

import cv2
import numpy as np

from resnet_tpu.data.loader.ahead import ReadAhead, by_chunks, by_segments
from resnet_tpu.data.loader.cache import CacheReport, open_cache
from resnet_tpu.data.loader.chunking import Chunking, ChunkMaker
from resnet_tpu.data.loader.filler_processes import FillerProcesses
from resnet_tpu.data.loader.filling import FillChunk, RowFiller
from resnet_tpu.data.loader.order_choice import choose_order, piece_order
from resnet_tpu.data.loader.prefetch import Prefetch
from resnet_tpu.data.loader.slots import Layout, Slots
from resnet_tpu.data.loader.worker_choice import MOST_IN_CHUNK, WorkerKind, kind_of_workers, num_workers
from resnet_tpu.data.pixels.preprocess import TrainImage, train_image
from resnet_tpu.data.sources.source import Source, as_remote
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]
"""image uint8 [b, S, S, 3], label int32 [b] (-1: unknown), weight float32 [b] (0: no example, to be left out)."""

_ENDLESS = 1 << 62
_MOST_NAMED = 5  # damaged examples named in the log


def _read_ahead(filler: RowFiller, chunking: Chunking) -> ReadAhead | None:
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

    def __init__(self, filler: RowFiller, chunking: Chunking, kind: WorkerKind) -> None:
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
        self._maker = ChunkMaker(chunking, filler, slots, fill, ahead)
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
    order that `seed` determines, and host r gets the r-th of num_hosts equal slices. An epoch may end within a batch.
    No batch depends on `data.input_workers`, `input_pipeline` or `num_parallel_calls`. With `data.data_order` pieces
    the order is that of `piece_order`, which also depends on batch_size; see `order_choice` for `auto`.
    With `data.skip_bad_records`, the next good record takes the place of a damaged one.
    train_image: replaces that of `pixels.preprocess`, to measure everything else; must be importable, for processes.
    Raises UserError when the hosts cannot share batch_size; next() raises RecordError and DecodeError, and UserError
    when a worker process dies.
    """
    _check_hosts("train_batch_size", batch_size, num_hosts)
    workers = kind_of_workers(data, source)
    chunking = Chunking(
        batch_size=batch_size,
        start=start_position,
        num_batches=_ENDLESS // batch_size,
        host_index=host_index,
        num_hosts=num_hosts,
        most=MOST_IN_CHUNK[workers],
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

    batch_size: over all hosts; host r gets the r-th of num_hosts equal slices of every batch, and all hosts get the
    same number of batches. Rows missing from the last batch and, with `data.skip_bad_records`, damaged examples are
    black with weight 0. Raises what `train_batches` raises.
    """
    _check_hosts("eval_batch_size", batch_size, num_hosts)
    workers = kind_of_workers(data, source, trains=False)
    chunking = Chunking(
        batch_size=batch_size,
        start=0,
        num_batches=-(-len(source) // batch_size),
        host_index=host_index,
        num_hosts=num_hosts,
        most=MOST_IN_CHUNK[workers],
    )
    return Batches(RowFiller(source, data), chunking, workers)


def _check_hosts(option: str, batch_size: int, num_hosts: int) -> None:
    if batch_size % num_hosts:
        nearby = max(batch_size // num_hosts, 1) * num_hosts
        raise UserError(option, batch_size, f"a multiple of {num_hosts} hosts", f"Use {nearby}.")
