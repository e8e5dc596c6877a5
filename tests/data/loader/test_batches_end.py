"""Unwanted ends of a loader, none of which leaves anything behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu.data.loader.batches import Batches, eval_batches, train_batches
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

KINDS = ["threads", pytest.param("processes", marks=pytest.mark.long)]  # which take a second to start
WaitUntil = Callable[[Callable[[], Any]], None]

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for what is left in /proc")


def config(data_dir: Path, **options: Any) -> DataConfig:
    return DataConfig(**{"data_dir": str(data_dir), "image_size": 16, "num_parallel_calls": 2} | options)


def training(data: DataConfig, batch_size: int = 16) -> Batches:
    return train_batches(open_source(data, "train"), data, batch_size=batch_size, seed=0)


# ---------------------------------------------------------------------------------------------------------- accidents


def test_a_process_that_dies(records: Path) -> None:
    batches = training(config(records, input_workers="processes", cache="decoded"))
    next(batches)
    for child in multiprocessing.active_children():  # as sent to a whole group: the parent may have to save
        os.kill(child.pid or 0, signal.SIGTERM)
        os.kill(child.pid or 0, signal.SIGINT)
    for _ in range(20):
        next(batches)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(UserError, match=r"got a worker process that was killed or crashed.*from its last checkpoint"):
        for _ in range(1000):
            next(batches)
    assert multiprocessing.active_children() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_a_process_that_cannot_start(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # makes Python fail to start
    with pytest.raises(UserError, match="got a worker process that was killed or crashed"):
        next(training(config(records, input_workers="processes")))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_cut_off_under_way(records: Path, kind: str) -> None:
    with training(config(records, input_workers=kind)) as batches:
        next(batches)
        for path in records.glob("train-*"):
            os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(
            RecordError, match=r"Record \d+ of .*/train-0000\d-of-00003 at byte \d+: got \d+ bytes after"
        ):
            for _ in range(1000):
                next(batches)


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_without_what_was_cut_off(records: Path, kind: str) -> None:
    with training(config(records, input_workers=kind, skip_bad_records=True)) as batches:
        next(batches)
        os.truncate(records / "train-00001-of-00003", 100)
        while not batches.skipped:
            next(batches)
        assert next(batches)["weight"].all()
    assert all("train-00001-of-00003" in message and "after its header" in message for message in batches.skipped)


def test_a_file_that_vanishes(records: Path) -> None:
    data = config(records)
    source = open_source(data, "validation")
    (records / "validation-00002-of-00003").unlink()
    with pytest.raises(UserError, match=r"File .*validation-00002-of-00003: got No such file or directory"):
        list(eval_batches(source, data, batch_size=8))


# -------------------------------------------------------------------------------------------------- nothing is left


START = """
import sys
from resnet_tpu.options.config import DataConfig
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.sources.data_dir import open_source

data = DataConfig(data_dir=sys.argv[1], image_size=16, num_parallel_calls=2, input_workers=sys.argv[2], cache="decoded")
batches = train_batches(open_source(data, "train"), data, batch_size=16, seed=0)
for _ in range(4):
    next(batches)
"""
ENDLESS = """
print("going", flush=True)
for _ in batches:
    pass
"""


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        pytest.param("threads", signal.SIGINT, marks=pytest.mark.long),
        ("processes", signal.SIGINT),
        ("processes", signal.SIGKILL),
    ],
)
def test_killed_and_interrupted(
    records: Path, kind: str, end: signal.Signals, wait_until: WaitUntil, is_running: Callable[[int], bool]
) -> None:
    command = [sys.executable, "-c", START + ENDLESS, str(records), kind]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert parent.stdout
    assert parent.stdout.readline() == b"going\n"
    children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    assert len(children) == (3 if kind == "processes" else 0)  # includes Python's resource tracker
    parent.send_signal(end)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode == -end
    assert errors.count(b"Traceback") == (1 if end == signal.SIGINT else 0)  # only from the parent
    wait_until(lambda: not any(map(is_running, children)))


def test_a_script_that_leaves_its_loader_open_runs_once_and_ends(records: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(START + "print('once')\n")  # workers must not run the script again
    command = [sys.executable, str(tmp_path / "train.py"), str(records), "processes"]
    assert subprocess.run(command, check=True, timeout=300, stdout=subprocess.PIPE).stdout == b"once\n"


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_epochs_need_no_more_than_two(records: Path, kind: str, wait_until: WaitUntil) -> None:
    def holdings() -> tuple[int, int, int]:
        """Threads, descriptors, MB of this process and its children."""
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        folders = [Path(f"/proc/{pid}") for pid in pids]
        threads, descriptors = (sum(len([*(folder / part).iterdir()]) for folder in folders) for part in ("task", "fd"))
        pages = sum(int((folder / "statm").read_text().split()[1]) for folder in folders)
        return threads, descriptors, pages * os.sysconf("SC_PAGE_SIZE") >> 20

    asked = config(records, input_workers=kind, cache="decoded", image_size=32)
    with training(asked, batch_size=37) as batches:  # opens what a process opens only once
        next(batches)
    del batches
    before = holdings()
    with training(asked, batch_size=37) as batches:
        for _ in range(2):
            next(batches)
        early = holdings()
        for _ in range(18):
            next(batches)
        late = holdings()
    assert late[0] <= early[0]
    assert late[1] <= early[1] + 12  # files and batches that a worker had not met before
    assert late[2] <= early[2] + 8
    del batches

    def all_is_given_back() -> bool:
        threads, descriptors, _ = holdings()
        return threads <= before[0] and descriptors <= before[1] + 3  # record files stay open

    wait_until(all_is_given_back)
