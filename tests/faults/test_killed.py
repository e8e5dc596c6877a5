"""kill -9 at random moments, then the same command again: the final result is as if it had never been killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("KILLS", "50"))
"""How often each program is killed in the long form."""


@pytest.mark.long
def test_prepare_killed_and_run_again(
    program: Callable[..., Any], stopping: Callable[..., Any], tmp_path: Path
) -> None:
    stopping(program("prepare", workers=1), tmp_path, [signal.SIGKILL] * 3, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", ["prepare", "train", "prune", "export"])
def test_killed_at_random_moments(
    verb: str, program: Callable[..., Any], stopping: Callable[..., Any], tmp_path: Path
) -> None:
    tally = stopping(program(verb), tmp_path, [signal.SIGKILL] * KILLS, seed=1)
    assert len(tally.stages) > 1
