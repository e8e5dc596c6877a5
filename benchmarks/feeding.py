"""Simulates an epoch of images on their way to the devices: every host reads, decodes and waits for the others.

It models `data.loader`: workers make the chunks of a batch in order, some of them ahead of their use, from image files
that are read from a bucket further ahead; the host takes in a few batches before the devices need them; and a step
begins when each host has its part. `benchmarks/epoch.py` compares the simulation with training runs on this machine.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from resnet_tpu.data.loader.ahead import CHUNKS_PER_REQUEST, MOST_BYTES, THREADS
from resnet_tpu.data.loader.worker_choice import MOST_IN_CHUNK, MOST_THREADS
from resnet_tpu.performance.plan.host import Host

_BATCHES_AHEAD = 6  # two on their way to the devices, four in steps that were handed over
_SPREAD = 0.5  # standard deviation of an image's decoding time, as a fraction of the mean; 0.48 for ImageNet's photos


@dataclass(frozen=True)
class Slow:
    """A period in which a bucket is slower."""

    begin: float  # seconds from the start
    seconds: float
    speed: float  # as a fraction of the usual one, such as 0.1
    hosts: int  # how many are affected, counted from the first


@dataclass(frozen=True)
class Lost:
    """A worker process that dies: training ends on all hosts, and continues from its last checkpoint."""

    at: float  # seconds from the start
    restart: float  # seconds until the input begins again
    steps_per_save: int


@dataclass(frozen=True)
class Epoch:
    """The figures of a simulated epoch."""

    seconds: float  # from the first step on
    input_wait: float  # fraction of that time in which the devices had no batch
    longest_wait: float  # seconds between two steps
    host_mb: float  # the most memory that image files and batches took on any host
    steps: int  # including those computed twice


@dataclass
class _Held:
    """Bytes in memory over time."""

    changes: list[tuple[float, float]] = field(default_factory=list)

    def add(self, since: float, until: float, num_bytes: float) -> None:
        self.changes += [(since, num_bytes), (until, -num_bytes)]

    def most(self) -> float:
        held, most = 0.0, 0.0
        for _, change in sorted(self.changes):
            held += change
            most = max(most, held)
        return most


class _Loader:
    """The input of one host, from `begin` on."""

    def __init__(self, host: Host, workers: int, per_host: int, begin: float, slow: Sequence[Slow], seed: int) -> None:
        self._is_remote = host.mb_per_sec is not None
        kind = "processes" if workers > MOST_THREADS and not self._is_remote else "threads"
        parts = -(-per_host // MOST_IN_CHUNK[kind])
        self._sizes = [high - low for low, high in pairwise(per_host * part // parts for part in range(parts + 1))]
        self._host, self._workers, self._slow = host, workers, slow
        self._rng = np.random.default_rng(seed)
        self._idle = [begin] * workers
        self._ahead = parts + 2 * workers
        request = CHUNKS_PER_REQUEST * self._sizes[0] * host.image_kb * 1000
        self._requests_ahead = max(1, min(THREADS, int(MOST_BYTES / request)))
        self._calls = [begin] * self._ahead  # when training asked for each chunk so far
        self._begun: list[float] = []  # when each chunk so far was begun
        self._link, self._begin = begin, begin
        self.held = _Held()

    def batch(self, asked: float) -> tuple[float, float]:
        """The next batch, requested at `asked`: when its first chunk was begun, and when the batch is complete."""
        first = math.inf
        for size in self._sizes:
            self._calls.append(asked)
            begun = max(self._calls[len(self._begun)], heapq.heappop(self._idle))
            self._begun.append(begun)
            first = min(first, begun)
            there = self._read(size) if self._is_remote else begun
            end = max(begun, there) + self._decode(size)
            heapq.heappush(self._idle, end)
            self.held.add(min(there, begun), end, 1000 * size * self._host.image_kb)
            asked = max(asked, end)
        return first, asked

    def _decode(self, size: int) -> float:
        mean = self._workers / self._host.images_per_sec
        return float(self._rng.gamma(size / _SPREAD**2, mean * _SPREAD**2))

    def _read(self, size: int) -> float:
        """When the files of a chunk have arrived; they come from the bucket one after another."""
        wanted = len(self._begun) - 1 - CHUNKS_PER_REQUEST * self._requests_ahead
        since = max(self._link, self._begun[wanted] if wanted >= 0 else self._begin)
        self._link = self._end_of(since, size / self._host.images_read_per_sec)
        return self._link

    def _end_of(self, since: float, seconds: float) -> float:
        """The time at which a transfer ends that begins at `since` and takes `seconds` at the usual speed."""
        for slow in self._slow:
            end = slow.begin + slow.seconds
            if since < end and since + seconds > slow.begin:
                before = max(0.0, slow.begin - since)
                possible = (end - max(since, slow.begin)) * slow.speed
                left = seconds - before - possible
                since, seconds = (end, left) if left > 0 else (max(since, slow.begin), (seconds - before) / slow.speed)
        return since + seconds


def simulate(
    host: Host,
    *,
    workers: int,
    hosts: int,
    batch_size: int,
    step_seconds: float,
    steps: int,
    image_size: int = 224,
    slow: Sequence[Slow] = (),
    lost: Lost | None = None,
) -> Epoch:
    """Simulates `steps` steps on `hosts` equal machines of `workers` each; all get an equal part of every batch.

    Decoding times are drawn at random, but the same in each call. An epoch of ImageNet takes a second to simulate.
    """
    per_host = batch_size // hosts

    def open_loaders(begin: float) -> list[_Loader]:
        return [
            _Loader(host, workers, per_host, begin, [one for one in slow if number < one.hosts], number)
            for number in range(hosts)
        ]

    loaders, held = open_loaders(0.0), 0.0
    ends: list[float] = []  # of the steps since the start
    begin, waits, done, computed = math.nan, [0.0], 0, 0
    while done < steps:
        asked = ends[-_BATCHES_AHEAD - 1] if len(ends) > _BATCHES_AHEAD else 0.0
        firsts, given = zip(*(loader.batch(asked) for loader in loaders), strict=True)
        start = max(*given, ends[-1] if ends else 0.0)
        if ends:
            waits.append(start - ends[-1])
        elif math.isnan(begin):
            begin = start
        ends.append(start + step_seconds)
        done, computed = done + 1, computed + 1
        for loader, first in zip(loaders, firsts, strict=True):
            loader.held.add(first, start, per_host * image_size**2 * 3)
        if lost and ends[-1] > lost.at and done < steps:
            held = max(loader.held.most() for loader in loaders)
            waits.append(lost.restart)
            loaders, ends = open_loaders(lost.at + lost.restart), []
            done, lost = done - done % lost.steps_per_save, None
    seconds = ends[-1] - begin
    held = max(held, *(loader.held.most() for loader in loaders))
    return Epoch(seconds, sum(waits) / seconds, max(waits), held / 1e6, computed)
