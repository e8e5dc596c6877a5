"""Pruning with several processes: the same phases as with one, each recorded once."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu.options.config import Config
from resnet_tpu.pruning.experiment import prune_run
from resnet_tpu.pruning.options import Experiment
from resnet_tpu.pruning.outcome import read_outcomes
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.loop import train
from tests.comparisons import all_arrays_of

LAST, EARLY = 4, 2
LEVELS = ("level_01", "level_02")


@pytest.mark.slow
def test_two_processes_prune_as_one_with_two_devices(
    started: Callable[..., AbstractContextManager[list[Any]]], tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    options: dict[str, Any] = {
        "data_dir": "synthetic", "model_dir": str(ours), "num_cores": 2, "image_size": 16, "num_label_classes": 4,
        "num_train_images": 40, "num_eval_images": 37, "resnet_depth": 8, "resnet_width": 4, "precision": "float32",
        "train_batch_size": 16, "eval_batch_size": 16, "learning_rate_schedule": "constant", "train_steps": LAST,
        "iterations_per_loop": 2, "save_checkpoints_steps": 1, "keep_checkpoint_max": 1000,
    }  # fmt: skip
    train(Config().replace(**options))
    shutil.copytree(ours, theirs)
    prune_run(str(ours), str(tmp_path / "alone"), Experiment(levels=2, rewind_to=EARLY))
    words = ["prune", str(theirs), "--levels=2", f"--rewind_to={EARLY}", f"--output_dir={tmp_path / 'together'}"]
    said = ""
    for _ in range(2):
        with started(tmp_path, dict.fromkeys(range(2), words)) as processes:
            ends = [process.end() for process in processes]
        assert [code for code, _ in ends] == [0, 0], ends
        said = ends[0][1]
    assert "Step " not in said  # the second call finds everything done

    for level in LEVELS:
        alone, together = (tmp_path / who / "seed_0" / "lr_rewinding" / level for who in ("alone", "together"))
        assert steps_and_splits(together) == steps_and_splits(alone)
    first, second = (
        all_arrays_of(tmp_path / who / "seed_0" / "lr_rewinding" / LEVELS[0], EARLY) for who in ("alone", "together")
    )
    assert first.keys() == second.keys()
    for name in first:  # pruned from the same checkpoint
        np.testing.assert_array_equal(first[name], second[name], name)
    outcomes = read_outcomes([str(tmp_path / "together")])
    assert [round(outcome.density, 2) for outcome in outcomes] == [1.0, 0.8, 0.64]


def steps_and_splits(model_dir: Path) -> list[tuple[int, str]]:
    """What was recorded, in order."""
    return [(row["step"], row["split"]) for row in read_metrics(str(model_dir))]
