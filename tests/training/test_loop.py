"""Training as a whole: a resumed run equals an uninterrupted one, 8 devices equal 1, and nothing is lost."""

import dataclasses
import json
import logging
import math
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.errors import NonFiniteError, UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.run_file import write_description
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.reports.metrics import MetricsWriter, read_metrics
from resnet_tpu.training import loop
from resnet_tpu.training.dry_run import dry_run
from resnet_tpu.training.inference.evaluate import evaluate
from resnet_tpu.training.inference.trained import load_trained
from resnet_tpu.training.loop import train
from resnet_tpu.training.maths.state import TrainState
from tests.comparisons import arrays_of, rows_of

TOTAL = 7
BATCH = 16


Tiny = Callable[..., Config]


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with a checkpoint of every step."""
    model_dir = tmp_path_factory.mktemp("whole")
    summary = train(tiny(model_dir, save_checkpoints_steps=1))
    assert summary.step == TOTAL
    return model_dir


@pytest.mark.parametrize("stopped_at", [*(pytest.param(step, marks=pytest.mark.long) for step in (1, 3)), 6])
def test_a_run_resumed_at_any_step_is_the_run_that_never_stopped(
    tiny: Tiny, whole: Path, tmp_path: Path, stopped_at: int
) -> None:
    # what a kill after this checkpoint leaves: the checkpoints up to it, and metrics of later steps too
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for step in range(stopped_at + 1, TOTAL + 1):
        shutil.rmtree(tmp_path / folders.CHECKPOINTS / str(step))
    train(tiny(tmp_path, num_parallel_calls=5))
    expected, found = arrays_of(whole, TOTAL), arrays_of(tmp_path, TOTAL)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []
    assert rows_of(tmp_path) == rows_of(whole)


def test_the_basic_pipeline_changes_nothing(tiny: Tiny, whole: Path, tmp_path: Path) -> None:
    train(tiny(tmp_path, input_pipeline="basic"))
    assert rows_of(tmp_path) == rows_of(whole)


def test_every_step_is_measured_once_and_evaluations_at_their_steps(whole: Path) -> None:
    counts = Counter((row["split"], row["step"]) for row in read_metrics(str(whole)))
    expected = [("train", step) for step in range(TOTAL)] + [("eval", step) for step in (3, 6, 7)]
    assert counts == Counter(expected)


def test_checkpoint_describes_run(whole: Path) -> None:
    meta = reading.read_meta(reading.find(str(whole)))
    assert meta["position"] == TOTAL * BATCH
    assert meta["class_names"] == ["0", "1", "2", "3"]
    assert meta["config"]["resnet_width"] == 4
    assert meta["preprocessing"]["image_size"] == 16


def test_warns_when_batch_size_changes_epochs(tiny: Tiny, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    longer = tiny(whole, train_batch_size=8, train_steps="4epochs")  # after 7 steps of 16 images, 2.8 epochs of 40
    told = (
        "train_steps 4epochs is 20 steps of 8 images. As earlier steps had another batch size, the run ends after 5.4 "
        "epochs: give train_steps=13 for 4epochs."
    )
    assert told in dry_run(longer)
    assert "steps 7 to 20 (5.4 epochs)" in dry_run(longer)
    assert "train_steps" not in dry_run(longer.replace(train_steps=13))
    assert "steps 7 to 13 (4.0 epochs)" in dry_run(longer.replace(train_steps=13))
    assert "another batch size" not in dry_run(tiny(whole, train_batch_size=15, train_steps="4epochs"))
    train(tiny(whole, train_batch_size=32, train_steps="4epochs"))
    assert "5 steps of 32 images. As earlier steps had another batch size, the run ends after 2.8 epochs" in caplog.text
    assert "give train_steps=8 for 4epochs" in caplog.text


def test_a_finished_run_is_left_alone(tiny: Tiny, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ("metrics.jsonl", "config.json")
    before = [(whole / name).read_bytes() for name in kept]
    last = [row for row in read_metrics(str(whole)) if row["split"] == "eval"][-1]
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        summary = train(tiny(whole, seed=7, crop_pct=1.0))
    assert summary.step == TOTAL
    assert summary.evaluation == {name: last[name] for name in ("top_1_accuracy", "top_5_accuracy", "loss")}
    assert "Nothing to train" in caplog.text
    assert "Nothing to train" in dry_run(tiny(whole))
    assert [(whole / name).read_bytes() for name in kept] == before


def test_an_evaluation_that_was_missed_is_made_up_for(tiny: Tiny, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:-1]))  # killed after saving, before evaluating
    assert train(tiny(tmp_path)).evaluation is not None
    assert rows_of(tmp_path) == rows_of(whole)


def test_a_signal_in_an_evaluation_that_was_missed_ends_the_program(
    tiny: Tiny, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics.jsonl").unlink()

    def interrupted(*arguments: Any, **named: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return evaluate(*arguments, **named)

    monkeypatch.setattr(loop, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path))
    assert [row["step"] for row in read_metrics(str(tmp_path))] == [7]


# Orbax leaves tasks behind whose errors are never retrieved
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_newest_checkpoint_is_passed_over(
    tiny: Tiny, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / folders.CHECKPOINTS / str(TOTAL)).rglob("d/*"):
        path.write_bytes(path.read_bytes()[:20])
    assert f"steps {TOTAL - 1} to {TOTAL} " in dry_run(tiny(tmp_path))
    assert f"{folders.CHECKPOINTS}/{TOTAL} cannot be read and would be skipped" in caplog.text
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        train(tiny(tmp_path))
    assert f"{folders.CHECKPOINTS}/{TOTAL} cannot be read and is skipped" in caplog.text
    assert f"Resuming from step {TOTAL - 1}" in caplog.text
    expected, found = arrays_of(whole, TOTAL), arrays_of(tmp_path, TOTAL)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_checkpoints_of_another_network_are_refused_by_leaf_and_shapes(tiny: Tiny, whole: Path) -> None:
    with pytest.raises(UserError, match=r"conv1/norm/mean: got shape \(4,\), expected \(8,\)"):
        train(tiny(whole, resnet_width=8))
    with pytest.raises(UserError, match="no array"):
        train(tiny(whole, resnet_depth=34))


def test_a_checkpoint_is_no_place_for_a_run(tiny: Tiny, whole: Path) -> None:
    for place, what in (("checkpoints", "a folder of checkpoints"), ("checkpoints/4", "a checkpoint")):
        before = sorted(path.name for path in (whole / place).iterdir())
        wanted = rf"^model_dir: got {whole / place}, {what}, expected the folder of a run, which has checkpoints/ in it"
        with pytest.raises(UserError, match=wanted):
            train(tiny(whole / place))
        assert sorted(path.name for path in (whole / place).iterdir()) == before


def test_a_run_among_its_photos_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    for name in ("red", "blue"):
        (tmp_path / name).mkdir()
        for number in range(20):
            cv2.imwrite(str(tmp_path / name / f"{number}.png"), np.zeros((16, 16, 3), np.uint8))
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path, tmp_path / "model"):
        with pytest.raises(UserError, match=rf"^model_dir: got {place}, expected a folder outside of {tmp_path}\."):
            train(tiny(place, data_dir=str(tmp_path), num_label_classes=None, num_train_images=None))
    assert sorted(tmp_path.rglob("*")) == before


def test_train_refuses_modes_that_do_not_train(tiny: Tiny, tmp_path: Path) -> None:
    for mode in ("eval", "predict"):
        with pytest.raises(UserError, match=f"^mode: got {mode}, expected train or train_and_eval"):
            train(tiny(tmp_path / "run", mode=mode))
    assert not list(tmp_path.iterdir())


def test_logs_changed_options(tiny: Tiny, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    train(tiny(tmp_path, base_learning_rate=0.05))
    assert "base_learning_rate 0.1 -> 0.05" in caplog.text


@pytest.mark.long
def test_a_start_that_fails_before_its_first_step_leaves_the_options(
    tiny: Tiny, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "config.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "train_batches", Mock(side_effect=UserError("Photo", "damage", "a photo", "Mend it.")))
        with pytest.raises(UserError, match="Photo: got damage"):
            train(tiny(tmp_path, train_steps=8, num_parallel_calls=7))
    assert (tmp_path / "config.json").read_bytes() == before
    train(tiny(tmp_path, train_steps=8, num_parallel_calls=7))
    assert json.loads((tmp_path / "config.json").read_text())["num_parallel_calls"] == 7


@pytest.mark.long
def test_warns_when_num_train_images_differs_from_the_photos(
    tiny: Tiny, coloured_photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = {"data_dir": str(coloured_photos), "num_label_classes": None, "mode": "train", "train_steps": 1}
    train(tiny(tmp_path, **photos, num_train_images=None))
    assert "an epoch has" not in caplog.text
    train(tiny(tmp_path, **photos | {"train_steps": 2}, num_train_images=40))
    assert "num_train_images is 40, but there are 72 training images: an epoch has 40." in caplog.text


@pytest.mark.long
def test_error_of_overflowing_evaluation_names_checkpoints_to_delete(
    tiny: Tiny, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    told = NonFiniteError("Loss", "nan", "a finite number", "Take an earlier checkpoint.")
    monkeypatch.setattr(loop, "evaluate", Mock(side_effect=told))
    for _ in range(2):  # and when it is started again, which evaluates first
        with pytest.raises(
            NonFiniteError, match=r"is step 7\. To continue from it, delete the later ones\. Lower base"
        ):
            train(tiny(tmp_path, train_steps=8, keep_checkpoint_max=1))  # which may not delete the good one


def test_a_loss_that_is_no_number_stops_with_the_step(tiny: Tiny, tmp_path: Path) -> None:
    growing = {"base_learning_rate": 1e25, "learning_rate_schedule": "constant", "warmup_steps": 0}
    with pytest.raises(NonFiniteError, match=r"Loss at step [123]: got (nan|inf), expected a finite number") as caught:
        train(tiny(tmp_path, **growing, save_checkpoints_steps=100, steps_per_eval=100))
    assert "There is no good checkpoint yet. Lower base_learning_rate" in str(caught.value)


@pytest.mark.parametrize(
    ("collection", "name"),
    [("params", "kernel"), pytest.param("params", "scale", marks=pytest.mark.long), ("batch_stats", "var")],
)
def test_weights_that_are_no_numbers_are_not_saved(tiny: Tiny, tmp_path: Path, collection: str, name: str) -> None:
    """A step's loss is that of the weights before its update, so it can be finite when the new weights are not."""

    def step(state: TrainState, _: DeviceBatch) -> tuple[TrainState, dict[str, jax.Array]]:
        factor = math.nan if state.step == 2 else 1.0
        spoilt = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf * factor if path[-1].key == name else leaf, getattr(state, collection)
        )
        numbers = {metric: jnp.ones(()) for metric in ("loss", "learning_rate", "top_1_accuracy")}
        return dataclasses.replace(state, step=state.step + 1, **{collection: spoilt}), numbers

    expected = (
        r"Sum of the squared weights at step 3: got nan, expected a finite number. The last good checkpoint is step 2"
    )
    with pytest.raises(NonFiniteError, match=expected):
        train(tiny(tmp_path, save_checkpoints_steps=1), train_step=step)
    assert folders.steps_in(str(tmp_path / folders.CHECKPOINTS)) == [1, 2]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("loss",), "Metrics of train_step: got no top_1_accuracy, expected loss and top_1_accuracy among them"),
        (("loss", "top_1_accuracy", "step"), "Metric of train_step: got step, expected none called step, split, time"),
    ],
)
def test_metrics_of_an_own_step_that_cannot_be_recorded_are_refused(
    names: tuple[str, ...], expected: str, tiny: Tiny, tmp_path: Path
) -> None:
    def step(state: TrainState, _: DeviceBatch) -> tuple[TrainState, dict[str, jax.Array]]:
        return dataclasses.replace(state, step=state.step + 1), dict.fromkeys(names, jnp.ones(()))

    with pytest.raises(UserError, match=expected):
        train(tiny(tmp_path), train_step=step)


