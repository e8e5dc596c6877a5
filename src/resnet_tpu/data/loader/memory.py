"""Blocks of memory that processes share."""

import mmap
import os
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

PAGE = mmap.ALLOCATIONGRANULARITY
"""Mapped parts of shared memory begin at multiples of this, in bytes."""


class SharedMemory:
    """Anonymous shared memory: it is freed when the last process that holds it ends, even if all of them are killed.

    It takes no space before it is written to. Processes receive it as one of the arguments they are started with.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _anonymous_file() if descriptor is None else descriptor
        # not `__del__`, which at the end of a program may find `os` gone
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def resize(self, size: int) -> None:
        """Makes it `size` bytes long; new bytes are 0."""
        os.ftruncate(self._descriptor, size)

    def map(self, start: int, size: int) -> mmap.mmap:
        """Maps the `size` bytes from `start`, a multiple of `PAGE`. All processes see the same bytes."""
        return mmap.mmap(self._descriptor, size, offset=start)

    def fileno(self) -> int:
        """The descriptor, for locks on parts of it."""
        return self._descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (DupFd(self._descriptor),)


def _attach(descriptor: Any) -> SharedMemory:
    return SharedMemory(descriptor.detach())


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("resnet_tpu")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
