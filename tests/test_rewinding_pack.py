"""The paper's experiment can move to another machine as a pack, and ends as if it had never been packed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import rewinding
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.loop import train

OPTIONS: dict[str, Any] = {
    "data_dir": "synthetic", "image_size": 16, "num_label_classes": 4, "num_train_images": 16, "num_eval_images": 8,
    "resnet_depth": 8, "resnet_width": 4, "train_batch_size": 8, "eval_batch_size": 8, "steps_per_eval": 2,
    "iterations_per_loop": 1, "save_checkpoints_steps": 2, "keep_checkpoint_max": 1, "train_steps": 6,
    "lottery_checkpoint_iters": "1", "num_cores": 1,
}  # fmt: skip


@pytest.mark.long
def test_an_unpacked_training_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewinding, "KEPT_ROWS", 2)
    first, packed, second = (tmp_path / name for name in ("first", "packed", "second"))
    (model_dir, other) = (folder / "base_0" for folder in (first, second))
    config = Config().replace(**OPTIONS)
    train(config.replace(model_dir=str(model_dir), train_steps=4))
    rewinding.pack(first, packed)
    rewinding.unpack(packed, second)
    assert folders.steps_in(str(other / folders.CHECKPOINTS)) == [1, 4]
    for folder in (model_dir, other):
        train(config.replace(model_dir=str(folder)))
    names = ("params", "batch_stats", "momentum")
    ends = [reading.load_named(reading.find(str(folder)), names) for folder in (model_dir, other)]
    assert ends[0].keys() == ends[1].keys()
    for name, array in ends[0].items():
        np.testing.assert_array_equal(array, ends[1][name])
    evaluated = [[row for row in read_metrics(str(folder)) if row["split"] == "eval"] for folder in (model_dir, other)]
    assert [(row["step"], row["loss"]) for row in evaluated[0]] == [(row["step"], row["loss"]) for row in evaluated[1]]

    with pytest.raises(UserError, match=r"an experiment that has begun, expected a folder without one"):
        rewinding.unpack(packed, second)


def test_without_images_it_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no images in its folder data, .* Run resnet-tpu prepare cifar10 .*/data"):
        rewinding.run(tmp_path, "float32")
    assert not list(tmp_path.iterdir())


def test_work_done_in_one_precision_is_continued_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    once, *others = rewinding.commands("bfloat16")
    rows = [
        {"command": once, "cpu_hours": 1.0, "ended": "done"},
        {"command": others[0], "cpu_hours": 1.0, "ended": "lost"},
    ]
    (tmp_path / rewinding.STARTS).write_text(json.dumps(rows))
    started: list[list[str]] = []
    monkeypatch.setattr(rewinding, "_run", lambda folder, arguments: started.append(arguments))
    rewinding.run(tmp_path, "float32")
    assert started == list(rewinding.commands("float32"))[1:]


def test_what_combine_reads_travels_with_a_pack(tmp_path: Path) -> None:
    first, packed, second = (tmp_path / name for name in ("first", "packed", "second"))
    (first / "pruned_0" / "begun" / folders.CHECKPOINTS / "7").mkdir(parents=True)  # as yet without options
    (first / "pruned_0" / "phases.csv").write_text("model_dir\n")
    second.mkdir()
    rewinding.pack(first, packed)
    rewinding.unpack(packed, second)
    assert (second / "pruned_0" / "phases.csv").read_text() == "model_dir\n"
    assert len((packed / "progress.csv").read_text().splitlines()) == 1