@pytest.mark.long
@pytest.mark.parametrize(
    "several", [8, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_several_devices_are_one_device_with_global_batch_norm(tiny: Tiny, tmp_path: Path, several: int) -> None:
    losses, arrays = [], []
    for devices in (1, several):
        model_dir = tmp_path / str(devices)
        train(tiny(model_dir, num_cores=devices, batch_norm_scope="global"))
        losses.append([row["loss"] for (split, _), row in sorted(rows_of(model_dir).items()) if split == "train"])
        arrays.append(arrays_of(model_dir, TOTAL))
    # roundings of float32 sums in another order, amplified over seven steps
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-5)
    for name in arrays[0]:
        np.testing.assert_allclose(arrays[0][name], arrays[1][name], rtol=0, atol=2e-4, err_msg=name)


@pytest.mark.long
def test_a_checkpoint_of_one_device_goes_on_on_eight(tiny: Tiny, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / folders.CHECKPOINTS / str(TOTAL))
    train(tiny(tmp_path, num_cores=8, batch_norm_scope="global"))
    expected, found = arrays_of(whole, TOTAL), arrays_of(tmp_path, TOTAL)
    for name in expected:
        np.testing.assert_allclose(expected[name], found[name], rtol=0, atol=1e-5, err_msg=name)


def test_a_batch_that_devices_cannot_share_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"train_batch_size: got 20, expected a multiple of the 8 devices. Use 16 or 24."
    ):
        train(tiny(tmp_path, train_batch_size=20, num_cores=8))


