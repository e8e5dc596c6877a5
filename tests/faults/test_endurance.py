"""A real training of a hundred epochs holds no more resources at the end than after forty."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

EPOCHS, SETTLED, WINDOW = 100, 40, 20
"""Epochs in total; the epoch by which usage has settled; and the length of the windows whose minima are compared."""

IMAGE_SIZE = 64
IN_MEMORY = re.compile("/dev/shm/|/memfd:")
GROWTH_MB = 32
"""Memory growth allowed in the 40 epochs between: pages that allocators touch for the first time, 27 MB in the worst
run although no more was allocated, and 3 MB leaked by TensorStore 0.1.86, whose `to_json` keeps its strings. Keeping
the images of every epoch (1.2 MB) would add 48 MB, keeping the arrays of every checkpoint (1.4 MB) 56 MB."""


@dataclass(frozen=True)
class Holdings:
    """What a process and its descendants hold; shared_files: those in memory, as in /dev/shm."""

    threads: int
    descriptors: int
    anonymous_mb: float
    shared_mb: float
    shared_files: int


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in family(int(child)))]


def holdings(pid: int) -> Holdings:
    """What the process and its descendants hold now. Raises OSError if one of them ends meanwhile."""
    folders = [Path(f"/proc/{number}") for number in family(pid)]
    status = [dict(line.split(":", 1) for line in (f / "status").read_text().splitlines()) for f in folders]
    anonymous, shared = (sum(int(one[name].split()[0]) for one in status) / 1024 for name in ("RssAnon", "RssShmem"))
    threads, descriptors = (sum(len(list((f / part).iterdir())) for f in folders) for part in ("task", "fd"))
    mapped = {
        line.split()[4] for f in folders for line in (f / "maps").read_text().splitlines() if IN_MEMORY.search(line)
    }
    return Holdings(threads, descriptors, anonymous, shared, len(mapped))


def floors(process: "subprocess.Popen[bytes]", metrics: Path) -> dict[int, Holdings]:
    """The minimum of each resource in each epoch, which a leak raises but a temporary use does not."""
    seen: dict[int, list[Holdings]] = {}
    while process.poll() is None:
        epoch = metrics.read_text().count('"split": "eval"') if metrics.exists() else 0
        try:
            seen.setdefault(epoch, []).append(holdings(process.pid))
        except (OSError, KeyError):  # a process has just ended
            continue
        time.sleep(0.02)
    return {epoch: merge(min, seen[epoch]) for epoch in sorted(seen) if 0 < epoch < EPOCHS}


def merge(choose: Callable[..., Any], held: list[Holdings]) -> Holdings:
    """The minimum or maximum of each resource."""
    return Holdings(*map(choose, zip(*map(astuple, held), strict=True)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for what is held in /proc")
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_hundred_epochs_hold_no_more_than_forty(kind: str, program: Callable[..., Any], tmp_path: Path) -> None:
    training = program(
        "train", input_workers=kind, num_parallel_calls=2, image_size=IMAGE_SIZE, train_steps=f"{EPOCHS}epochs",
        steps_per_eval="1epochs", save_checkpoints_steps="1epochs", lottery_checkpoint_iters="",
    )  # fmt: skip
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "resnet_tpu", *training.words],
            cwd=tmp_path, env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"}, stdout=log, stderr=log,
        )  # fmt: skip
        held = floors(process, tmp_path / "run" / "metrics.jsonl")
    assert process.returncode == 0, (tmp_path / "log.txt").read_text()
    print(f"\n{kind}: threads, descriptors, MB of memory, MB shared, files in memory, in epochs 2 to {EPOCHS}")
    for epoch, one in held.items():
        print(epoch + 1, *(round(value, 1) for value in astuple(one)))
    settled = [one for epoch, one in held.items() if SETTLED <= epoch < SETTLED + WINDOW]
    least = merge(min, [one for epoch, one in held.items() if epoch >= EPOCHS - WINDOW])
    before, most = merge(min, settled), merge(max, settled)
    assert least.threads <= most.threads
    assert least.descriptors <= most.descriptors
    assert least.anonymous_mb <= before.anonymous_mb + GROWTH_MB
    assert least.shared_mb <= before.shared_mb + 1
    assert least.shared_files <= most.shared_files
