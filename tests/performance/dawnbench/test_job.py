"""The DAWNBench job end to end on a tiny data set, also after a kill; its phases compared with the original's."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.performance.dawnbench.job import FAST_BOUNDARIES, dawnbench, phases_of
from resnet_tpu.performance.dawnbench.options import DawnbenchOptions, read_job
from resnet_tpu.performance.dawnbench.results import Row, verdict, write_tsv
from resnet_tpu.reports.metrics import read_metrics

HEADER = "epoch\thours\ttop1Accuracy\ttop5Accuracy"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes, each noise around a colour: 14 images for training, 21 for evaluation."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, count in (("train", 2), ("validation", 3)):
        for label in range(7):
            (folder / split / str(label)).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(rng.normal(30 * label + 20, 40, (40, 44, 3)), 0, 255).astype(np.uint8)
                cv2.imwrite(str(folder / split / str(label) / f"{number}.jpg"), pixels)
    return folder


def command(photos: Path, model_dir: Path, *others: str) -> list[str]:
    """The command of a job with three epochs of two steps each."""
    words = f"""--data_dir={photos} --model_dir={model_dir} --resnet_depth=8 --resnet_width=4 --image_size=32
        --precision=float32 --train_batch_size=7 --eval_batch_size=7 --train_steps=3epochs --num_cores=1""".split()
    return [sys.executable, "-m", "resnet_tpu", "bench", "dawnbench", *words, *others]


def table(model_dir: Path) -> list[list[float]]:
    """The rows of `results.tsv`."""
    header, *rows = (model_dir / "results.tsv").read_text().splitlines()
    assert header == HEADER
    return [[float(value) for value in row.split("\t")] for row in rows]


@pytest.fixture(scope="module")
def job(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of a completed job, with evaluation running in parallel to the training."""
    model_dir = tmp_path_factory.mktemp("job") / "run"
    done = subprocess.run(command(photos, model_dir), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Top-5 accuracy 93 %" in done.stderr
    return model_dir


@pytest.mark.long
def test_a_row_per_epoch(job: Path) -> None:
    rows = table(job)
    assert [row[0] for row in rows] == [1, 2, 3]
    hours = [row[1] for row in rows]
    assert 0 < hours[0] < hours[1] < hours[2] < 1
    evaluated = {row["step"]: row for row in read_metrics(str(job)) if row["split"] == "eval"}
    assert sorted(evaluated) == [2, 4, 6]
    for row, metrics in zip(rows, (evaluated[step] for step in (2, 4, 6)), strict=True):
        assert row[2:] == [round(100 * metrics[name], 2) for name in ("top_1_accuracy", "top_5_accuracy")]


@pytest.mark.long
def test_hours_are_those_of_the_checkpoint_since_the_start(job: Path) -> None:
    start = float((job / "START").read_text())
    for row, step in zip(table(job), (2, 4, 6), strict=True):
        assert row[1] == pytest.approx(
            (reading.written_at(str(job / "checkpoints" / str(step))) - start) / 3600, abs=1e-6
        )


@pytest.mark.long
def test_run_again_it_changes_nothing(job: Path) -> None:
    names = ("results.tsv", "START", "dawnbench.json", "labels.txt")
    before = [(job / name).read_bytes() for name in names]
    steps = folders.steps_in(str(job / "checkpoints"))
    assert cli.main(["bench", "dawnbench", f"--model_dir={job}"]) == 0  # omitted options are as before
    assert [(job / name).read_bytes() for name in names] == before
    assert folders.steps_in(str(job / "checkpoints")) == steps


@pytest.mark.long
def test_evaluation_may_follow_the_training_on_its_own(job: Path, tmp_path: Path) -> None:
    alone = tmp_path / "run"
    shutil.copytree(job, alone, ignore=shutil.ignore_patterns("eval", "metrics.jsonl", "results.tsv"))
    assert cli.main(["eval", str(alone)]) == 0  # of the last checkpoint
    assert cli.main(["bench", "dawnbench", "--mode=eval", f"--model_dir={alone}"]) == 0
    assert (alone / "results.tsv").read_bytes() == (job / "results.tsv").read_bytes()


@pytest.mark.long
def test_evaluation_gives_up_after_its_timeout(job: Path, tmp_path: Path) -> None:
    waiting = tmp_path / "run"
    shutil.copytree(job, waiting, ignore=shutil.ignore_patterns("6"))  # lacks the last checkpoint
    assert cli.main(["bench", "dawnbench", "--mode=eval", "--eval_timeout=0", f"--model_dir={waiting}"]) == 0
    assert table(waiting) == table(job)[:2]


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 300) -> None:
    """Waits until `is_so` returns true; fails with `what` after so many seconds."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def is_alive(group: int) -> bool:
    """Whether any process of the group exists."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_killed_it_leaves_no_process_and_goes_on_as_if_nothing_had_been(
    photos: Path, job: Path, tmp_path: Path
) -> None:
    words = command(photos, tmp_path)
    first = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: 2 in folders.steps_in(str(tmp_path / "checkpoints")), "the first checkpoint")
    first.kill()
    first.wait()
    wait_until(lambda: not is_alive(first.pid), "the end of the evaluation without its training")
    start = (tmp_path / "START").read_text()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "START").read_text() == start
    assert [[row[0], *row[2:]] for row in table(tmp_path)] == [[row[0], *row[2:]] for row in table(job)]
    hours = [row[1] for row in table(tmp_path)]
    assert hours == sorted(hours)


