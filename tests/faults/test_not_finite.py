"""Non-finite numbers are no result: every verb stops, says where they are and what to try, and writes none of them.

Tested with weights that are not finite, and with finite weights whose activations overflow.
"""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
import pytest

from resnet_tpu import cli, resnet_main
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.checkpoints.writing import write_model_dir
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.reports.metrics import MetricsWriter, read_metrics
from resnet_tpu.reports.run_curves import curves_path

STEP = 7
EARLIER = "take an earlier checkpoint"

Verb = Callable[..., str]
Spoil = Callable[[Any, np.ndarray], np.ndarray]


def with_nan(path: Any, leaf: np.ndarray) -> np.ndarray:
    """Replaces one number of one kernel by NaN."""
    if [key.key for key in path[-5:]] == ["group1", "block1", "conv1", "conv", "kernel"]:
        leaf = leaf.copy()
        leaf.flat[3] = np.nan
    return leaf


def with_overflow(path: Any, leaf: np.ndarray) -> np.ndarray:
    """Makes norm scales so large that activations overflow within two layers."""
    return leaf * np.float32(1e25) if path[-1].key == "scale" else leaf


def with_unknown_statistics(path: Any, leaf: np.ndarray) -> np.ndarray:
    """Spoils running statistics, which evaluation uses but training does not."""
    return np.full_like(leaf, np.nan) if path[-1].key == "mean" else leaf


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Spoil], Path]:
    """Writes a `model_dir` with one checkpoint, with its arrays changed by a function, once for each."""

    @functools.cache
    def write(spoil: Spoil) -> Path:
        config = Config().replace(
            data_dir="synthetic", image_size=16, num_label_classes=4, num_train_images=16, num_eval_images=12,
            resnet_depth=8, resnet_width=4, precision="float32", train_batch_size=8, eval_batch_size=8,
            train_steps=STEP, steps_per_eval=STEP, num_cores=1,
        )  # fmt: skip
        params, batch_stats = jax.tree.map(np.asarray, network_of(config).init(0))
        ones = jax.tree_util.tree_map_with_path(
            lambda path, leaf: np.ones_like(leaf) if path[-1].key == "scale" else leaf, params
        )
        arrays: dict[str, Any] = {"params": ones, "batch_stats": batch_stats}
        arrays = jax.tree_util.tree_map_with_path(spoil, arrays)
        momentum = jax.tree.map(np.zeros_like, params)
        target = tmp_path_factory.mktemp("spoilt") / "run"
        write_model_dir(str(target), config, {"step": STEP, "momentum": momentum, **arrays}, list("abcd"))
        return target

    return write


@pytest.fixture
def model_dir(spoilt: Callable[[Spoil], Path], tmp_path: Path) -> Callable[[Spoil], Path]:
    """Gives a test its own copy of such a `model_dir`."""
    return lambda spoil: Path(shutil.copytree(spoilt(spoil), tmp_path / "run"))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "one.png"
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8))
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Runs a command that must end with exit code 2 and print nothing to stdout; returns its message."""

    def run(*arguments: object) -> str:
        assert cli.main([str(argument) for argument in arguments]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err

    return run


@pytest.mark.parametrize("spoil", [with_nan, with_overflow])
def test_eval(spoil: Any, model_dir: Callable[[Spoil], Path], refused: Verb) -> None:
    run = model_dir(spoil)
    before = sorted(run.rglob("*"))
    message = refused("eval", run)
    assert f"Loss at step {STEP}, batch 1 of 2 of the evaluation: got nan, expected a finite number" in message
    cause = "not finite either (params/group1/block1/conv1/conv/kernel)" if spoil is with_nan else "too large"
    assert cause in message
    assert EARLIER in message
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("spoil", [with_nan, with_overflow])
def test_predict(spoil: Any, model_dir: Callable[[Spoil], Path], refused: Verb, picture: Path) -> None:
    run = model_dir(spoil)
    output = run.parent / "report"
    message = refused("predict", run, picture, "--format=csv", f"--output_dir={output}")
    assert f"Probabilities at step {STEP}, batch 1 of 1: got nan, expected a finite number" in message
    assert EARLIER in message
    assert not output.exists()


def test_export_of_weights_that_are_not_finite(model_dir: Callable[[Spoil], Path], refused: Verb) -> None:
    run = model_dir(with_nan)
    exported = run.parent / "exported"
    message = refused("export", run, exported, "--forms=stablehlo,onnx")
    expected = "got nan or inf in group1/block1/conv1/kernel, expected finite numbers"
    assert f"Weights of step {STEP}: {expected}" in message
    assert list(exported.glob("*")) == []


@pytest.mark.long
def test_a_bundle_of_a_network_that_overflows(
    model_dir: Callable[[Spoil], Path], refused: Verb, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found when the bundle runs: by predict, by serve, and by --verify, which keeps none. int8 is not even made."""
    run = model_dir(with_overflow)
    exported = run.parent / "exported"
    assert cli.main(["export", str(run), str(exported), str(picture), "--forms=stablehlo,onnx", "--verify"]) == 2
    shown = capsys.readouterr()
    assert f"Logits of trained network, float32, step {STEP}, batch 1 of 1: got nan" in shown.err
    assert "logits differ" not in shown.out
    assert not exported.exists()
    assert cli.main(["export", str(run), str(exported), "--forms=stablehlo,onnx"]) == 0
    capsys.readouterr()
    (bundle,) = exported.iterdir()
    for form in ("stablehlo", "onnx"):
        message = refused("predict", bundle, picture, f"--form={form}", "--format=json")
        assert f"Probabilities of {bundle}, step {STEP}, batch 1 of 1: got nan" in message
    message = refused("serve", exported, "--port=0")
    assert f"Logits of bundle {bundle}, step {STEP}: got nan" in message
    message = refused("export", run, exported, "--forms=int8")
    assert "Calibration of int8" in message
    assert list(exported.iterdir()) == [bundle]


