"""Waiting for input counts only while the devices have nothing to do, and is told wherever speed is."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest

from resnet_tpu import cli
from resnet_tpu.options.config import Config
from resnet_tpu.reports.events import read_events
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.input_wait import InputWait
from resnet_tpu.training.loop import train

Tiny = Callable[..., Config]


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The model_dir of a training with two loops, and its log."""
    model_dir, lines = tmp_path_factory.mktemp("run"), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("resnet_tpu")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    train(tiny(model_dir, mode="train", train_steps=6, iterations_per_loop=3, save_checkpoints_steps=6))
    logger.removeHandler(handler)
    logger.setLevel(level)
    yield model_dir, "\n".join(lines)


def test_input_wait_is_in_the_log_the_metrics_and_tensorboard(run: tuple[Path, str]) -> None:
    model_dir, shown = run
    shares = {row["step"]: row["input_wait_share"] for row in read_metrics(str(model_dir)) if "input_wait_share" in row}
    assert list(shares) == [2, 5]  # the last step of each loop
    assert all(0 <= share <= 1 for share in shares.values())
    events = {event.step: event.value for event in read_events(str(model_dir)) if event.tag == "input_wait_share"}
    assert events == pytest.approx(shares)
    said = re.findall(r"input wait ([\d.]+) %", shown)
    assert [float(share) for share in said] == [round(100 * share, 1) for share in shares.values()]


def test_results_shows_input_wait_and_marks_the_smallest_as_best(
    run: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir, _ = run
    options = ["--metric=input_wait_share", "--split=train"]
    assert cli.main(["results", str(model_dir), *options, "--format=csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert cli.main(["results", str(model_dir), *options]) == 0
    (best,) = (line for line in capsys.readouterr().out.splitlines() if "best" in line)
    _, step, _ = min(rows, key=lambda row: float(row[2]))
    assert re.search(rf"\b{step}\b", best)


STEP = jnp.ones(3)


def test_time_before_the_last_step_ends_is_no_wait() -> None:
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
