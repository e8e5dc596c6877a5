"""Waiting for input counts only while the devices have nothing to do."""

import time

import jax.numpy as jnp
import pytest

from resnet_tpu.training.waiting import InputWait

STEP = jnp.ones(3)


def test_what_lies_before_the_end_of_the_last_step_is_no_wait() -> None:
    with InputWait() as wait:
        before = time.perf_counter()
        wait.add(before - 9, before - 8)
        wait.watch(STEP)  # ends now
        wait.add(before - 10, before - 5)  # the batch arrived while that step was running
        wait.watch(STEP)
        assert wait.take(1)[0] == pytest.approx(1)
        assert wait.take()[0] == 0
        later = time.perf_counter() + 10
        wait.add(later, later + 2)  # requested when no step was running any more
        wait.watch(STEP)
        assert wait.take()[0] == pytest.approx(2)


def test_shares_of_loops_add_up_to_the_time_from_end_to_end() -> None:
    """However late a loop is evaluated, its waits lie between the end of the previous loop and its own end."""
    with InputWait() as wait:
        start = time.perf_counter()
        for _ in range(20):
            asked = time.perf_counter()
            time.sleep(0.002)
            wait.add(asked, time.perf_counter())
            wait.watch(STEP)
        parts = [wait.take(count) for count in (4, 7, 9)]
        ends = [start, *(end for _, end in parts if end)]
        assert len(ends) == 4 and ends == sorted(ends)
        for (waited, _), begin, end in zip(parts, ends[:-1], ends[1:], strict=True):
            assert 0 < waited <= end - begin


def test_all_time_before_the_first_step_is_wait_and_taking_resets_it() -> None:
    with InputWait() as wait:
        assert wait.take() == (0, None)
        wait.add(1.0, 1.5)
        wait.watch(STEP)
        waited, ended = wait.take()
        assert waited == 0.5 and ended is not None
        assert wait.take() == (0, ended)
