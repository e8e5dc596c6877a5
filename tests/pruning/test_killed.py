"""`resnet-tpu prune` killed twice in the middle of a level: the final result is as if it had never been killed."""

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu.checkpoints import store
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.experiment import prune_run
from resnet_tpu.pruning.options import Experiment
from resnet_tpu.training.loop import train

LAST, EARLY = 24, 2


def start(dense: Path, output: Path) -> subprocess.Popen[bytes]:
    words = ["prune", str(dense), "--levels=2", f"--rewind_to={EARLY}", f"--output_dir={output}"]
    return subprocess.Popen([sys.executable, "-m", "resnet_tpu", *words], stdout=subprocess.DEVNULL)


def kill_in(level: Path, dense: Path, output: Path) -> list[int]:
    """Starts pruning, kills it once the level has a checkpoint of its own, and returns the steps saved by then."""
    process = start(dense, output)
    until = time.monotonic() + 300
    while not any(step > EARLY for step in store.steps_in(str(level / store.FOLDER))):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return store.steps_in(str(level / store.FOLDER))


@pytest.mark.slow
def test_killed_twice_in_the_middle_of_a_level(tmp_path: Path) -> None:
    dense, killed, whole = (tmp_path / name for name in ("dense", "killed", "whole"))
    train(
        Config().replace(
            data_dir="synthetic", model_dir=str(dense), image_size=16, num_label_classes=4, num_train_images=40,
            num_eval_images=20, resnet_depth=18, resnet_width=4, precision="float32", train_batch_size=16,
            eval_batch_size=20, train_steps=LAST, steps_per_eval=LAST, iterations_per_loop=2, save_checkpoints_steps=2,
            num_cores=1, lottery_checkpoint_iters=str(EARLY),
        )
    )  # fmt: skip
    folder = killed / "seed_0" / "lr_rewinding"
    for level in ("level_01", "level_02"):
        saved = kill_in(folder / level, dense, killed)
        assert EARLY < saved[-1] < LAST
    first = sorted(path.stat().st_mtime_ns for path in (folder / "level_01" / store.FOLDER).rglob("*"))
    assert start(dense, killed).wait() == 0
    assert sorted(path.stat().st_mtime_ns for path in (folder / "level_01" / store.FOLDER).rglob("*")) == first
    outcomes = prune_run(str(dense), str(whole), Experiment(levels=2, rewind_to=EARLY))
    with (killed / "phases.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, outcome in zip(rows, outcomes, strict=True):
        assert (row["level"], int(row["step"])) == (outcome.level, outcome.step)
        assert float(row["density"]) == outcome.density
        assert float(row["top_1_accuracy"]) == outcome.top_1_accuracy
        ours, theirs = (store.load_named(store.find(found)) for found in (row["model_dir"], outcome.model_dir))
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            np.testing.assert_array_equal(array, theirs[name], name)
