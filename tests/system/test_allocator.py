"""Memory that is freed and allocated again."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
from resnet_tpu.system.allocator import keep_memory
size = 256 << 20
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "keep":
    assert keep_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    address = libc.malloc(size)
    ctypes.memset(address, 1, size)
    libc.free(address)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no glibc")
def test_freed_memory_is_reused() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    faults = [
        subprocess.run(
            [sys.executable, "-c", FAULTS, how], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for how in ("keep", "as it comes")
    ]
    assert int(faults[0]) < 100 < int(faults[1])
