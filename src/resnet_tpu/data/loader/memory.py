"""Memory: how much is free, and blocks of it that processes share."""

import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

PAGE = mmap.ALLOCATIONGRANULARITY
"""Mapped parts of shared memory begin at multiples of this, in bytes."""


class SharedMemory:
    """Anonymous shared memory: it is freed when the last process that holds it ends, even if all of them are killed.

    It takes no space before it is written to. Processes receive it as one of the arguments they are started with.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _anonymous_file() if descriptor is None else descriptor

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

    def __del__(self) -> None:
        os.close(self._descriptor)


def _attach(descriptor: Any) -> SharedMemory:
    return SharedMemory(descriptor.detach())


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("resnet_tpu")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def free_memory() -> int:
    """Bytes of memory still available on this machine, or in the container that this program runs in."""
    groups = _read(Path("/proc/self/cgroup"))
    return max(0, min([_free_on_machine(), *free_in_groups(groups, Path("/sys/fs/cgroup"))]))


def _free_on_machine() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # macOS does not say what is free


def free_in_groups(memberships: str, root: Path) -> list[int]:
    """Bytes that the limits of Linux control groups leave free: for each group of a process, and those above it.

    memberships: the content of the process's /proc/PID/cgroup. root: where both versions of the groups are mounted.
    """
    free = []
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        top = root / controllers
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            limit, usage = (_read(folder / name).strip() for name in names)
            if folder.is_relative_to(top) and limit.isdecimal() and usage.isdecimal():  # "max": no limit
                free.append(int(limit) - int(usage) + _given_up(_read(folder / "memory.stat")))
    return free


def _given_up(statistics: str) -> int:
    """Bytes of cached files, which the kernel evicts first when memory runs short."""
    values = dict(line.split() for line in statistics.splitlines())
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