@pytest.mark.parametrize("target", ["weights.safetensors", "tf1"])
def test_convert(target: str, model_dir: Callable[[Spoil], Path], refused: Verb, tmp_path: Path) -> None:
    run = model_dir(with_nan)
    how = ["--to=tf1"] if target == "tf1" else []
    message = refused("convert", run, tmp_path / target, *how)
    assert "got nan or inf in params/group1/block1/conv1/conv/kernel, expected finite numbers" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.long
def test_training_from_such_weights(model_dir: Callable[[Spoil], Path], refused: Verb, tmp_path: Path) -> None:
    run = model_dir(with_nan)
    for also in (["--dry_run"], []):
        message = refused("train", f"--model_dir={tmp_path / 'new'}", f"--resnet_checkpoint={run}", *like(run), *also)
        assert "got nan or inf in params/group1/block1/conv1/conv/kernel, expected finite numbers" in message
    message = refused("train", f"--model_dir={run}", *like(run, train_steps=STEP + 1))
    assert f"Sum of the squared weights at step {STEP}: got nan, expected a finite number" in message
    assert "There is no good checkpoint yet. Delete the ones that exist. Lower base_learning_rate" in message


def like(run: Path, **changes: Any) -> list[str]:
    """The options of the training in `run` that describe its data and network, with changes."""
    flat = config_of(reading.read_meta(reading.find(str(run)))).flat() | changes
    names = (
        "data_dir", "image_size", "num_label_classes", "num_train_images", "num_eval_images", "resnet_depth",
        "resnet_width", "precision", "train_batch_size", "eval_batch_size", "train_steps", "num_cores",
    )  # fmt: skip
    return [*(f"--{name}={flat[name]}" for name in names), "--steps_per_eval=1251"]  # so none is due at its step


def test_training_on_from_such_statistics(model_dir: Callable[[Spoil], Path], refused: Verb) -> None:
    run = model_dir(with_unknown_statistics)
    message = refused("train", f"--model_dir={run}", *like(run, train_steps=STEP + 1))
    assert f"Sum of the squared weights at step {STEP}: got nan, expected a finite number" in message
    assert folders.steps_in(str(run / folders.CHECKPOINTS)) == [STEP]
    assert read_metrics(str(run)) == []


def test_prune(model_dir: Callable[[Spoil], Path], refused: Verb, tmp_path: Path) -> None:
    run, output = model_dir(with_nan), tmp_path / "pruned"
    with MetricsWriter(str(run)) as writer:  # as earlier versions wrote it, which took this for a result
        writer.write("eval", {STEP: {"loss": float("nan"), "top_1_accuracy": 0.5, "top_5_accuracy": 1.0}})
    Path(curves_path(str(run))).parent.mkdir()
    Path(curves_path(str(run))).touch()
    arguments = ("prune", run, f"--output_dir={output}", "--retrain=fine_tuning", "--levels=1", "--rewind_to=3")
    message = refused(*arguments)
    assert f"Loss at step {STEP}, batch 1 of 2 of the evaluation: got nan" in message
    with MetricsWriter(str(run)) as writer:
        writer.write("eval", {STEP: {"loss": 1.0, "top_1_accuracy": 0.5, "top_5_accuracy": 1.0}})
    message = refused(*arguments)
    assert f"Weights of step {STEP} in {run}: got nan or inf in params/group1/block1/conv1/conv/kernel" in message
    assert list(output.rglob("*.csv")) == list(output.rglob("*.png")) == []


def test_pruning_by_the_flags_of_the_original(
    model_dir: Callable[[Spoil], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, new = model_dir(with_nan), tmp_path / "new"
    flags = (f"--model_dir={new}", "--lottery_prune_at=reinitialize", f"--lottery_reset_to={run}")
    assert resnet_main.main([*flags, *like(run)]) == 2
    assert f"Weights of {run}: got nan or inf in params/group1/block1/conv1/conv/kernel" in capsys.readouterr().err
    assert not new.exists()


def test_compact(model_dir: Callable[[Spoil], Path], refused: Verb, tmp_path: Path) -> None:
    run = model_dir(with_nan)
    message = refused("compact", run, tmp_path / "small")
    assert f"Weights of step {STEP} in {run}: got nan or inf in params/group1/block1/conv1/conv/kernel" in message
    assert not (tmp_path / "small").exists()
