"""Signals at random moments, then the same command again: exit codes 130, 143 and 129, one word, nothing lost."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STOPS = int(os.environ.get("STOPS", "20"))
"""How often each program is stopped; a third of the stops by each signal."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", ["prepare", "train", "prune", "export"])
def test_stopped_at_random_moments(
    verb: str, program: Callable[..., Any], stopping: Callable[..., Any], tmp_path: Path
) -> None:
    tally = stopping(program(verb), tmp_path, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * (STOPS // 3), seed=2)
    assert len(tally.stages) > 1
