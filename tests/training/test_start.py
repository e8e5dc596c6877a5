"""Where a training begins: a run of the original is continued, and weights bring the options that they need."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu.checkpoints import folders, reading, tf1, tf1_bundle, torch_files
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordWriter
from resnet_tpu.errors import UserError
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.options.run_file import read_run
from resnet_tpu.training.dry_run import dry_run
from resnet_tpu.training.inference.predict import predict
from resnet_tpu.training.loop import train
from resnet_tpu.training.run import keep_earlier_steps
from tests.comparisons import arrays_of

Tiny = Callable[..., Config]

AVERAGED = {"moving_average_decay": 0.6, "bn_momentum": 0.0}


def network_of(config: Config, num_classes: int = 4) -> Network:
    return create_network(config.model, num_classes=num_classes, image_size=config.data.image_size)


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with moving averages and a checkpoint of every step."""
    model_dir = tmp_path_factory.mktemp("whole")
    train(tiny(model_dir, **AVERAGED, save_checkpoints_steps=1))
    return model_dir


def write_original(config: Config, model_dir: Path, step: int, folder: Path) -> str:
    """Our checkpoint of `step` as the original would have saved it."""
    flat = arrays_of(model_dir, step, "ema") | {"step": np.int32(step)}
    arrays: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split("/")
        place = arrays
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return tf1.write_checkpoint(str(folder), network_of(config), arrays)


