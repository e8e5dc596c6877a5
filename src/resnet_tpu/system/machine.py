"""The cores, memory and devices that this process may use."""

import math
import os
import platform
import sys
from pathlib import Path

from resnet_tpu.system import control_groups


def num_cores() -> int:
    """CPU cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, cores_of_container() or cores)


def cores_of_container() -> int | None:
    """The limit on the CPU time of this process's container, in cores, rounded up; None if there is no limit."""
    return math.ceil(min(control_groups.cores_allowed(), default=0)) or None


def free_memory() -> int:
    """Bytes of memory still available on this machine, or in the container that this program runs in."""
    return max(0, min([_free_bytes_of_machine(), *control_groups.memory_left()]))


def _free_bytes_of_machine() -> int:
    for line in control_groups.read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # macOS does not say what is free


def is_linux_x86_64() -> bool:
    """Whether this is Linux on x86-64, the only system for which pip has oneDNN and libtpu."""
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def installed_version(package: str) -> str | None:
    """The version of a package, named as for pip; None if it is not installed."""
    import importlib.metadata  # here, because most programs ask for no version

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_accelerator() -> bool:
    """Whether there are GPU or TPU devices, on Linux; elsewhere True, as that is unknown."""
    return has_tpu() or has_gpu()


def has_gpu() -> bool:
    """Whether there are GPU devices, on Linux; elsewhere True, as that is unknown."""
    return sys.platform != "linux" or _has_devices("nvidia[0-9]*", "dxg", "kfd")


def has_tpu() -> bool:
    """Whether there are devices that may be a TPU, on Linux; elsewhere True, as that is unknown."""
    return sys.platform != "linux" or _has_devices("accel[0-9]*", "vfio/[0-9]*")


def _has_devices(*patterns: str) -> bool:
    return any(any(Path("/dev").glob(pattern)) for pattern in patterns)
