"""Moving averages of the weights: the formula, the checkpoints, and what uses them."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.export.export import export_run
from resnet_tpu.training.inference.evaluate import evaluate
from resnet_tpu.training.inference.evaluate_run import evaluate_run
from resnet_tpu.training.inference.trained import load_trained
from resnet_tpu.training.loop import train
from resnet_tpu.training.maths.state import update_average
from resnet_tpu.training.maths.step import make_eval_step, make_output_step
from tests.comparisons import arrays_of

Tiny = Callable[..., Config]

OPTIONS = {
    "moving_average_decay": 0.6, "bn_momentum": 0.0, "mixup_alpha": 0.2, "dropout_rate": 0.2,
    "gradient_accumulation_steps": 2, "base_learning_rate": 3.2,
}  # fmt: skip
"""Options for everything that is random on the device or kept from step to step."""


@pytest.fixture(scope="module")
def averaged(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_dir = tmp_path_factory.mktemp("averaged")
    train(tiny(model_dir, **OPTIONS, save_checkpoints_steps=1))
    return model_dir


def test_the_average_moves_by_the_formula() -> None:
    values = [1.0, 4.0, -2.0]
    average, expected = {"w": jnp.float32(0)}, 0.0
    for updates, value in enumerate(values, 1):
        average = update_average(average, {"w": jnp.float32(value)}, 0.25, jnp.int32(updates))
        decay = (2 / 11, 3 / 12, 0.25)[updates - 1]  # (1 + 3) / (10 + 3) would be more than 0.25
        expected = decay * expected + (1 - decay) * value
        assert float(average["w"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.long
def test_every_checkpoint_holds_the_average_of_those_before(averaged: Path) -> None:
    before, after = arrays_of(averaged, 4, "ema"), arrays_of(averaged, 5, "ema")
    decay = min(0.6, 6 / 15)
    for name in (name for name in after if not name.startswith(("ema", "momentum"))):
        expected = decay * before[f"ema/{name}"] + (1 - decay) * after[name]
        np.testing.assert_allclose(after[f"ema/{name}"], expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("stopped_at", [1, 4])
def test_a_run_resumed_is_the_run_that_never_stopped(
    tiny: Tiny, averaged: Path, tmp_path: Path, stopped_at: int
) -> None:
    shutil.copytree(averaged, tmp_path, dirs_exist_ok=True)
    for step in range(stopped_at + 1, 8):
        shutil.rmtree(tmp_path / folders.CHECKPOINTS / str(step))
    train(tiny(tmp_path, **OPTIONS))
    expected, found = arrays_of(averaged, 7, "ema"), arrays_of(tmp_path, 7, "ema")
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []


@pytest.mark.long
def test_the_average_is_what_is_evaluated_and_exported(tiny: Tiny, averaged: Path, tmp_path: Path) -> None:
    mesh = meshes.make_mesh(1)
    config = tiny(averaged, **OPTIONS, export_dir=str(tmp_path / "exports"), export_forms="stablehlo")
    average, raw = (load_trained(str(averaged), mesh, moving_average=kept) for kept in (True, False))
    recorded = [row for row in read_metrics(str(averaged)) if row["split"] == "eval" and row["step"] == 7][-1]
    eval_step, source = make_eval_step(average.network, config.optimizer), open_source(config.data, "validation")
    own, other = (
        evaluate(eval_step, trained.params, trained.batch_stats, source, config, mesh, step=trained.step)
        for trained in (average, raw)
    )
    assert recorded["loss"] == pytest.approx(own["loss"], rel=1e-6)
    assert abs(own["loss"] - other["loss"]) > 1e-3  # so it matters which weights are used
    assert evaluate_run(config.replace(mode="eval"))["loss"] == pytest.approx(own["loss"], rel=1e-6)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    predict = make_output_step(average.network, "probabilities")
    for asked, trained in ((True, average), (False, raw)):
        bundle = open_bundle(export_run(config.replace(export_moving_average=asked)))
        assert bundle.description["moving_average"] == asked
        exported = load_classifier(bundle)
        np.testing.assert_allclose(
            exported(images), predict(trained.params, trained.batch_stats, jnp.asarray(images)), atol=1e-6
        )


def test_a_run_that_kept_no_average_does_not_begin_one_midway(tiny: Tiny, tmp_path: Path) -> None:
    options: dict[str, Any] = {"mode": "train", "bn_momentum": 0.0}
    train(tiny(tmp_path, **options, train_steps=1))
    with pytest.raises(UserError, match="got no moving averages, expected those that moving_average_decay asks for"):
        train(tiny(tmp_path, **options, train_steps=2, moving_average_decay=0.6))


@pytest.mark.long
def test_an_average_that_is_no_longer_wanted_is_left(
    tiny: Tiny, averaged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(averaged, tmp_path, dirs_exist_ok=True)
    with caplog.at_level(logging.WARNING, logger="resnet_tpu"):
        train(tiny(tmp_path, **(OPTIONS | {"moving_average_decay": 0.0}), train_steps=8))
    assert "moving_average_decay 0.6 -> 0.0" in caplog.text
    names = reading.load_named(str(tmp_path / folders.CHECKPOINTS / "8"), ("params", "momentum"))
    assert len(names) == 2 * len(jax.tree.leaves(load_trained(str(tmp_path), meshes.make_mesh(1)).params))
