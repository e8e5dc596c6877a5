"""Examples from far away, asked for before they are needed."""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import cast

from resnet_tpu.data.loader.cache import ImageCache
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.source import DistantSource, Sample, Source, sample_of

THREADS = 16  # requests under way at a time
CHUNKS_PER_REQUEST = 1  # a request costs what a few images do
_MOST_BYTES = 256_000_000  # that wait for their use, about

Fetched = Mapping[int, Sample | RecordError]
"""Examples, or what is wrong with them, by number."""


class PartlyFetched:
    """A source of which some examples are here already."""

    def __init__(self, source: Source, fetched: Fetched) -> None:
        self._source, self._fetched = source, fetched
        self.class_names, self.num_classes = source.class_names, source.num_classes
        self.honour_exif, self.damage = source.honour_exif, source.damage
        self.where = source.where

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, i: int) -> Sample:
        return sample_of(self._fetched[i]) if i in self._fetched else self._source[i]


class ReadAhead:
    """The examples of chunks, fetched in the background some way ahead of the chunk that is asked for.

    Threads of this process fetch, whatever decodes; they end with `close`, and never keep the program from ending.
    """

    def __init__(
        self,
        source: DistantSource,
        cache: ImageCache | None,
        records: Callable[[int], Sequence[int | None]],
        num_chunks: int,
    ) -> None:
        """`records`: the numbers of the examples in a chunk."""
        self._source, self._cache, self._records, self._num_chunks = source, cache, records, num_chunks
        self._next = 0  # chunk to be asked for
        self._num_bytes, self._num_requests = 0, 0  # so far
        self._lock = threading.Lock()
        self._is_closed = False
        self._requests: queue.SimpleQueue[tuple[list[int], Future[Fetched]] | None] = queue.SimpleQueue()
        self._coming: dict[int, Future[Fetched]] = {}  # by chunk
        self._unfinished: set[Future[Fetched]] = set()
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True, name="resnet_tpu read ahead").start()

    def take(self, chunk: int, records: Sequence[int | None]) -> Fetched:
        """The examples of a chunk, which has these records; those in the cache are left out. Once for each chunk.

        Raises as `fetch`, and CancelledError when closed.
        """
        with self._lock:
            while not self._is_closed and self._next < min(chunk + 1 + self._distance(), self._num_chunks):
                self._ask()
            coming = self._coming.pop(chunk, None)
        if coming is None:
            raise CancelledError
        found = coming.result()
        return {number: found[number] for number in records if number is not None and number in found}

    def close(self) -> None:
        """Ends the threads with what they are at; who waits for them does so no longer."""
        with self._lock:
            self._is_closed = True
            for future in self._unfinished:
                future.cancel()
        for _ in range(THREADS):
            self._requests.put(None)

    def _distance(self) -> int:
        """Of how many chunks to be ahead: for all threads to have work, unless images are too large for that."""
        if not self._num_bytes:
            return 2 * CHUNKS_PER_REQUEST
        requests = min(THREADS, _MOST_BYTES * self._num_requests // self._num_bytes)
        return max(1, requests) * CHUNKS_PER_REQUEST

    def _ask(self) -> None:
        chunks = range(self._next, min(self._next + CHUNKS_PER_REQUEST, self._num_chunks))
        future: Future[Fetched] = Future()
        self._coming.update((chunk, future) for chunk in chunks)
        self._unfinished.add(future)
        numbers = dict.fromkeys(number for chunk in chunks for number in self._records(chunk) if number is not None)
        self._requests.put((list(numbers), future))
        self._next = chunks.stop

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            numbers, future = request
            with contextlib.suppress(InvalidStateError):  # closed meanwhile
                try:
                    future.set_result({} if future.cancelled() else self._fetch(numbers))
                except Exception as error:  # noqa: BLE001  # for the one who waits
                    future.set_exception(error)
            with self._lock:
                self._unfinished.discard(future)

    def _fetch(self, numbers: list[int]) -> Fetched:
        missing = [number for number in numbers if self._cache is None or number not in self._cache]
        found = dict(zip(missing, self._source.fetch(missing), strict=True)) if missing else {}
        with self._lock:
            self._num_requests += 1
            self._num_bytes += sum(len(one.encoded) for one in found.values() if isinstance(one, Sample))
        return found


def distant(source: Source) -> DistantSource | None:
    """`source` as one to be asked for many examples at once; None where it is near."""
    return cast("DistantSource", source) if hasattr(source, "fetch") else None