def test_a_training_of_the_original_goes_on_as_if_it_were_ours(
    tiny: Tiny, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny(tmp_path, **AVERAGED)
    prefix = write_original(config, whole, 3, tmp_path)
    assert "steps 3 to 7 " in dry_run(config.replace(resnet_checkpoint="nowhere"))  # which is not looked at either
    with pytest.raises(UserError, match="Checkpoint: got 10 convolutions, expected 22"):
        dry_run(config.replace(resnet_depth=20))
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        train(config)
    assert f"Resuming from step 3 of the original's checkpoint {prefix}" in caplog.text
    expected, found = arrays_of(whole, 7, "ema"), arrays_of(tmp_path, 7, "ema")
    assert expected.keys() == found.keys()
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []


def test_slots_of_another_optimizer_are_refused_and_averages_that_are_dropped_are_named(
    tiny: Tiny, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = write_original(tiny(tmp_path, **AVERAGED), whole, 3, tmp_path)
    config = tiny(tmp_path, train_steps=4)
    message = rf"Optimizer slots of {prefix}: got those of momentum .*, expected those of LARS .*--init_from"
    for begin in (train, dry_run):
        with pytest.raises(UserError, match=message):
            begin(config.replace(enable_lars=True, learning_rate_schedule="step"))
    with caplog.at_level(logging.WARNING, logger="resnet_tpu"):
        train(config)
    assert "Its moving averages are dropped, because moving_average_decay is not set." in caplog.text


def test_damaged_run_of_the_original_is_refused_and_not_changed(tiny: Tiny, whole: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path, **AVERAGED)
    data = Path(f"{write_original(config, whole, 3, tmp_path)}.data-00000-of-00001")
    whole_bytes = data.read_bytes()
    data.write_bytes(whole_bytes[:2000])
    with pytest.raises(UserError, match=r"model.ckpt-3.data-00000-of-00001: got 2000 bytes"):
        train(config)
    data.write_bytes(whole_bytes)
    assert "steps 3 to 7 " in dry_run(config)


@pytest.fixture(scope="module")
def torchvision_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """torchvision's resnet18 with 4 classes, in torchvision's file format."""
    model = Config().replace(
        resnet_depth=18, pool_padding="symmetric", project_first_group=False, precision="float32"
    ).model  # fmt: skip
    network = create_network(model, num_classes=4, image_size=64)
    path = tmp_path_factory.mktemp("torchvision") / "resnet18.safetensors"
    arrays: dict[str, Any] = dict(zip(("params", "batch_stats"), network.init(1), strict=True))
    torch_files.write_safetensors(str(path), network, arrays)
    return path


@pytest.mark.long
def test_options_of_weights_are_kept_by_the_run(
    tiny: Tiny, torchvision_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"resnet_depth": 18, "resnet_width": None, "stem": "imagenet"}
    options |= {"resnet_checkpoint": str(torchvision_file)}
    config = tiny(tmp_path, image_size=32, train_steps=1, base_learning_rate=0.0, weight_decay=0.0, **options)
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        train(config)
    assert "pool_padding = symmetric, project_first_group = False" in caplog.text
    run = read_run(str(tmp_path))
    assert run and run.values["pool_padding"] == "symmetric"
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        train(config.replace(train_steps=2))  # the same command again
    assert f"To match the checkpoints in {tmp_path}: pool_padding = symmetric" in caplog.text
    assert "that differ" not in caplog.text or "pool_padding" not in caplog.text.split("that differ")[1]


@pytest.mark.long
def test_source_and_licence_stay_with_weights_from_run_to_run(
    tiny: Tiny, torchvision_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = {"weights_origin": "hf:timm/resnet18@0123 sha256:4567", "weights_licence": "apache-2.0"}
    named = {"known": (str(torchvision_file), origin)}
    monkeypatch.setattr("resnet_tpu.checkpoints.pretrained.fetch", named.get)
    options: dict[str, Any] = {"resnet_depth": 18, "resnet_width": None, "stem": "imagenet", "image_size": 32}
    config = tiny(tmp_path / "one", train_steps=1, resnet_checkpoint="known", **options)
    train(config)
    train(config.replace(train_steps=2))  # the same command again
    train(tiny(tmp_path / "two", train_steps=1, resnet_checkpoint=str(tmp_path / "one"), **options))
    for name, step in (("one", 1), ("one", 2), ("two", 1)):
        meta = reading.read_meta(str(tmp_path / name / folders.CHECKPOINTS / str(step)))
        assert origin.items() <= meta["config"].items(), (name, step)
        run = read_run(str(tmp_path / name))
        assert run and origin.items() <= run.values.items()


def test_a_run_that_is_there_keeps_its_weights(
    tiny: Tiny, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / folders.CHECKPOINTS / "7")
    with caplog.at_level(logging.WARNING, logger="resnet_tpu"):
        train(tiny(tmp_path, **AVERAGED, resnet_checkpoint="other"))
    assert f"resnet_checkpoint other is not used: {tmp_path} has checkpoints." in caplog.text
    expected, found = arrays_of(whole, 7), arrays_of(tmp_path, 7)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    run = read_run(str(tmp_path))
    assert run and run.values["resnet_checkpoint"] == ""


@pytest.mark.long
def test_checkpoints_that_a_run_was_to_keep_for_ever_are_kept_by_later_starts(tiny: Tiny, tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep_checkpoint_max": 1, "mode": "train"}
    train(tiny(tmp_path, train_steps=3, lottery_checkpoint_iters="0,1", **options))
    train(tiny(tmp_path, train_steps=7, lottery_checkpoint_iters="4", **options))
    assert folders.steps_of_run(str(tmp_path)) == [0, 1, 4, 7]
    assert keep_earlier_steps(tiny(tmp_path, **options)).train.lottery_checkpoint_iters == "0,1,4"


def test_weights_of_another_depth_are_refused_before_anything_is_written(
    tiny: Tiny, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="resnet_depth 8 there, 34 here"):
        train(tiny(tmp_path / "new", resnet_depth=34, resnet_checkpoint=str(whole)))
    assert not (tmp_path / "new" / "config.json").exists()


@pytest.mark.long
def test_a_training_starts_from_weights_of_the_original(tiny: Tiny, whole: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path / "new", train_steps=1, base_learning_rate=0.0, weight_decay=0.0)
    prefix = write_original(config, whole, 7, tmp_path / "original")
    assert "conv2d/kernel" in tf1_bundle.read_bundle(prefix)
    train(config.replace(resnet_checkpoint=prefix))
    before, after = arrays_of(whole, 7), arrays_of(tmp_path / "new", 1)
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("params"))


@pytest.mark.long
def test_class_names_stay_once_they_are_known(coloured_photos: Path, tiny: Tiny, tmp_path: Path) -> None:
    """TFRecords without a manifest give class names only where labels are counted, not where their number is given."""
    data_dir, model_dir = tmp_path / "data", tmp_path / "run"
    data_dir.mkdir()
    for split in ("train", "validation"):
        with RecordWriter(str(data_dir / f"{split}-0")) as writer:
            for label, name in enumerate(("blue", "green", "red"), 1):
                for photo in sorted((coloured_photos / name).iterdir())[:8]:
                    features = {"image/encoded": photo.read_bytes(), "image/class/label": label}
                    writer.write(encode_example(features | {"image/class/text": name}))
    numbers, colours = ["0", "1", "2"], ["blue", "green", "red"]
    for step, (given, names) in enumerate(((3, numbers), (None, colours), (3, colours)), 1):
        counts = {"num_label_classes": given, "num_train_images": None, "num_eval_images": None}
        train(tiny(model_dir, data_dir=str(data_dir), mode="train", train_steps=step, **counts))
        assert (model_dir / "labels.txt").read_text().split() == names
        assert reading.read_meta(reading.find(str(model_dir)))["class_names"] == names
    predictions = predict(Config().replace(model_dir=str(model_dir), num_cores=1), split="validation")
    assert (len(predictions.names), predictions.class_names) == (24, colours)
    for name in colours[:2]:
        shutil.copytree(coloured_photos / name, tmp_path / "two" / name)
    for attempt in (dry_run, train):
        with pytest.raises(UserError, match=r"Classes of .*two: got blue, green, expected blue, green, red"):
            attempt(tiny(model_dir, data_dir=str(tmp_path / "two"), mode="train", num_label_classes=None))


def test_a_dry_run_refuses_another_network_as_the_training_does(tiny: Tiny, whole: Path) -> None:
    for attempt in (dry_run, train):
        with pytest.raises(UserError, match=f"Checkpoint {whole}/checkpoints/7"):
            attempt(tiny(whole, **AVERAGED, resnet_width=8))


@pytest.mark.long
def test_a_dry_run_refuses_averages_that_were_not_kept_as_the_training_does(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(tmp_path, train_steps=1))
    for attempt in (dry_run, train):
        with pytest.raises(UserError, match=f"Checkpoint {tmp_path}/checkpoints/1"):
            attempt(tiny(tmp_path, moving_average_decay=0.9, bn_momentum=0.0))
