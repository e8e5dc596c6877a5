"""Fetches examples from remote storage before they are needed."""

import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import NamedTuple

from resnet_tpu.data.loader.cache import ImageCache
from resnet_tpu.data.loader.piece_order import PieceOrder
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.source import RemoteSource, Sample

THREADS = 16  # requests under way at a time
CHUNKS_PER_REQUEST = 4  # a request costs about as much as a few images
_SEGMENTS_PER_REQUEST = 4
MOST_BYTES = 256_000_000
"""About how many bytes of examples to hold ahead of the chunks that need them."""

Fetched = Mapping[int, Sample | RecordError]
"""Examples by number, or the errors in their place."""

_Found = dict[int, Sample | RecordError]  # by position, until they are taken


class Request(NamedTuple):
    """Examples that are requested together."""

    chunk: int  # the first one that needs any of them
    records: Mapping[int, int]  # by position in the stream


def by_chunks(num_chunks: int, records: Callable[[int], Mapping[int, int]]) -> Iterator[Request]:
    """Requests for the examples of a few chunks at a time. `records` gives those of a chunk, by position."""
    for first in range(0, num_chunks, CHUNKS_PER_REQUEST):
        chunks = range(first, min(first + CHUNKS_PER_REQUEST, num_chunks))
        yield Request(first, {position: number for chunk in chunks for position, number in records(chunk).items()})


def by_segments(num_chunks: int, positions: Callable[[int], Iterable[int]], order: PieceOrder) -> Iterator[Request]:
    """Requests for a few whole segments at a time, as chunks need them. `positions` gives those of a chunk."""
    segments = _segments(num_chunks, positions, order)
    while some := list(itertools.islice(segments, _SEGMENTS_PER_REQUEST)):
        yield Request(some[0].chunk, {position: number for one in some for position, number in one.records.items()})


def _segments(num_chunks: int, positions: Callable[[int], Iterable[int]], order: PieceOrder) -> Iterator[Request]:
    under_way: dict[int, range] = {}  # the rest of each segment in progress, by its first position
    for chunk in range(num_chunks):
        for position in positions(chunk):
            rest = under_way.pop(position, None)
            if rest is None:
                segment = order.segment_at(position)
                rest = segment.positions[segment.positions.index(position) :]  # training may resume within it
                yield Request(chunk, dict(zip(rest, segment.records[-len(rest) :], strict=True)))
            if after := rest[1:]:
                under_way[after[0]] = after


class ReadAhead:
    """Fetches the examples of chunks in the background, some way ahead of the chunk that is asked for.

    The threads run in this process even if other processes decode. `close` ends them; they never keep the program
    from exiting.
    """

    def __init__(self, source: RemoteSource, cache: ImageCache | None, requests: Iterator[Request]) -> None:
        """`requests`: in the order of their chunks."""
        self._source, self._cache, self._requests = source, cache, requests
        self._next = next(requests, None)  # to be sent
        self._early: deque[int] = deque()  # the first chunk of each request sent before it is needed
        self._num_bytes, self._num_requests = 0, 0  # so far
        self._lock = threading.Lock()
        self._is_closed = False
        self._work_left: queue.SimpleQueue[tuple[Request, Future[_Found]] | None] = queue.SimpleQueue()
        self._coming: dict[int, Future[_Found]] = {}  # by position
        self._unfinished: set[Future[_Found]] = set()
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True, name="resnet_tpu read ahead").start()

    def take(self, chunk: int, records: Mapping[int, int]) -> Fetched:
        """The examples of a chunk, except those in the cache. `records`: the chunk's, by position. Call once per chunk.

        Raises what `fetch` raises, and CancelledError when closed.
        """
        with self._lock:
            while self._early and self._early[0] <= chunk:
                self._early.popleft()
            while not self._is_closed and self._next and (self._next.chunk <= chunk or self._has_room()):
                self._ask(self._next, is_early=self._next.chunk > chunk)
            if not self._coming.keys() >= records.keys():
                raise CancelledError
            coming = {position: self._coming.pop(position) for position in records}
        found = {records[position]: future.result().pop(position, None) for position, future in coming.items()}
        return {number: example for number, example in found.items() if example is not None}

    def close(self) -> None:
        """Ends the threads after their current requests. Callers waiting in `take` get CancelledError."""
        with self._lock:
            self._is_closed = True
            for future in self._unfinished:
                future.cancel()
        for _ in range(THREADS):
            self._work_left.put(None)

    def _has_room(self) -> bool:
        """Whether to send a request early: enough of them to keep all threads busy, but about MOST_BYTES at most."""
        if not self._num_bytes:
            return len(self._early) < 2
        return len(self._early) < max(1, min(THREADS, MOST_BYTES * self._num_requests // self._num_bytes))

    def _ask(self, request: Request, *, is_early: bool) -> None:
        future: Future[_Found] = Future()
        self._coming.update(dict.fromkeys(request.records, future))
        self._unfinished.add(future)
        self._work_left.put((request, future))
        if is_early:
            self._early.append(request.chunk)
        self._next = next(self._requests, None)

    def _work(self) -> None:
        while (work := self._work_left.get()) is not None:
            request, future = work
            with contextlib.suppress(InvalidStateError):  # closed meanwhile
                try:
                    future.set_result({} if future.cancelled() else self._fetch(request.records))
                except Exception as error:  # noqa: BLE001  # raised for whoever waits
                    future.set_exception(error)
            with self._lock:
                self._unfinished.discard(future)
            del work, request, future  # frees their images while waiting for more work

    def _fetch(self, records: Mapping[int, int]) -> _Found:
        missing = [n for n in dict.fromkeys(records.values()) if self._cache is None or n not in self._cache]
        found = dict(zip(missing, self._source.fetch(missing), strict=True)) if missing else {}
        with self._lock:
            self._num_requests += 1
            self._num_bytes += sum(len(one.encoded) for one in found.values() if isinstance(one, Sample))
        return {position: found[number] for position, number in records.items() if number in found}
