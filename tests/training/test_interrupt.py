"""Ctrl-C, SIGTERM, SIGHUP and SIGKILL on a real training process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from resnet_tpu.checkpoints import folders
from resnet_tpu.parallel import hosts
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.interrupt import Interruption

OPTIONS = (
    "data_dir=synthetic,image_size=16,num_label_classes=4,num_train_images=64,resnet_depth=8,resnet_width=4,"
    "precision=float32,train_batch_size=16,iterations_per_loop=10,save_checkpoints_steps=10,num_cores=1,mode=train"
)


def start(model_dir: Path, train_steps: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "resnet_tpu", "train", f"--params_override={OPTIONS}"]
    return subprocess.Popen(
        [*command, f"--model_dir={model_dir}", f"--train_steps={train_steps}"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
    )


def wait_for(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"The process ended without {text!r}")


def steps_in(model_dir: Path) -> list[int]:
    folder = model_dir / folders.CHECKPOINTS
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else []


def test_the_last_step_of_a_training_is_no_answer_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Mock()
    monkeypatch.setattr(hosts, "process_group", lambda: group)
    with Interruption() as interruption:
        interruption.is_due(1000)
    step, signal_received = group.stop_signal.call_args.args
    assert (step, signal_received()) == (-1, None)


def test_a_signal_after_the_last_question_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), Interruption() as stop:
        stop.end_if_signalled()
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_a_signal_saves_first(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path, 1_000_000)
    wait_for(process, "Step 10 of")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    # the checkpoint holds exactly the steps that were measured: no work was lost
    assert steps_in(tmp_path)[-1] == max(row["step"] for row in read_metrics(str(tmp_path))) + 1
    assert f"Stopped at step {steps_in(tmp_path)[-1]}, which is saved" in said


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_after_the_last_step_ends_all_processes(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Mock(stop_signal=lambda step, received: None)
    monkeypatch.setattr(hosts, "process_group", lambda: together)
    together.exchange = lambda text: [text, ""]  # the other one has received none
    with pytest.raises(SystemExit) as left, Interruption() as stop:
        assert not stop.is_due(3)
        signal.raise_signal(number)
        stop.end_if_signalled()
    assert left.value.code == code
    together.stop_watching.assert_called_once_with()
    together.exchange = lambda text: [text, str(number.value)]  # this one has received none
    with pytest.raises(SystemExit), Interruption() as stop:
        stop.end_if_signalled()
    together.exchange = lambda text: [text, ""]
    with Interruption() as stop:
        stop.end_if_signalled()


@pytest.mark.long
def test_a_kill_loses_at_most_the_work_since_the_last_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path, 1_000_000)
    while not steps_in(tmp_path):  # metrics are written in the background; the steps take hardly any time here
        wait_for(process, "Step ")
    second = start(tmp_path, 1_000_000)
    _, said = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"{tmp_path / folders.CHECKPOINTS}: got another process that writes there, expected one at a time" in said
    time.sleep(0.2)  # in the middle of whatever it is doing by then
    process.kill()
    process.communicate(timeout=60)
    kept = steps_in(tmp_path)[-1]
    assert kept >= 10
    resumed = start(tmp_path, kept + 10)
    _, said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0
    assert f"Resuming from step {kept}" in said
    assert [row["step"] for row in read_metrics(str(tmp_path))] == list(range(kept + 10))