@pytest.mark.long
def test_the_best_is_kept_where_another_process_evaluates(tiny: Tiny, tmp_path: Path) -> None:
    """As `eval --watch` beside a training in mode train does."""

    def evaluate(step: int, _: dict[str, float]) -> None:
        if step in (2, 4):
            with MetricsWriter(str(tmp_path)) as writer:
                row = {"loss": 1.0, "top_1_accuracy": 0.9 if step == 2 else 0.1, "top_5_accuracy": 1.0}
                writer.write("eval", {step: row})

    train(tiny(tmp_path, mode="train", keep_checkpoint_max=1, save_checkpoints_steps=2), on_step=evaluate)
    assert folders.steps_of_run(str(tmp_path)) == [2, 7]


def test_the_newest_and_the_best_are_kept(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: Any, step: int) -> dict[str, float]:
        return {"loss": 1.0, "top_1_accuracy": 0.9 if step == 2 else 0.1, "top_5_accuracy": 1.0}

    monkeypatch.setattr(loop, "evaluate", evaluate)
    train(tiny(tmp_path, keep_checkpoint_max=1, save_checkpoints_steps=100, steps_per_eval=2))
    assert folders.steps_of_run(str(tmp_path)) == [2, TOTAL]


def test_a_run_starts_from_the_weights_of_another_with_a_new_head(
    tiny: Tiny, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"num_label_classes": 3, "train_steps": 1, "mode": "train"}
    options |= {"base_learning_rate": 0.0, "weight_decay": 0.0}
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        train(tiny(tmp_path, resnet_checkpoint=str(whole), **options))
    before, after = arrays_of(whole, TOTAL), arrays_of(tmp_path, 1)
    same = [name for name in before if name.startswith("params") and "dense" not in name]
    assert same and all(np.array_equal(before[name], after[name]) for name in same)
    assert "dense/kernel: [16, 4] there, [16, 3] here" in caplog.text


@pytest.mark.long
def test_bfloat16_trains_and_keeps_float32_parameters(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(tmp_path, precision="bfloat16", train_steps=2))
    trained = load_trained(str(tmp_path), jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",)))
    assert {leaf.dtype.name for leaf in jax.tree.leaves((trained.params, trained.batch_stats))} == {"float32"}


@pytest.mark.long
def test_a_profile_is_captured_for_tensorboard(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(tmp_path, profile_every_n_steps=1, tpu_profile_duration=50, mode="train"))
    assert list((tmp_path / "plugins" / "profile").rglob("*.xplane.pb"))


def test_an_order_that_the_data_do_not_have_is_refused_before_anything_is_written(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    config = tiny(tmp_path, train_steps=1, mode="train")
    with pytest.raises(UserError, match="Leave data_order out"):
        train(config.replace(data_order="pieces"))
    assert not list(tmp_path.glob("*.json"))
    write_description(str(tmp_path), config.replace(data_order="pieces"), ["a"])  # of one without a checkpoint
    assert train(config).step == 1
