"""The C library's memory allocator, which this process shares with XLA."""

import ctypes
import functools
import os
import platform
import sys

# Constants of glibc's mallopt and of Linux's madvise
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER, _HUGE_PAGES, _HUGE_PAGE = -1, 14, 1 << 21


@functools.cache
def keep_memory() -> bool:
    """From now on, keeps freed memory in the process for reuse, in huge pages. Returns whether it does.

    XLA allocates the memory of each step anew. On a CPU it does so through the C library, which would return gigabytes
    to the system and get them back as pages of 4 kB, one by one. Up to half of the machine's memory may lie in huge
    pages; none of it is taken before it is used. Changes nothing on systems other than Linux with glibc, or if the user
    has malloc settings in the environment (GLIBC_TUNABLES).
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    libc.malloc.restype, libc.malloc.argtypes = address, [size]
    libc.free.argtypes, libc.madvise.argtypes = [address], [address, size, ctypes.c_int]
    options = {_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER, _ARENA_MAX: 1}
    if not all(libc.mallopt(name, value) for name, value in options.items()):
        return False
    length = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    begin = libc.malloc(length)
    if begin:  # address space may be limited
        first = -(-begin // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(first, (begin + length - first) // _HUGE_PAGE * _HUGE_PAGE, _HUGE_PAGES)
        libc.free(begin)
    return True
