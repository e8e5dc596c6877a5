"""Memory for batches, reused as soon as nothing refers to a batch any more."""

import mmap
import weakref
from collections import deque
from typing import NamedTuple

import numpy as np

from resnet_tpu.data.loader.memory import PAGE, SharedMemory

_ALIGNMENT = 64  # bytes: what JAX requires to use an array in place


class Rows(NamedTuple):
    """The arrays of a batch, as in `loader.batches.Batch`."""

    image: np.ndarray
    label: np.ndarray
    weight: np.ndarray


class Layout(NamedTuple):
    """How batches of one size are laid out in memory."""

    rows: int
    image_size: int

    @property
    def num_bytes(self) -> int:
        """The size of a batch, rounded up to whole pages."""
        return -(-(self._label + 2 * self._aligned(4 * self.rows)) // PAGE) * PAGE

    @property
    def _label(self) -> int:
        return self._aligned(self.rows * self.image_size**2 * 3)

    @staticmethod
    def _aligned(num_bytes: int) -> int:
        return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

    def view(self, memory: np.ndarray) -> Rows:
        """The arrays in `memory`, uint8 [num_bytes]."""
        size, weight = self.image_size, self._label + self._aligned(4 * self.rows)
        return Rows(
            memory[: self.rows * size * size * 3].reshape(self.rows, size, size, 3),
            memory[self._label :][: 4 * self.rows].view(np.int32),
            memory[weight:][: 4 * self.rows].view(np.float32),
        )


class Slot(NamedTuple):
    """The memory of one batch."""

    number: int
    rows: Rows


class Slots:
    """A pool of slots, as many as there are batches in use at a time.

    A slot is free again when no array refers to its memory, JAX's arrays included: a transfer under way, and an array
    that JAX uses in place, keep the rows they were made from alive. So only the first few batches cost page faults.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.shared = layout, SharedMemory()
        self._memory: list[memoryview] = []  # of each slot
        self._free: deque[int] = deque()

    def take(self) -> Slot:
        """A free slot, with whatever an earlier batch left in it. For one thread at a time."""
        if not self._free:
            self._grow()
        number = self._free.pop()
        memory = np.frombuffer(self._memory[number], np.uint8)
        # All views refer to this very array, as it does not own its memory: it dies after the last of them.
        weakref.finalize(memory, self._free.append, number).atexit = False
        return Slot(number, self.layout.view(memory))

    def _grow(self) -> None:
        """Doubles the number of slots: a file descriptor is in use for each part mapped, and there may be few."""
        first, size = len(self._memory), self.layout.num_bytes
        count = max(first, 1)
        self.shared.resize((first + count) * size)
        part = memoryview(self.shared.map(first * size, count * size))
        self._memory += [part[i * size : (i + 1) * size] for i in range(count)]
        self._free.extendleft(range(first, first + count))  # the lowest number is taken first


def map_slot(shared: SharedMemory, layout: Layout, number: int) -> mmap.mmap:
    """The memory of slot `number`."""
    return shared.map(number * layout.num_bytes, layout.num_bytes)
