"""Training images kept in memory, shared by all workers.

Threads and processes share one block of memory: a table of what is kept and where, followed by the images in order of
arrival. Which images are kept depends on which came first, and affects only the speed.
"""

import fcntl
import logging
import threading
from typing import Any, NamedTuple

import numpy as np

from resnet_tpu import storage
from resnet_tpu.data.loader.memory import PAGE, SharedMemory
from resnet_tpu.options.config import DataConfig
from resnet_tpu.system.machine import free_memory

log = logging.getLogger(__name__)

_GB = 10**9
_ALIGNMENT = 64
_USED, _COUNT, _IS_FULL = range(3)  # columns of the head row
_ABSENT, _COMING = 0, -1  # in place of an image's start, which counts from 1
_ROW_BYTES = 4 * 8  # of the head row, and of an image's row: start, height (or bytes), width (0: as stored), label


class Cached(NamedTuple):
    """An image from the cache."""

    image: bytes | np.ndarray  # as stored; or uint8 [h, w, 3], which must not be changed
    label: int


class ImageCache:
    """Images by number, at most `budget` bytes of them, shared by any number of threads and processes."""

    def __init__(self, num_images: int, budget: int, shared: SharedMemory | None = None) -> None:
        """shared: the memory of this cache in another process; None: new memory, with no image in it."""
        self.num_images, self.budget = num_images, budget
        table_bytes = _table_bytes(num_images)
        if shared is None:
            shared = SharedMemory()
            shared.resize(table_bytes + budget)
        self._shared = shared
        memory = np.frombuffer(shared.map(0, table_bytes + budget), np.uint8)
        rows = memory[:table_bytes].view(np.int64).reshape(-1, 4)
        self._head, self._table, self._images = rows[0], rows[1:], memory[table_bytes:]
        self._lock = _Lock(shared.fileno())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.num_images, self.budget, self._shared)

    def get(self, i: int) -> Cached | None:
        """Image `i`, if it is kept."""
        with self._lock:  # also a memory barrier: the image's bytes are visible after it, on every kind of CPU
            start, height, width, label = self._table[i].tolist()
        if start in (_ABSENT, _COMING):
            return None
        begin = self._images[start - 1 :]
        if not width:
            return Cached(begin[:height].tobytes(), label)
        return Cached(begin[: height * width * 3].reshape(height, width, 3), label)

    def __contains__(self, i: int) -> bool:
        with self._lock:
            return int(self._table[i, 0]) not in (_ABSENT, _COMING)

    def put(self, i: int, image: bytes | np.ndarray, label: int) -> None:
        """Keeps an image file, or pixels uint8 [h, w, 3], if new. Once one does not fit, keeps no more."""
        if self.is_full:
            return
        height, width = (len(image), 0) if isinstance(image, bytes) else image.shape[:2]
        content = np.frombuffer(image, np.uint8) if isinstance(image, bytes) else image.reshape(-1)
        with self._lock:
            start = int(self._head[_USED])
            if self._table[i, 0] != _ABSENT:
                return
            if start + content.size > self.budget:
                self._head[_IS_FULL] = 1
                return
            self._table[i, 0] = _COMING
            self._head[_USED] += -(-content.size // _ALIGNMENT) * _ALIGNMENT
            self._head[_COUNT] += 1
        self._images[start : start + content.size] = content
        with self._lock:
            self._table[i] = start + 1, height, width, label

    @property
    def is_full(self) -> bool:
        """Whether an image did not fit."""
        return bool(self._head[_IS_FULL])

    @property
    def count(self) -> int:
        """How many images are kept."""
        return int(self._head[_COUNT])

    @property
    def num_bytes(self) -> int:
        """Bytes that the kept images take, padding included."""
        return int(self._head[_USED])


def _table_bytes(num_images: int) -> int:
    return -(-_ROW_BYTES * (num_images + 1) // PAGE) * PAGE


class _Lock:
    """A lock held by one thread of one process. The kernel releases it when the process holding it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._between_threads = descriptor, threading.Lock()

    def __enter__(self) -> None:
        self._between_threads.acquire()
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self._between_threads.release()


def is_cached(data: DataConfig) -> bool:
    """Whether images come from memory from the second epoch on: `data.cache` asks for it, and it saves time."""
    if data.location in ("", "null", "synthetic"):
        return False
    return data.cache == "decoded" or (data.cache == "records" and storage.is_remote(data.location))


def open_cache(data: DataConfig, num_images: int) -> ImageCache | None:
    """An empty cache for a training run; None unless `is_cached`."""
    if not is_cached(data):
        if data.cache == "records":
            log.info("cache=records: %s is on this machine, which caches files in memory anyway.", data.location)
        return None
    free = free_memory()
    budget = free // 2 if data.cache_memory is None else data.cache_memory * _GB
    if budget > free:
        log.warning(
            "cache_memory is %.1f GB, but only %.1f GB are free: the cache takes no more.", budget / _GB, free / _GB
        )
    return ImageCache(num_images, int(min(budget, free)))


class CacheReport:
    """Logs once how many of the images the cache could keep."""

    def __init__(self, cache: ImageCache | None) -> None:
        self._cache = cache

    def update(self) -> None:
        """Logs it as soon as the cache holds all images or is full."""
        cache = self._cache
        if cache is None or not (cache.is_full or cache.count == cache.num_images):
            return
        self._cache = None
        if not cache.is_full:
            log.info("All %d images are in the cache: %.2f GB.", cache.num_images, cache.num_bytes / _GB)
            return
        log.warning(
            "The cache is full: %d of %d images fit in %.2f GB. The others are read and decoded again in every epoch; "
            "with cache=decoded they are shrunk as well, and take longer than without a cache. Raise cache_memory, "
            "lower cache_short_side, make the images smaller with `prepare --short_side`, or set cache=none.",
            cache.count, cache.num_images, cache.budget / _GB,
        )  # fmt: skip
