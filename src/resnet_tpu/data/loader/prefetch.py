"""Results in order, computed by threads ahead of use."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


class Prefetch(Iterator[T]):
    """An iterator over `compute(0)`, `compute(1)`, ... `compute(count - 1)`, the next `ahead` of them under way.

    Raises what `compute` raised, when its turn comes. Must be closed: its threads outlive an iterator that is merely
    dropped.
    """

    def __init__(self, compute: Callable[[int], T], count: int, *, threads: int, ahead: int) -> None:
        self._compute, self._numbers, self._ahead = compute, iter(range(count)), ahead
        self._pool = ThreadPoolExecutor(threads, "resnet_tpu loader")
        self._results: deque[Future[T]] = deque()

    def __next__(self) -> T:
        for number in islice(self._numbers, self._ahead - len(self._results)):
            self._results.append(self._pool.submit(self._compute, number))
        if not self._results:
            raise StopIteration
        return self._results.popleft().result()

    def close(self) -> None:
        """Drops work that no thread has begun; callers waiting for it get CancelledError. Harmless when repeated."""
        self._pool.shutdown(wait=False, cancel_futures=True)
