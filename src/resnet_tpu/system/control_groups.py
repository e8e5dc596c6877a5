"""Limits of Linux control groups, in which containers run: memory, and CPU time."""

from collections.abc import Iterator
from pathlib import Path

MEMBERSHIPS = Path("/proc/self/cgroup")
"""Names the groups of this process."""

ROOT = Path("/sys/fs/cgroup")
"""Where both versions of the groups are mounted."""


def memory_left() -> list[int]:
    """Bytes left under each memory limit: those of this process's groups, and of the groups above them."""
    left = []
    for group, is_first in _groups("memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_first else ("memory.max", "memory.current")
        limit, usage = (read(group / name).strip() for name in names)
        if limit.isdecimal() and usage.isdecimal():  # "max": no limit
            left.append(int(limit) - int(usage) + _evictable_bytes(read(group / "memory.stat")))
    return left


def cores_allowed() -> list[float]:
    """CPU seconds allowed per second, by each limit: those of this process's groups, and of the groups above them."""
    allowed = []
    for group, is_first in _groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        limit = " ".join(read(group / name) for name in names).split()
        if len(limit) == 2 and all(map(str.isdecimal, limit)):  # "max", or -1 in version 1: no limit
            allowed.append(int(limit[0]) / int(limit[1]))
    return allowed


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders that may describe a group of the process, and whether they belong to version 1 of control groups."""
    for line in read(MEMBERSHIPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = ROOT / controllers
        group = top / path.lstrip("/")
        yield from ((folder, bool(controllers)) for folder in (group, *group.parents) if folder.is_relative_to(top))


def _evictable_bytes(statistics: str) -> int:
    """Bytes of cached files, which the kernel evicts first when memory runs short."""
    values = dict(line.split() for line in statistics.splitlines())
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def read(path: Path) -> str:
    """The text of a file of the kernel; empty if there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
