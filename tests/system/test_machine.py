"""How much memory is free."""

import os

from resnet_tpu.system.machine import free_memory


def test_free_memory_is_part_of_the_machines() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 10**6 < free_memory() < total
