"""`metrics.jsonl` and event files agree, survive a kill and a resume, and TensorBoard can read them."""

import json
import math
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import fsspec
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.reports.events import read_events
from resnet_tpu.reports.metrics import MetricsWriter, mean_metrics, read_metrics


def _train_row(step: int) -> dict[str, float]:
    return {"loss": 8.0 / (step + 1), "learning_rate": 0.5**step, "current_epoch": step / 4}


def _eval_row(step: int) -> dict[str, float]:
    return {"loss": 1.0 / (step + 1), "top_1_accuracy": step / 64, "top_5_accuracy": step / 32}


def _run(model_dir: Path, steps: range, *, resume_step: int | None = None, loop: int = 3, eval_every: int = 5) -> None:
    """Writes what a training over these steps does: a row per loop, and evaluations in between."""
    with MetricsWriter(str(model_dir), resume_step=resume_step) as writer:
        for start in range(steps.start, steps.stop, loop):
            stop = min(start + loop, steps.stop)
            writer.write("train", {step: _train_row(step) for step in range(start, stop)})
            writer.write(
                "eval", {step: _eval_row(step) for step in range(start + 1, stop + 1) if not step % eval_every}
            )


def _measured(model_dir: Path) -> tuple[list[dict[str, Any]], list[Any], list[Any]]:
    rows = [{name: value for name, value in row.items() if name != "time"} for row in read_metrics(str(model_dir))]
    rows.sort(key=lambda row: (row["split"], row["step"]))
    events = [[scalar[:3] for scalar in read_events(str(folder))] for folder in (model_dir, model_dir / "eval")]
    return rows, events[0], events[1]


def test_reads_what_it_wrote(tmp_path: Path):
    with MetricsWriter(str(tmp_path / "run")) as writer:
        writer.write("train", {0: {"loss": np.float32(2.5), "images": 64}, 1: {"loss": jnp.float32(1.5), "images": 64}})
        writer.write("eval", {2: {"top_1_accuracy": 0.25}})
    rows = read_metrics(str(tmp_path / "run"))
    assert [{name: row[name] for name in row if name != "time"} for row in rows] == [
        {"step": 0, "split": "train", "loss": 2.5, "images": 64},
        {"step": 1, "split": "train", "loss": 1.5, "images": 64},
        {"step": 2, "split": "eval", "top_1_accuracy": 0.25},
    ]
    assert all(abs(row["time"] - time.time()) < 3600 for row in rows)


def test_numbers_that_are_not_finite_stay_valid_json(tmp_path: Path):
    with MetricsWriter(str(tmp_path)) as writer:
        writer.write("train", {0: {"loss": math.nan, "gradient": math.inf}})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert line["loss"] is None
    assert math.isnan(read_metrics(str(tmp_path))[0]["loss"])
    assert [scalar.value for scalar in read_events(str(tmp_path))] == [pytest.approx(math.nan, nan_ok=True), math.inf]


def test_an_evaluation_whose_loss_is_no_number_measured_nothing(tmp_path: Path):
    with MetricsWriter(str(tmp_path)) as writer:
        writer.write("eval", {1: {"loss": 1.0, "top_1_accuracy": 0.5}, 2: {"loss": math.nan, "top_1_accuracy": 1.0}})
        writer.write("eval", {1: {"loss": math.inf, "top_1_accuracy": 1.0}})
    assert read_metrics(str(tmp_path)) == []


def test_a_folder_that_is_gone_is_named(tmp_path: Path):
    with MetricsWriter(str(tmp_path / "run")) as writer:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(UserError, match="run: got a folder that no longer exists"):
            writer.write("train", {0: {"loss": 1.0}})


def test_no_measurements_are_no_rows(tmp_path: Path):
    assert read_metrics(str(tmp_path)) == []