@pytest.mark.slow
def test_interrupted_it_ends_both_processes(photos: Path, tmp_path: Path) -> None:
    words = command(photos, tmp_path, "--train_steps=100000")
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: 2 in folders.steps_in(str(tmp_path / "checkpoints")), "the first checkpoint")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    wait_until(lambda: not is_alive(process.pid), "the end of the evaluation")


@pytest.mark.slow
def test_the_fast_training_grows_its_images(photos: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    shutil.copytree(photos, small)
    words = command(photos, tmp_path / "run", "--use_fast_lr", f"--data_dir_small={small}", "--train_batch_size=14")
    words += ["--train_steps=46", "--save_checkpoints_steps=20epochs", "--base_learning_rate=0.01", "--resnet_depth=20"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in table(tmp_path / "run")] == [18, 20, 40, 41, 46]
    trained = {}
    for step in (18, 20, 40, 41, 46):
        data = config_of(reading.read_meta(str(tmp_path / "run" / "checkpoints" / str(step)))).data
        trained[step] = (data.image_size, data.data_dir)
    parts = [(128, str(small)), (224, str(photos)), (288, str(photos))]
    assert trained == {18: parts[0], 20: parts[1], 40: parts[1], 41: parts[1], 46: parts[2]}
    evaluated = [row for row in read_metrics(str(tmp_path / "run")) if row["split"] == "eval"]
    assert len(evaluated) == 5 and not any("other_images" in row for row in evaluated)
    rates = {
        row["step"]: row["learning_rate"] for row in read_metrics(str(tmp_path / "run")) if row["split"] == "train"
    }
    peak = 0.01 * 14 / 256
    expected = {0: 0.0, 2: 0.5, 4: 1.0, 20: 1.0, 21: 0.1, 34: 0.1, 35: 0.01, 42: 0.01, 43: 0.001, 45: 0.001}
    assert {step: rates[step] / peak for step in expected} == pytest.approx(expected, rel=1e-5)


IMAGENET = {"data_dir": "imagenet", "model_dir": "run", "num_train_images": 1281167}
FAST = DawnbenchOptions(use_fast_lr=True, data_dir_small="imagenet160")


def test_phases_of_imagenet_are_the_originals() -> None:
    phases = phases_of(Config().replace(**IMAGENET), FAST)
    assert [
        (phase.train.train_steps, phase.data.image_size, phase.data.data_dir, phase.run.mode) for phase in phases
    ] == [
        (22520, 128, "imagenet160", "train"),
        (51296, 224, "imagenet", "train"),
        (62556, 288, "imagenet", "train"),
    ]  # fmt: skip
    for phase in phases:
        assert phase.optimizer.learning_rate_boundaries == FAST_BOUNDARIES == "4,21,35,43"
        assert (phase.train.save_checkpoints_steps, phase.train.keep_checkpoint_max) == ("1epochs", 10**9)


def test_the_fast_training_ends_at_train_steps_and_needs_no_small_images() -> None:
    config = Config().replace(**IMAGENET, train_steps=22520)
    assert [phase.train.train_steps for phase in phases_of(config, FAST)] == [22520]
    config = config.replace(train_steps=30000)
    phases = phases_of(config, DawnbenchOptions(use_fast_lr=True))
    assert [(phase.train.train_steps, phase.data.data_dir) for phase in phases] == [
        (22520, "imagenet"), (30000, "imagenet")
    ]  # fmt: skip


def test_without_the_fast_training_there_is_one_phase() -> None:
    config = Config().replace(**IMAGENET, save_checkpoints_steps=100)
    (phase,) = phases_of(config, DawnbenchOptions())
    assert phase == config.replace(mode="train", keep_checkpoint_max=10**9)


def test_results_have_the_form_of_dawnbench(tmp_path: Path) -> None:
    write_tsv(str(tmp_path), [Row(1, 0.25, 12.3456, 100 / 3), Row(2, 11.5, 76.0, 93.004)])
    assert (tmp_path / "results.tsv").read_text() == (
        "epoch\thours\ttop1Accuracy\ttop5Accuracy\n1\t0.250000\t12.35\t33.33\n2\t11.500000\t76.00\t93.00\n"
    )


def test_verdict() -> None:
    rows = [Row(82, 11.1, 75.0, 92.99), Row(83, 11.25, 75.5, 93.0), Row(84, 11.4, 76.0, 93.1)]
    assert verdict(rows) == "Top-5 accuracy 93 % first at epoch 83, after 11.25 hours."
    assert verdict(rows[:1]) == "Top-5 accuracy 93 % was not reached; the best was 92.99 %."
    assert verdict([]) == "Top-5 accuracy 93 % was not reached; the best was 0.00 %."


@pytest.mark.parametrize(
    ("options", "own", "message"),
    [
        ({"model_dir": ""}, DawnbenchOptions(), r"model_dir: got nothing"),
        ({"mode": "predict"}, DawnbenchOptions(), r"mode: got predict, expected train, eval or train_and_eval"),
        ({}, DawnbenchOptions(data_dir_small="x"), r"data_dir_small: got x, expected use_fast_lr"),
        ({"enable_lars": True}, FAST, r"use_fast_lr: got true with enable_lars, expected one of them"),
        ({"learning_rate_schedule": "cosine"}, FAST, r"use_fast_lr: got true with learning_rate_schedule cosine"),
        ({"learning_rate_boundaries": "4,3"}, DawnbenchOptions(), r"learning_rate_boundaries: got '4,3'"),
        ({"mode": "eval"}, DawnbenchOptions(), r"model_dir: got .* without START, expected a DAWNBench job"),
    ],
)
def test_bad_options(options: dict[str, str | bool], own: DawnbenchOptions, message: str, tmp_path: Path) -> None:
    config = Config().replace(**({"data_dir": "nowhere", "model_dir": str(tmp_path)} | options))
    with pytest.raises(UserError, match="^" + message):
        dawnbench(config, own)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_no_job_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "100").mkdir(parents=True)
    with pytest.raises(UserError, match="which has checkpoints but no START"):
        dawnbench(Config().replace(data_dir="nowhere", model_dir=str(tmp_path)), DawnbenchOptions())


@pytest.mark.parametrize("text", ["", "yesterday\n", "nan"])
def test_a_start_that_is_no_time_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "START").write_text(text)
    with pytest.raises(UserError, match=r"START: got .* expected a time in unix seconds"):
        dawnbench(Config().replace(data_dir="nowhere", model_dir=str(tmp_path)), DawnbenchOptions())


def test_missing_images_are_named_before_training(photos: Path, tmp_path: Path) -> None:
    config = Config().replace(data_dir=str(photos), model_dir=str(tmp_path / "run"), train_batch_size=7)
    with pytest.raises(UserError, match="nowhere"):
        dawnbench(config, DawnbenchOptions(use_fast_lr=True, data_dir_small="nowhere"))
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_job_remembers_its_options(job: Path) -> None:
    layer = read_job(str(job))
    assert layer is not None
    assert layer.values == json.loads((job / "dawnbench.json").read_text())
    assert (layer.values["use_fast_lr"], layer.values["num_train_images"]) == (False, 14)
    assert read_job("") is None
