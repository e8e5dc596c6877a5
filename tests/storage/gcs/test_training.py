"""A run with all files in a bucket equals the run on disk bit for bit, despite kills and faults."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.data.manifest import read_manifest
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.reports.events import read_events
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.export.export import export_run
from resnet_tpu.training.inference.evaluate_run import evaluate_run
from resnet_tpu.training.loop import train
from tests.comparisons import rows_of

Bucket = Any  # of conftest.py
OPTIONS = {
    "resnet_depth": 8, "resnet_width": 4, "image_size": 16, "precision": "float32", "train_batch_size": 8,
    "eval_batch_size": 8, "train_steps": 6, "steps_per_eval": 3, "iterations_per_loop": 1, "num_cores": 1,
    "save_checkpoints_steps": 2, "keep_checkpoint_max": 2,
}  # fmt: skip
FAULTS = {"busy": 0.01, "limited": 0.01, "slow": 0.05, "slow_secs": 0.1, "cut_body": 0.01, "cut_after": 0.005}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 20 small JPEGs."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, colour in {"blue": (200, 60, 40), "green": (60, 190, 60), "red": (50, 50, 210)}.items():
        (folder / name).mkdir()
        for number in range(20):
            photo = np.clip(np.array(colour) + rng.normal(0, 25, (24, 20, 3)), 0, 255)
            cv2.imwrite(str(folder / name / f"{number:02d}.jpg"), photo.astype(np.uint8))
    return folder


def options(folder: str, **changes: Any) -> dict[str, Any]:
    """The options of the run in `folder`."""
    return OPTIONS | {"data_dir": f"{folder}/data", "model_dir": f"{folder}/run"} | changes


def start(bucket: Bucket, *arguments: str) -> "subprocess.Popen[str]":
    """Starts the command `resnet-tpu` with access to the bucket."""
    return subprocess.Popen(
        [sys.executable, "-m", "resnet_tpu", *arguments], env=bucket.environment() | {"JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(bucket: Bucket, *arguments: str) -> str:
    """Runs the command and returns its stdout."""
    process = start(bucket, *arguments)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out


def assert_same_runs(one: str, other: str) -> None:
    paths = [reading.find(f"{folder}/run") for folder in (one, other)]
    assert [reading.step_of(path) for path in paths] == [OPTIONS["train_steps"]] * 2
    expected, found = (reading.load_named(path) for path in paths)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []
    assert rows_of(f"{one}/run") == rows_of(f"{other}/run")
    for folder in ("run", "run/eval"):
        scalars = [
            [scalar[:3] for scalar in read_events(f"{place}/{folder}") if not re.search("per_sec|wait", scalar.tag)]
            for place in (one, other)
        ]
        assert scalars[0] == scalars[1] != []


def wait_until(is_so: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    while not is_so():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def near(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local folder with data and a run."""
    folder = str(tmp_path_factory.mktemp("near"))
    prepare(str(photos), f"{folder}/data", PrepareOptions(train_shards=3, workers=1))
    train(Config().replace(**options(folder)))
    return folder


