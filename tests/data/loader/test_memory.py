"""Shared memory, and the slots for batches in it."""

import os
import subprocess
import sys

import numpy as np

from resnet_tpu.data.loader.memory import PAGE, SharedMemory
from resnet_tpu.data.loader.slots import Layout, Slots


def test_shared_memory_takes_room_when_written_to() -> None:
    shared = SharedMemory()
    shared.resize(PAGE + 10**12)
    one, other = (np.frombuffer(shared.map(PAGE, 10**12), np.uint8) for _ in range(2))
    assert other[-1] == 0
    one[-1] = 7
    assert other[-1] == 7
    assert os.fstat(shared.fileno()).st_blocks * 512 <= 2 * PAGE


def test_shared_memory_is_freed_with_its_last_holder_and_silent_at_the_end_of_a_program() -> None:
    code = (
        "import os, threading\nfrom resnet_tpu.data.loader import memory\n"
        "shared = memory.SharedMemory()\ndescriptor = shared.fileno()\nos.fstat(descriptor)\ndel shared\n"
        "try:\n    os.fstat(descriptor)\nexcept OSError:\n    print('freed')\n"
        "threading.kept = memory, memory.SharedMemory()  # which outlive the names in the module `memory`"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("freed\n", "")


def test_many_batches_in_use_take_few_file_descriptors() -> None:
    slots, before = Slots(Layout(2, 8)), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    held = [slots.take() for _ in range(100)]
    assert len(os.listdir("/proc/self/fd")) - before < 20  # noqa: PTH208
    assert [slot.number for slot in held] == list(range(100))
    for slot in held:
        slot.rows.label[:] = slot.number
    assert all((slot.rows.label == slot.number).all() for slot in held)
    del held[50]
    assert slots.take().number == 50
