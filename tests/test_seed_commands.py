"""The commands of the original's fine-tuning tutorial, word for word as docs/tensorflow_tpu.md has them.

Only the network is made small, by flags after the original's: its ResNet-50 at 224 px and batch 1024 needs much memory.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu.checkpoints import store
from resnet_tpu.export.bundle import load_classifier, open_bundle
from resnet_tpu.reports.events import read_events

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tensorflow_tpu.md"
SMALL = "--resnet_depth=18 --resnet_width=8 --image_size=32 --precision=float32 --num_cores=1"
FLOWERS = {
    "daisy": (230, 230, 230), "dandelion": (40, 220, 240), "roses": (60, 40, 200), "sunflowers": (20, 170, 230),
    "tulips": (180, 80, 200),
}  # fmt: skip


def seed_commands() -> list[list[str]]:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line)[1:] for line in block.replace("\\\n", " ").splitlines()]


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with `data`, prepared from 40 photos of each flower."""
    rng = np.random.default_rng(0)
    for name, colour in FLOWERS.items():
        (tmp_path / "flower_photos" / name).mkdir(parents=True)
        for number in range(40):
            photo = np.clip(np.array(colour) + rng.normal(0, 40, (40, 50, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "flower_photos" / name / f"{number}.jpg"), photo)
    run(tmp_path, ["-m", "resnet_tpu", "prepare", "flower_photos", "data", "--workers=1"])
    return tmp_path


def test_fine_tuning_then_predicting(folder: Path, golden: Path) -> None:
    # the tutorial's checkpoint is the original's ResNet-50; this is one of its ResNet-18 with an eighth of the channels
    shutil.copytree(golden / "model" / "r18" / "start", folder / "resnet-nhwc-2018-02-07")
    fine_tune, predict = seed_commands()
    said = run(folder, [*fine_tune, *SMALL.split(), "--stem=imagenet"]).stderr
    assert "Started from resnet-nhwc-2018-02-07/model.ckpt-1251: 105 of 107 variables loaded." in said
    assert "dense/kernel: [64, 10] there, [64, 5] here" in said
    model_dir = folder / "resnet-tpu-model"
    assert store.step_of(store.find(str(model_dir))) == 42
    tags = {scalar.tag for scalar in read_events(str(model_dir))}
    assert {"loss", "learning_rate", "current_epoch"} <= tags
    assert {scalar.step for scalar in read_events(str(model_dir / "eval")) if scalar.tag == "top_1_accuracy"} == {42}
    assert list((model_dir / "plugins" / "profile").rglob("*.xplane.pb"))
    bundle = open_bundle(str(folder / "exported-model"))
    assert load_classifier(bundle)(np.zeros((2, 32, 32, 3), np.uint8)).shape == (2, 5)

    shown = run(folder, [*predict, "--num_cores=1"]).stdout
    assert "20 labelled images: top-1" in shown  # of the 372 asked for, all there are
    report = json.loads((model_dir / "report" / "test" / "predictions.json").read_text())
    assert report["accuracy"]["num_images"] == 20
    assert report["accuracy"]["top_1"] > 0.5