def test_killed_process_loses_nothing_written(tmp_path: Path):
    code = f"""
import os, signal
from resnet_tpu.reports.metrics import MetricsWriter
writer = MetricsWriter({str(tmp_path)!r})
writer.write("train", {{step: {{"loss": float(step)}} for step in range(500)}})
writer.write("eval", {{500: {{"top_1_accuracy": 0.5}}}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(str(tmp_path))] == [*range(500), 500]
    assert [scalar[:3] for scalar in read_events(str(tmp_path))] == [("loss", step, step) for step in range(500)]
    assert [scalar[:3] for scalar in read_events(str(tmp_path / "eval"))] == [("top_1_accuracy", 500, 0.5)]


@pytest.mark.parametrize("resume_step", [0, 1, 5, 6, 9, 10])
def test_resumed_run_measures_as_one_that_never_stopped(tmp_path: Path, resume_step: int):
    """The run is stopped after step 10 and resumed from a checkpoint of any earlier step."""
    _run(tmp_path / "whole", range(14))
    _run(tmp_path / "stopped", range(10))
    _run(tmp_path / "stopped", range(resume_step, 14), resume_step=resume_step)
    assert _measured(tmp_path / "stopped") == _measured(tmp_path / "whole")


def test_half_written_line_is_repaired_wherever_it_was_cut(tmp_path: Path):
    _run(tmp_path / "whole", range(3))
    content = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    second = content.index(b"\n") + 1
    for cut in range(second, len(content) - len(content.splitlines(keepends=True)[-1]) + 1):
        path = tmp_path / "cut" / "metrics.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content[:cut])
        whole_rows = content.count(b"}", 0, cut)
        assert len(read_metrics(str(path.parent))) == whole_rows
        MetricsWriter(str(path.parent)).close()
        repaired = path.read_bytes()
        assert repaired.count(b"\n") == whole_rows
        assert content.startswith(repaired)
        assert repaired.endswith(b"\n")


def test_damage_inside_the_file_is_named(tmp_path: Path):
    _run(tmp_path, range(3))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for split in ("train", "eval"):
        assert read_metrics(str(tmp_path), split) == [
            row for row in read_metrics(str(tmp_path)) if row["split"] == split
        ]
    path.write_text("".join([lines[0], lines[1][:20] + "\n", lines[2]]))
    for split in (None, "train", "eval"):
        with pytest.raises(UserError, match=r"metrics\.jsonl line 2"):
            read_metrics(str(tmp_path), split)
    with pytest.raises(UserError, match="line 2"):
        MetricsWriter(str(tmp_path))
    assert path.read_text().startswith(lines[0])


def test_of_two_evaluations_of_a_step_the_last_counts(tmp_path: Path):
    for accuracy in (0.25, 0.75):  # within the same second: the second file must not replace the first
        with MetricsWriter(str(tmp_path)) as writer:
            writer.write("eval", {int(accuracy * 4): {"extra": accuracy}, 8: {"top_1_accuracy": accuracy}})
    assert [(row["step"], row.get("top_1_accuracy")) for row in read_metrics(str(tmp_path))] == [
        (1, None),
        (3, None),
        (8, 0.75),
    ]
    assert len(read_events(str(tmp_path / "eval"))) == 4


def test_an_earlier_checkpoint_evaluated_late_hides_no_later_one(tmp_path: Path):
    with MetricsWriter(str(tmp_path)) as writer:
        for step in (4, 2, 6):
            writer.write("eval", {step: _eval_row(step)})
    with MetricsWriter(str(tmp_path), resume_step=5):
        pass
    assert {scalar.step for scalar in read_events(str(tmp_path / "eval"))} == {2, 4}


def test_where_no_evaluation_is_left_none_is_shown(tmp_path: Path):
    _run(tmp_path, range(10))
    with MetricsWriter(str(tmp_path), resume_step=2):
        pass
    assert [row for row in read_metrics(str(tmp_path)) if row["split"] == "eval"] == []
    assert read_events(str(tmp_path / "eval")) == []


def test_bucket_holds_the_same_as_a_local_folder(tmp_path: Path):
    bucket = f"memory://{tmp_path.name}"
    try:
        for model_dir in (bucket, str(tmp_path)):
            for start in (0, 4):
                with MetricsWriter(model_dir, resume_step=start) as writer:
                    writer.write("train", {step: _train_row(step) for step in range(start, start + 6)})
                    writer.write("eval", {start + 6: _eval_row(start + 6)})
        remote, local = read_metrics(bucket), read_metrics(str(tmp_path))
        assert [row | {"time": 0} for row in remote] == [row | {"time": 0} for row in local]
        assert len(remote) == 4 + 6 + 1
        assert [s[:3] for s in read_events(bucket)] == [s[:3] for s in read_events(str(tmp_path))]
    finally:
        fsspec.filesystem("memory").rm(tmp_path.name, recursive=True)


@pytest.mark.parametrize("batch_size", [1, 5, 16, 37, 64])
def test_every_example_counts_once_in_any_batches(batch_size: int):
    rng = np.random.default_rng(3)
    examples = {
        "examples": np.ones(37, np.float32),
        "cross_entropy": rng.integers(0, 64, 37).astype(np.float32) / 16,
        "top_1": rng.integers(0, 2, 37).astype(np.float32),
        "top_5": rng.integers(0, 2, 37).astype(np.float32),
    }
    sums = [
        {name: values[start : start + batch_size].sum() for name, values in examples.items()}
        for start in range(0, 37, batch_size)
    ]
    assert mean_metrics(sums, l2_loss=0.5) == {
        "loss": examples["cross_entropy"].astype(np.float64).sum() / 37 + 0.5,
        "top_1_accuracy": examples["top_1"].sum(dtype=np.float64) / 37,
        "top_5_accuracy": examples["top_5"].sum(dtype=np.float64) / 37,
    }


def test_evaluation_of_nothing_is_an_error():
    with pytest.raises(UserError, match="no examples"):
        mean_metrics([])


# the fast reader in Rust, and the one in Python
@pytest.mark.parametrize("reader", ["auto", pytest.param("false", marks=pytest.mark.long)])
def test_tensorboard_shows_the_tags_of_the_original(tmp_path: Path, reader: str):
    """A real TensorBoard serves a run that was stopped after step 10 and resumed at step 6.

    The first run's measurements at step 9 are gone, although no later evaluation has an earlier step.
    """
    pytest.importorskip("tensorboard")
    _run(tmp_path / "run", range(10), eval_every=3)
    _run(tmp_path / "run", range(6, 14), resume_step=6, eval_every=14)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    options = {"logdir": str(tmp_path), "host": "127.0.0.1", "port": str(port), "load_fast": reader}
    command = [sys.executable, "-m", "tensorboard.main", *(f"--{name}={value}" for name, value in options.items())]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        base = f"http://127.0.0.1:{port}/data/plugin/scalars"
        expected = {
            "run": {"loss", "learning_rate", "current_epoch"},
            "run/eval": {"loss", "top_1_accuracy", "top_5_accuracy"},
        }
        tags = _wait_for(f"{base}/tags", lambda found: {run: set(own) for run, own in found.items()} == expected)
        for tag in tags["run"]:
            _check_scalars(base, "run", tag, {step: _train_row(step)[tag] for step in range(14)})
        for tag in tags["run/eval"]:
            _check_scalars(base, "run/eval", tag, {step: _eval_row(step)[tag] for step in (3, 6, 14)})
    finally:
        server.terminate()
        server.wait(timeout=30)


def _check_scalars(base: str, run: str, tag: str, expected: dict[int, float]) -> None:
    query = urllib.parse.urlencode({"run": run, "tag": tag})
    points = _wait_for(f"{base}/scalars?{query}", lambda points: points and points[-1][1] == max(expected))
    assert {step: value for _, step, value in points} == pytest.approx(expected)


def _wait_for(url: str, is_ready: Any, patience_secs: float = 120) -> Any:
    deadline = time.monotonic() + patience_secs
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                found = json.load(response)
            if is_ready(found):
                return found
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            found = None
        if time.monotonic() > deadline:
            raise AssertionError(f"{url} gave {found}")
        time.sleep(0.3)


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1, "split": "eval", "time": 0, "loss": "low"}',
        b'{"step": 1, "split": "eval", "time": 0, "loss": []}',
        b'{"step": 1.5, "split": "eval", "time": 0}', b'{"step": true, "split": "eval", "time": 0}',
        b'{"step": 1, "split": "eval"}', b'{"step": 1, "split": ["eval"], "time": 0}',
        b'{"step":' * 5_000, b"[" * 5_000,
        b'{"step": ' + b"1" * 5_000 + b"}", b"\xff", b'{"step": 1, "split": "eval", "time": 0, "\xff": 0}',
    ],
    ids=range(11),
)  # fmt: skip
def test_a_line_of_another_kind_is_named(tmp_path: Path, line: bytes):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "split": "train", "time": 0}\n' + line + b"\n")
    for read in (read_metrics, lambda model_dir: MetricsWriter(model_dir, resume_step=1)):
        with pytest.raises(UserError, match=r"metrics\.jsonl line 2: got .*, expected a JSON object"):
            read(str(tmp_path))
    assert path.read_bytes().count(b"\n") == 2
