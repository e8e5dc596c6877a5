"""A full disk, for everything that writes: the error names it, earlier results stay, and with room work continues.

The disk is a small one in memory, which only root may mount; `tests/checkpoints/test_store.py` uses RLIMIT_FSIZE, which
works for other users.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import reading
from resnet_tpu.reports.metrics import MetricsWriter, read_metrics
from resnet_tpu.storage import write_text

PAGE = 4096
TRAINING = (
    "image_size=16,resnet_depth=18,resnet_width=4,precision=float32,num_cores=1,train_batch_size=8,eval_batch_size=8,"
    "iterations_per_loop=1,save_checkpoints_steps=2,steps_per_eval=4,train_steps=8"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk in memory cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def only(disk: Path, pages: int) -> Iterator[None]:
    """Within the block, the disk has room for only so many more pages."""
    filler = disk / "filler"
    free = os.statvfs(disk).f_bavail - pages
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free, 1) * PAGE)
    try:
        yield
    finally:
        filler.unlink()


def digests(folder: Path) -> dict[str, str]:
    """Digests of the files below a folder, by name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_file_that_is_written_whole_names_itself(disk: Path) -> None:
    write_text(str(disk / "a.txt"), "old")
    with only(disk, 1), pytest.raises(OSError, match=f"No space left on device: '{disk}/a.txt'"):
        write_text(str(disk / "a.txt"), "x" * 3 * PAGE)
    assert digests(disk) == {"a.txt": hashlib.sha256(b"old").hexdigest()}


def test_measurements_go_on_after_the_last_whole_row(disk: Path) -> None:
    with MetricsWriter(str(disk)) as writer:
        writer.write("train", {1: {"loss": 1.0}})
        with only(disk, 1), pytest.raises(OSError, match=r"No space left on device: '.*metrics.jsonl'"):
            writer.write("train", {2: {f"loss_{number}": 2.0 for number in range(2000)}})
    with MetricsWriter(str(disk)) as writer:
        writer.write("train", {2: {"loss": 2.0}})
    assert [(row["step"], row["loss"]) for row in read_metrics(str(disk))] == [(1, 1.0), (2, 2.0)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 20 noise photos each."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in "ab":
        (folder / name).mkdir()
        for number in range(20):
            cv2.imwrite(str(folder / name / f"{number}.jpg"), rng.integers(0, 256, (64, 64, 3), np.uint8))
    return folder


@pytest.mark.parametrize("pages", [2, 30, 55])
def test_prepare_goes_on_when_there_is_room(
    pages: int, photos: Path, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--train_shards=4", "--workers=1"]
    with only(disk, pages):
        assert cli.main(["prepare", str(photos), str(disk / "data"), *words]) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and str(disk) in said
    assert not (disk / "data" / "manifest.json").exists()
    assert cli.main(["prepare", str(photos), str(disk / "data"), *words]) == 0
    assert cli.main(["prepare", str(photos), str(tmp_path / "whole"), *words]) == 0
    assert digests(disk / "data").keys() == digests(tmp_path / "whole").keys()
    whole = {name: digest for name, digest in digests(tmp_path / "whole").items() if "_index" not in name}
    assert {name: digest for name, digest in digests(disk / "data").items() if "_index" not in name} == whole


@dataclass(frozen=True)
class Writer:
    """A command, where `{disk}` is the disk and `{run}` a trained run elsewhere.

    pages: amounts of room left that are too little for it.
    """

    words: Sequence[str]
    pages: Sequence[int]
    results: Callable[[Path], object]  # what must equal the results of a run that always had room


def arrays_of(run: Path) -> object:
    """A run's newest checkpoint and all its measurements except times."""
    found = reading.load_all(reading.find(str(run)))
    arrays = [(name, array.tobytes()) for name, array in reading.leaves(found.arrays)]
    return found.step, arrays, [(row["split"], row["step"], row.get("loss")) for row in read_metrics(str(run))]


def newest_bundle(folder: Path) -> object:
    (bundle,) = folder.iterdir()  # nothing is left of the one that failed
    return {name: digest for name, digest in digests(bundle).items() if name != "bundle.json"}


WRITERS = {
    "train": Writer(
        ["train", "--data_dir=synthetic", "--num_label_classes=4", "--num_train_images=32",
         "--num_eval_images=16", f"--params_override={TRAINING}", "--model_dir={disk}/run"],
        [1, 40, 200], lambda disk: arrays_of(disk / "run"),
    ),
    "prune": Writer(
        ["prune", "{run}", "--levels=1", "--rewind_to=4", "--output_dir={disk}/pruned"],
        [1, 40, 200], lambda disk: (disk / "pruned" / "results.csv").read_text(),
    ),
    "export": Writer(
        ["export", "{run}", "{disk}/bundles", "--forms=stablehlo,onnx"],
        [1, 20, 40], lambda disk: newest_bundle(disk / "bundles"),
    ),
    "convert to ours": Writer(
        ["convert", "{run}/../tf1", "{disk}/new"], [1, 40], lambda disk: arrays_of(disk / "new"),
    ),
    "convert to tf1": Writer(
        ["convert", "{run}", "{disk}/tf1", "--to=tf1"], [1, 40], lambda disk: digests(disk / "tf1")
    ),
    "predict": Writer(
        ["predict", "{run}", "--data_dir=synthetic", "--num_test_images=16", "--output_dir={disk}/report"],
        [1, 4], lambda disk: digests(disk / "report"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, and its weights as a TensorFlow 1 checkpoint next to it."""
    folder = tmp_path_factory.mktemp("trained")
    words = [word.replace("{disk}", str(folder)) for word in WRITERS["train"].words]
    assert start([*words, "--lottery_checkpoint_iters=4"]).returncode == 0
    assert start(["convert", str(folder / "run"), str(folder / "tf1"), "--to=tf1"]).returncode == 0
    return folder / "run"


def start(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Runs the program with these words in a process of its own."""
    command, environment = [sys.executable, "-m", "resnet_tpu", *words], os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_says_so_and_goes_on_when_there_is_room(name: str, run: Path, disk: Path, tmp_path: Path) -> None:
    writer = WRITERS[name]
    words = [word.replace("{run}", str(run)) for word in writer.words]
    full = [word.replace("{disk}", str(disk)) for word in words]
    for pages in writer.pages:
        with only(disk, pages):
            done = start(full)
        assert done.returncode == 2, (pages, done.stderr)
        assert "Traceback" not in done.stderr
        assert "space" in done.stderr.lower(), done.stderr
        assert str(disk) in done.stderr
    done = start(full)
    assert done.returncode == 0, done.stderr
    (tmp_path / "whole").mkdir()
    assert start([word.replace("{disk}", str(tmp_path / "whole")) for word in words]).returncode == 0
    assert writer.results(disk) == writer.results(tmp_path / "whole")


def test_output_to_a_full_disk_is_an_error_too() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "resnet_tpu", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