@pytest.fixture
def far(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in the bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"{bucket.url}/{tmp_path.name}"


@pytest.mark.long
def test_a_bucket_that_vanishes_is_named_and_the_run_goes_on_when_it_is_back(
    bucket: Bucket, near: str, far: str, photos: Path
) -> None:
    prepare(str(photos), f"{far}/data", PrepareOptions(train_shards=3, workers=1))
    config = Config().replace(**options(far))
    bucket.faults(gone_after="/checkpoints/4/commit_success.txt$", deny="bucket")
    with pytest.raises(UserError, match="no bucket bucket, expected an existing bucket"):
        train(config)
    bucket.faults(deny="bucket")  # a permission that the roles for files lack
    assert folders.steps_in(f"{far}/run/checkpoints")[-1] == 4
    assert reading.read_meta(reading.find(f"{far}/run"))["position"] == 4 * 8
    assert train(config).step == 6
    assert_same_runs(near, far)
    assert folders.steps_in(f"{far}/run/checkpoints") == folders.steps_in(f"{near}/run/checkpoints")


@pytest.mark.long
def test_a_run_that_keeps_nothing_is_that_on_the_disk_in_its_order(near: str, far: str, tmp_path: Path) -> None:
    shutil.copytree(f"{near}/data", f"{tmp_path}/data")
    for path in sorted(Path(near, "data").rglob("*")):
        if path.is_file():
            with storage.write_whole(f"{far}/data/{path.relative_to(f'{near}/data')}") as file:
                file.write(path.read_bytes())
    train(Config().replace(**options(str(tmp_path), data_order="pieces")))
    train(Config().replace(**options(far, cache_folder="none", train_steps=3)))
    assert json.loads(storage.read_text(f"{far}/run/config.json"))["data_order"] == "pieces"
    train(Config().replace(**options(far)))  # could keep the data now, but continues as it began
    assert_same_runs(str(tmp_path), far)


def test_photos_in_a_bucket_give_the_same_records(near: str, far: str, photos: Path, tmp_path: Path) -> None:
    for path in sorted(photos.rglob("*.jpg")):
        with storage.write_whole(f"{far}/photos/{path.relative_to(photos)}") as file:
            file.write(path.read_bytes())
    rows = [f"photos/{path.relative_to(photos)},{path.parent.name}\n" for path in photos.rglob("*.jpg")]
    storage.write_text(f"{far}/photos.csv", "path,label\n" + "".join(rows))
    manifest = prepare(f"{far}/photos", str(tmp_path / "out"), PrepareOptions(train_shards=3, workers=1))
    assert manifest.splits == (read_manifest(f"{near}/data") or manifest).splits
    again = prepare(f"{far}/photos.csv", str(tmp_path / "again"), PrepareOptions(workers=1))
    assert {name: split.num_images for name, split in again.splits.items()} == {
        name: split.num_images for name, split in manifest.splits.items()
    }


def test_what_a_kill_leaves_of_a_checkpoint_is_no_checkpoint(bucket: Bucket, near: str, far: str) -> None:
    folder, path = f"{far}/checkpoints", reading.find(f"{near}/run")
    checkpoint = reading.load_all(path)
    with CheckpointStore(folder, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, checkpoint.arrays, checkpoint.meta)
    assert folders.steps_in(folder) == [2, 3]
    names = [name.removeprefix("gs://bucket/") for name in bucket.names() if "/checkpoints/" in name]
    assert not any("/checkpoints/1/" in name for name in names if far.removeprefix("gs://bucket/") in name)
    storage.remove(f"{folder}/3/commit_success.txt")
    assert reading.find(far).endswith("/2")
    assert not folders.is_checkpoint(f"{folder}/3")
    with CheckpointStore(folder, keep=2) as checkpoints:
        assert checkpoints.steps() == [2]
        assert storage.list_dir(folder) == ["2"]
        checkpoints.save(3, checkpoint.arrays, checkpoint.meta)
    assert folders.steps_in(folder) == [2, 3]


# from TensorStore, whose other reads end after Orbax's event loop
COMPILE = """
import jax
from resnet_tpu.parallel import startup
from resnet_tpu.system.program import run_program

def work(_):
    startup.start_jax(use_tpu=False)
    print(jax.jit(lambda x: 3 * x)(2))

raise SystemExit(run_program(work))
"""


@pytest.mark.long
def test_compiled_programs_are_found_again_in_a_bucket(bucket: Bucket) -> None:
    def compile_at(folder: str) -> "subprocess.CompletedProcess[str]":
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return subprocess.run(
            [sys.executable, "-c", COMPILE], env=bucket.environment() | cache, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    for expected in ("write", "media"):  # by the second process, which compiles nothing itself
        bucket.faults()
        done = compile_at(f"{bucket.url}/compiled")
        assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")
        assert {"write", "media"} & bucket.requests().keys() == {expected}
    done = compile_at("s3://bucket/compiled")
    assert done.returncode == 2
    assert done.stderr.startswith("Path: got s3://bucket/compiled, expected a path on this machine or in a bucket, gs")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_checkpoint_that_cannot_be_reached_is_not_taken_for_damaged(
    bucket: Bucket, near: str, far: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, checkpoint = f"{far}/checkpoints", reading.load_all(reading.find(f"{near}/run"))
    shapes = reading.stored_shapes(reading.find(f"{near}/run"))
    with CheckpointStore(folder, keep=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, checkpoint.arrays, checkpoint.meta)
    with CheckpointStore(folder, keep=2) as checkpoints:
        bucket.faults(deny="read")
        with pytest.raises(UserError, match="Storage Object Viewer"):
            checkpoints.restore(shapes)
        name = next(name for name in bucket.names() if name.startswith(f"{folder[12:]}/2/arrays/d/"))
        bucket.faults(damage=[name])
        found = checkpoints.restore(shapes)
        assert found is not None
        assert found.step == 1
    assert "is skipped" in caplog.text
    assert sorted(storage.list_dir(folder)) == ["1", "2.damaged"]
    assert folders.steps_in(folder) == [1]


@pytest.mark.long
def test_eval_follows_a_run_in_a_bucket(bucket: Bucket, near: str, far: str, caplog: pytest.LogCaptureFixture) -> None:
    first, last = (reading.load_all(f"{near}/run/checkpoints/{step}") for step in (4, 6))

    def save(step: int, checkpoint: reading.Checkpoint) -> None:
        with CheckpointStore(f"{far}/run/checkpoints", keep=2) as checkpoints:
            checkpoints.save(step, checkpoint.arrays, checkpoint.meta)

    def go_on() -> None:
        while "Evaluation at step 4" not in caplog.text:
            time.sleep(0.1)
        save(6, last)

    save(4, first)
    bucket.faults(busy=0.02, limited=0.02, slow=0.05, slow_secs=0.1, seed=5)
    config = Config().replace(**options(far, data_dir=f"{near}/data"))
    with ThreadPoolExecutor(1) as pool, caplog.at_level("INFO", logger="resnet_tpu"):
        training = pool.submit(go_on)
        metrics = evaluate_run(config, watch=True)
        training.result()
    rows = [row for row in read_metrics(f"{far}/run") if row["split"] == "eval"]
    assert [row["step"] for row in rows] == [4, 6]
    expected = rows_of(f"{near}/run")["eval", 6]
    assert {name: metrics[name] for name in ("loss", "top_1_accuracy")} == {
        name: expected[name] for name in ("loss", "top_1_accuracy")
    }


@pytest.mark.parametrize(
    ("faults", "message"), [({"deny": "write"}, "objectUser"), ({"needs_token": True}, "no Google")]
)
def test_a_run_that_could_not_be_saved_does_not_begin(
    bucket: Bucket, far: str, photos: Path, faults: Any, message: str
) -> None:
    bucket.faults(**faults)
    config = Config().replace(**options(far, data_dir="synthetic", num_label_classes=4))
    with pytest.raises(UserError, match=message):
        train(config)
    with pytest.raises(UserError, match=message):
        evaluate_run(config, watch=True)
    with pytest.raises(UserError, match=message):
        prepare(str(photos), f"{far}/data")
    with pytest.raises(UserError, match=message):
        export_run(config.replace(export_dir=f"{far}/exported", export_forms="stablehlo"))


@pytest.mark.slow
def test_everything_in_a_bucket_with_faults_and_a_kill_is_as_on_the_disk(
    bucket: Bucket, near: str, far: str, photos: Path, tmp_path: Path
) -> None:
    prepared = ("prepare", str(photos), f"{far}/data", "--train_shards=3", "--workers=2")
    storage.write_text(f"{far}/options.yaml", "".join(f"{name}: {value}\n" for name, value in options(far).items()))
    command = ("train", f"--config_file={far}/options.yaml")
    bucket.faults(**FAULTS, seed=3)
    process = start(bucket, *prepared)
    wait_until(lambda: any(name.endswith("/data/train-00000-of-00003") for name in bucket.names()), process)
    process.kill()
    process.communicate()
    run(bucket, *prepared)
    process = start(bucket, *command)
    place = f"{far.removeprefix('gs://bucket/')}/run/checkpoints/2/commit_success.txt"
    wait_until(lambda: place in bucket.names(), process)
    process.kill()
    process.communicate()
    run(bucket, *command)
    assert_same_runs(near, far)
    assert storage.read_text(f"{far}/run/labels.txt") == storage.read_text(f"{near}/run/labels.txt")
    names = [name for name in storage.list_dir(f"{near}/data") if name != "manifest.json"]
    assert [name for name in storage.list_dir(f"{far}/data") if name != "manifest.json"] == names
    records = [name for name in names if "-of-" in name]
    assert all(
        storage.read_bytes(f"{far}/data/{name}") == storage.read_bytes(f"{near}/data/{name}") for name in records
    )
    with storage.write_whole(f"{far}/photos/red/one.jpg") as file:
        file.write((photos / "red" / "00.jpg").read_bytes())
    run(bucket, "eval", f"{far}/run", f"--data_dir={far}/data")
    said = [
        run(bucket, "predict", f"{folder}/run", images, "--format=csv").splitlines()
        for folder, images in ((near, str(photos / "red" / "00.jpg")), (far, f"{far}/photos"))
    ]
    assert [line.partition(",")[2] for line in said[0]] == [line.partition(",")[2] for line in said[1]]
    run(bucket, "predict", f"{far}/run", f"--data_dir={far}/data", "--split=test")
    assert "predictions.csv" in storage.list_dir(f"{far}/run/report/test")
    run(bucket, "export", f"{far}/run", f"{far}/exported", "--forms=stablehlo")
    run(bucket, "export", f"{near}/run", f"{near}/exported", "--forms=stablehlo")
    bundles = [f"{folder}/exported/{storage.list_dir(f'{folder}/exported')[0]}" for folder in (near, far)]
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    one, other = (load_classifier(open_bundle(path), form="stablehlo")(images) for path in bundles)
    assert np.array_equal(one, other)
    run(bucket, "results", f"{far}/run")
