"""The commands of the original's fine-tuning tutorial, word for word as docs/tensorflow_tpu.md has them.

Only the network is made small, by flags appended to the original's: ResNet-50 at 224 px and batch 1024 needs much
memory.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.reports.events import read_events
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import load_classifier

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


@pytest.mark.long
def test_fine_tuning_then_predicting(folder: Path, golden: Callable[[str], Path]) -> None:
    # the tutorial uses a checkpoint of the original's ResNet-50; this is its ResNet-18 with an eighth of the channels
    meta = json.loads(golden("model/r18/meta.json").read_text())
    variables = len(json.loads(golden("model/r18/variables.json").read_text()))
    width, classes = 512 // meta["settings"]["width_div"], meta["settings"]["num_classes"]
    shutil.copytree(golden("model/r18/start"), folder / "resnet-nhwc-2018-02-07")
    fine_tune, predict = seed_commands()
    said = run(folder, [*fine_tune, *SMALL.split(), "--stem=imagenet"]).stderr
    started = f"Started from resnet-nhwc-2018-02-07/{Path(meta['start_checkpoint']).name}"
    assert f"{started}: {variables - 2} of {variables} variables loaded." in said
    assert f"dense/kernel: [{width}, {classes}] there, [{width}, 5] here" in said
    model_dir = folder / "resnet-tpu-model"
    assert reading.step_of(reading.find(str(model_dir))) == 42
    tags = {scalar.tag for scalar in read_events(str(model_dir))}
    assert {"loss", "learning_rate", "current_epoch"} <= tags
    assert {scalar.step for scalar in read_events(str(model_dir / "eval")) if scalar.tag == "top_1_accuracy"} == {42}
    assert list((model_dir / "plugins" / "profile").rglob("*.xplane.pb"))
    bundle = open_bundle(str(folder / "exported-model"))
    assert load_classifier(bundle)(np.zeros((2, 32, 32, 3), np.uint8)).shape == (2, 5)

    shown = run(folder, [*predict, "--num_cores=1"]).stdout
    assert "20 labelled images: top-1" in shown  # all that there are, of the 372 asked for
    report = json.loads((model_dir / "report" / "test" / "predictions.json").read_text())
    assert report["accuracy"]["num_images"] == 20
    assert report["accuracy"]["top_1"] > 0.5


# The pruning fork's tutorial: its commands are in rewinding.sh; here are smaller numbers for them, and their setting.
REWINDING = Path(__file__).parent / "rewinding.sh"
REWINDING_SIZES = {
    "WHEREVER_IMAGENET_IS_LOCATED": "synthetic", "RESNET_DEPTH=50": "RESNET_DEPTH=8", "112590": "6", "11259": "2",
    "22518,33777,45036,56295,67554,78813,90072,101331,": "",
}  # fmt: skip
REWINDING_SHELL = """
set -eu
python() { shift; "${PYTHON}" -m resnet_tpu.resnet_main ${SMALLER} "$@"; }
gsutil() { shift; mkdir -p "$(dirname "${@: -1}x")"; cp ${@}; }  # it expands patterns itself
"""
REWINDING_SMALLER = (
    "--resnet_width=4 --image_size=16 --num_label_classes=4 --num_train_images=40 --num_eval_images=20 "
    "--train_batch_size=16 --eval_batch_size=20 --precision=float32 --num_cores=1 --steps_per_eval=3 "
    "--train_steps=6 --noskip_host_call --keep_checkpoint_max=99"
)


MEASURED = {"step", "split", "loss", "learning_rate", "top_1_accuracy", "top_5_accuracy"}


def rewinding_sections() -> list[str]:
    """The tutorial's four sections, with local paths and small numbers."""
    text = REWINDING.read_text().replace("gs://${YOUR_BUCKET_HERE}", "${PLACE}")
    for printed, small in REWINDING_SIZES.items():
        text = text.replace(printed, small)
    return re.split(r"^# ## .*$", text, flags=re.MULTILINE)[1:]


def left_by(model_dir: Path) -> dict[str, Any]:
    """What a training leaves, except times and paths: checkpoints bit for bit, measurements, density, names."""
    folder = str(model_dir / folders.CHECKPOINTS)
    return {
        "arrays": {
            f"{step}/{name}": (array.dtype.str, array.shape, array.tobytes())
            for step in folders.steps_in(folder)
            for name, array in reading.load_named(f"{folder}/{step}").items()
        },
        "rows": [{name: row[name] for name in MEASURED & row.keys()} for row in read_metrics(str(model_dir))],
        "density": (model_dir / "density_ratio").read_text(),
    }  # fmt: skip


@pytest.mark.long
def test_the_rewinding_procedures_one_after_the_other(tmp_path: Path) -> None:
    """As printed, fine-tuning reuses the directory of learning-rate rewinding; results equal those of a fresh one."""
    initial, weights, learning_rate, fine_tuning = rewinding_sections()
    fresh = fine_tuning.replace("rewind_lr_model_results", "fresh_model_results")
    (tmp_path / "all.sh").write_text("\n".join([REWINDING_SHELL, initial, weights, learning_rate, fine_tuning, fresh]))
    surroundings = {"PLACE": str(tmp_path), "PYTHON": sys.executable, "SMALLER": REWINDING_SMALLER, "TPU_NAME": "a-tpu"}
    done = subprocess.run(
        ["bash", "all.sh"], cwd=tmp_path, env=os.environ | surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reused, alone = tmp_path / "rewind_lr_model_results", tmp_path / "fresh_model_results"
    assert f"The run that was in {reused} was moved to {reused}/former.1." in done.stderr
    assert left_by(reused) == left_by(alone)
    names = {path.name: Path(path.read_text()).name for path in reused.glob("checkpoint_iter_*")}
    assert names == {"checkpoint_iter_6": "6", "checkpoint_iter_final": "10"}
    # each has only its own steps and evaluations
    for run, steps, evaluated in (
        (tmp_path / "rewind_model_results", [2, 3, 6], [3, 6]),
        (reused / "former.1", [2, 3, 6], [3, 6]),
        (alone, [6, 9, 10], [6, 9, 10]),
    ):
        assert folders.steps_in(str(run / folders.CHECKPOINTS)) == steps
        assert [row["step"] for row in read_metrics(str(run)) if row["split"] == "eval"] == evaluated
