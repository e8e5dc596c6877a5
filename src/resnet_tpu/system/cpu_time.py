"""CPU seconds that processes have used so far, as Linux counts them in /proc: in steps of about 10 ms."""

import os
import time
from pathlib import Path

_PROC = Path("/proc")


def cpu_secs_of_process(pid: int) -> float:
    """CPU seconds of one running process; 0 where there is no /proc (not Linux)."""
    return _secs(_fields(_PROC / f"{pid}/stat")[11:13])


def cpu_secs_of_family() -> float:
    """CPU seconds of this process and all of its descendants, including those that have ended.

    Where there is no /proc (not Linux), of this process alone.
    """
    if not _PROC.is_dir():
        return time.process_time()
    stats = {stat.parent.name: _fields(stat) for stat in _PROC.glob("[0-9]*/stat")}
    family = [str(os.getpid())]
    for parent in family:
        family += [pid for pid, fields in stats.items() if fields[1:2] == [parent]]
    return sum(_secs(stats[pid][11:15]) for pid in family)


def cpu_secs_per_core() -> float:
    """CPU seconds of all programs since the machine started, on each of the cores that this process may run on.

    0 if that is unknown: without /proc (not Linux), and in containers in which /proc numbers the cores differently.
    """
    try:
        rows = [line.split() for line in (_PROC / "stat").read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return 0.0
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    used = [[*row[1:4], *row[6:9]] for row in rows if row[0] in cores]  # all but idle and iowait
    return sum(map(_secs, used)) / len(cores)


def _fields(stat: Path) -> list[str]:
    """The fields after the program's name, which may hold spaces; none when the process has just ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _secs(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
