"""Free memory, and shared memory."""

import os
from pathlib import Path

import numpy as np

from resnet_tpu.data.loader.memory import PAGE, SharedMemory, free_in_groups, free_memory


def test_free_memory_is_part_of_the_machines() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 10**6 < free_memory() < total


def test_limits_of_control_groups(tmp_path: Path) -> None:
    def group(folder: Path, **files: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)

    group(tmp_path / "a" / "b", memory__max="max\n", memory__current="10\n")
    group(tmp_path / "a", memory__max="1000\n", memory__current="300\n", memory__stat="anon 5\ninactive_file 40\n")
    group(tmp_path / "memory" / "c", memory__limit_in_bytes="500\n", memory__usage_in_bytes="600\n")
    group(tmp_path / "memory", memory__limit_in_bytes="9000\n", memory__usage_in_bytes="600\n", memory__stat="x 1\n")
    assert free_in_groups("0::/a/b\n", tmp_path) == [740]
    assert free_in_groups("4:memory:/c\n1:cpu:/a\n0::/\n", tmp_path) == [-100, 8400]
    assert free_in_groups("0::/elsewhere\n", tmp_path) == []
    assert free_in_groups("", tmp_path) == []


def test_shared_memory_takes_room_when_written_to() -> None:
    shared = SharedMemory()
    shared.resize(PAGE + 10**12)
    one, other = (np.frombuffer(shared.map(PAGE, 10**12), np.uint8) for _ in range(2))
    assert other[-1] == 0
    one[-1] = 7
    assert other[-1] == 7
    assert os.fstat(shared.fileno()).st_blocks * 512 <= 2 * PAGE
