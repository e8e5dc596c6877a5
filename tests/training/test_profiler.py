"""When a training is traced: never while it compiles or evaluates, never after its end; buckets work too."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import jax
import pytest

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.performance.profiling.trace import Trace, find_trace, read_trace
from resnet_tpu.training.loop import train
from resnet_tpu.training.profiler import FOLDER, Profiler

Tiny = Callable[..., Config]
ENDLESS = 3_600_000  # ms


def traces(model_dir: Path) -> list[Trace]:
    """All traces captured; of several within the same second, only the last."""
    return [read_trace(find_trace(str(folder))) for folder in sorted((model_dir / FOLDER).glob("*"))]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["train", "train_and_eval"])
def test_a_training_of_a_single_loop_is_traced_from_its_second_step_to_its_end(
    tiny: Tiny, tmp_path: Path, mode: str
) -> None:
    options = {"train_steps": 4, "steps_per_eval": 4, "iterations_per_loop": 100, "save_checkpoints_steps": 4}
    train(tiny(tmp_path, mode=mode, profile_every_n_steps=1, tpu_profile_duration=ENDLESS, **options))
    (trace,) = traces(tmp_path)
    assert (len(trace.steps), len(trace.input_waits)) == (3, 3)


@pytest.mark.long
def test_a_trace_ends_before_an_evaluation_and_the_next_begins_after_it(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(tmp_path, profile_every_n_steps=1, tpu_profile_duration=ENDLESS))  # evaluations at steps 3, 6 and 7
    found = traces(tmp_path)
    assert found
    assert {len(trace.steps) for trace in found} == {2}


@pytest.mark.long
def test_a_trace_that_is_due_at_an_evaluation_begins_a_step_after_it(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(tmp_path, profile_every_n_steps=3, tpu_profile_duration=ENDLESS, train_steps=6))  # evaluations at 3, 6
    (trace,) = traces(tmp_path)
    assert len(trace.steps) == 2


def test_a_step_too_late_or_too_early_begins_no_trace(tmp_path: Path) -> None:
    with Profiler(str(tmp_path), every_n_steps=3, duration_ms=1, step=10, total=13) as profiler:
        for step in (11, 12, 13):
            profiler.after_step(step)
    with Profiler(str(tmp_path), every_n_steps=0, duration_ms=1, step=0, total=100) as profiler:
        for step in range(1, 100):
            profiler.after_step(step)
    assert not (tmp_path / FOLDER).exists()


def test_a_trace_that_cannot_be_written_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: vm.xplane.pb; No space left on device")
    monkeypatch.setattr(jax.profiler, "start_trace", Mock())
    monkeypatch.setattr(jax.profiler, "stop_trace", Mock(side_effect=error))
    with (
        pytest.raises(UserError, match=r"^Profile: got .* left on device, expected a file written below"),
        Profiler(str(tmp_path), every_n_steps=1, duration_ms=ENDLESS, step=0, total=9) as profiler,
    ):
        profiler.after_step(1)


def test_a_trace_reaches_a_bucket(tiny: Tiny, tmp_path: Path) -> None:
    bucket = f"memory://{tmp_path.name}"
    with Profiler(bucket, every_n_steps=2, duration_ms=ENDLESS, step=0, total=9) as profiler:
        for step in range(1, 9):
            profiler.after_step(step)
    (folder,) = storage.list_dir(storage.join(bucket, FOLDER))
    names = storage.list_dir(storage.join(bucket, FOLDER, folder))
    assert any(name.endswith(".xplane.pb") for name in names)
