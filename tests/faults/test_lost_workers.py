"""kill -9 of a process that reads images: the training reports it and continues as if nothing had happened."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMES = int(os.environ.get("KILLS", "10"))


def workers_of(pid: int) -> list[int]:
    """The worker processes of `pid`, without Python's own resource tracker."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    return []


def kill_a_worker(nursery: Any, rng: random.Random) -> int | None:
    """Kills one of the two workers a moment after both have started, and returns the program's exit code."""
    moment = 1.5 * rng.random()
    code = None
    while code is None and len(workers_of(nursery.child)) < 2:
        code = nursery.wait(0.005)
    begin = time.monotonic()
    while code is None and time.monotonic() < begin + moment:
        code = nursery.wait(0.005)
    if code is None and (workers := workers_of(nursery.child)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(workers), signal.SIGKILL)
    return nursery.wait(500) if code is None else code


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_training_whose_workers_are_killed(program: Callable[..., Any], tmp_path: Path) -> None:
    training = program("train", input_workers="processes", num_parallel_calls=2, train_steps=48)
    whole, log = tmp_path / "whole", tmp_path / "log.txt"
    whole.mkdir()
    training.finish(whole)
    rng = random.Random(3)
    killed = finished = 0
    while killed < TIMES:
        folder = tmp_path / f"work{finished}"
        folder.mkdir()
        code = None
        while code != 0:
            training.nursery.start(folder, log, training.words)
            code = kill_a_worker(training.nursery, rng)
            if code:
                killed += 1
                assert code == 2, log.read_text()
                assert "a worker process that was killed or crashed" in log.read_text()
                assert "Traceback" not in log.read_text()
        training.check(whole, folder)
        finished += 1
    print(f"\n{killed} workers killed, {finished} trainings the same")
