"""How `resnet-tpu train` fills in options that are not given: from data, device, weights or the existing run."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import torch_files
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import OF_ONE_START, Config
from resnet_tpu.recipes import find_recipe
from resnet_tpu.recipes.choice import FEW_IMAGES, choose, follow_weights, options_to_follow

TINY = (
    "--resnet_depth=8",
    "--resnet_width=4",
    "--image_size=32",
    "--train_steps=1",
    "--steps_per_eval=1",
    "--num_cores=1",
)


@pytest.mark.parametrize(
    ("num_images", "device", "has_weights", "recipe", "batch"),
    [
        (1_281_167, "tpu", False, "imagenet", 1024),
        (FEW_IMAGES + 1, "cpu", True, "imagenet", 1024),
        (FEW_IMAGES, "gpu", False, "flowers", 128),
        (800, "cpu", False, "flowers_cpu", 32),
        (100, "tpu", False, "flowers", 64),
        (800, "tpu", True, "finetune", 32),
        (7, "cpu", True, "finetune", 4),
        (1, "cpu", False, "flowers_cpu", 1),
    ],
)
def test_the_recipe_follows_from_data_device_and_weights(
    num_images: int, device: str, has_weights: bool, recipe: str, batch: int
) -> None:
    choice = choose(num_images, device=device, has_weights=has_weights)
    assert choice.recipe == recipe
    assert choice.values == {**find_recipe(recipe).flat(), "train_batch_size": batch}


def test_weights_decide_what_nobody_says() -> None:
    told = {"resnet_depth": 18, "image_size": 160, "crop_pct": 0.95, "num_label_classes": 1000, "se_ratio": None}
    small = {"stem": "small"}
    assert options_to_follow(Config(), small, fixed=()) == small
    assert options_to_follow(Config().replace(stem="imagenet"), small, fixed=()) == {}
    recipe = Config().replace(image_size=96)
    assert options_to_follow(Config(), told, fixed=()) == {"resnet_depth": 18, "image_size": 160, "crop_pct": 0.95}
    assert options_to_follow(recipe, told, fixed=("resnet_depth",)) == {"crop_pct": 0.95}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two class folders of ten photos each, of which eight are for training."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number in range(10):
            cv2.imwrite(str(folder / name / f"{number}.jpg"), rng.integers(0, 256, (40, 50, 3), np.uint8))
    return folder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder in timm's format: a ResNet-18 of width 4 for five classes, at 48 px."""
    colours = {"mean_rgb": (0.5, 0.5, 0.5), "pool_padding": "symmetric"}
    config = Config().replace(resnet_depth=18, resnet_width=4, stem="imagenet", project_first_group=False, **colours)
    network = create_network(config.model, num_classes=5, image_size=48)
    folder = tmp_path / "weights"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resnet_tpu.checkpoints.torch_files.WIDTH", 4)
        arrays: dict[str, Any] = dict(zip(("params", "batch_stats"), network.init(0), strict=True))
        torch_files.write_safetensors(str(folder / "model.safetensors"), network, arrays)
    pretrained = {"input_size": [3, 48, 48], "crop_pct": 0.9, "interpolation": "bilinear"}
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": pretrained}))
    return folder


def trains(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the training logs."""
    assert cli.main(["train", *words]) == 0
    return capsys.readouterr().err


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


@pytest.mark.long
def test_photos_are_not_trained_on_as_imagenet(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = (f"--data_dir={photos}", f"--model_dir={run}", "--mode=train")
    logged = trains(capsys, *words, *TINY)
    assert "No --recipe: using flowers_cpu with train_batch_size=16, for 16 images on a CPU\n" in logged
    config, recipe = config_of(run), find_recipe("flowers_cpu").flat()
    given = {
        "resnet_depth",
        "resnet_width",
        "image_size",
        "train_steps",
        "steps_per_eval",
        "num_cores",
        "train_batch_size",
    }
    given |= {"mode", "data_dir", "model_dir", "num_label_classes", "num_train_images", "data_order"}
    assert recipe.keys() - config.keys() == {*OF_ONE_START}
    assert {name for name in config if json.loads(json.dumps(recipe.get(name))) != config[name]} == given | {"version"}

    logged = trains(capsys, f"--model_dir={run}", "--mode=train", "--train_steps=2")
    assert "No --recipe" not in logged
    assert config_of(run) == config | {"train_steps": 2}


@pytest.mark.long
def test_from_weights_the_recipe_is_to_fine_tune_at_their_size(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = (f"--data_dir={photos}", f"--model_dir={run}", f"--init_from={weights}", "--train_steps=1", "--num_cores=1")
    logged = trains(capsys, *words)
    assert "using finetune with train_batch_size=16, for 16 images on a CPU\n" in logged
    network, seen = "resnet_depth = 18, resnet_width = 4, stem = imagenet", "image_size = 48, crop_pct = 0.9"
    assert f"{network}, {seen}, resize_method = bilinear\n" in logged
    config = config_of(run)
    assert config["mean_rgb"] == [0.5, 0.5, 0.5]
    assert (config["head_learning_rate_multiplier"], config["learning_rate_schedule"]) == (10.0, "cosine")

    for path in weights.iterdir():
        path.unlink()
    trains(
        capsys, "--recipe=finetune", *words, "--train_steps=2", "--train_batch_size=16"
    )  # the run's options count, not those of the weights
    assert config_of(run) == config | {"train_steps": 2}


def test_a_program_follows_the_weights_as_the_command_line_does(weights: Path) -> None:
    recipe = find_recipe("finetune").replace(resnet_checkpoint=str(weights))
    followed = {
        "resnet_depth": 18,
        "resnet_width": 4,
        "stem": "imagenet",
        "image_size": 48,
        "crop_pct": 0.9,
        "resize_method": "bilinear",
    }
    assert follow_weights(recipe) == recipe.replace(**followed)
    assert follow_weights(recipe.replace(crop_pct=0.7)) == recipe.replace(**followed | {"crop_pct": 0.7})


@pytest.mark.long
def test_given_options_override_those_of_the_weights(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ("train", f"--data_dir={photos}", f"--model_dir={run}", f"--init_from={weights}", "--train_steps=1")
    assert cli.main([*words, "--resnet_depth=34"]) == 2
    assert "got resnet_depth 18 there, 34 here" in capsys.readouterr().err
    assert cli.main([*words, "--crop_pct=0.7", "--params_override=image_size=32", "--num_cores=1"]) == 0
    config = config_of(run)
    assert (config["crop_pct"], config["image_size"], config["resize_method"]) == (0.7, 32, "bilinear")


@pytest.mark.long
def test_made_up_images_and_files_of_options_choose_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (
        "--train_batch_size=8",
        "--eval_batch_size=8",
        "--iterations_per_loop=1",
        "--mode=train",
    )
    logged = trains(capsys, "--data_dir=synthetic", f"--model_dir={tmp_path / 'a'}", *TINY, *small)
    assert "No --recipe" not in logged
    (tmp_path / "some.yaml").write_text("momentum: 0.8\n")
    file = f"--config_file={tmp_path / 'some.yaml'}"
    logged = trains(capsys, f"--data_dir={photos}", f"--model_dir={tmp_path / 'b'}", file, *TINY, *small)
    assert "No --recipe" not in logged
    assert config_of(tmp_path / "b")["learning_rate_schedule"] == "step"


def test_where_there_may_be_several_processes_none_is_chosen(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnet_tpu.parallel.rendezvous.is_in_cluster", lambda _: True)
    assert cli.main(["train", str(photos), f"--model_dir={tmp_path}", "--print_config"]) == 0
    shown = capsys.readouterr()
    assert "No --recipe: using the defaults, which are for ImageNet." in shown.err
    assert "train_batch_size" not in shown.out  # the default


def test_weights_that_are_not_there_are_told_before_a_device_is_used(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("a device was used"))
    words = ["train", "--recipe=finetune", f"--data_dir={photos}", f"--model_dir={tmp_path / 'run'}"]
    assert cli.main([*words, "--init_from=resnet5O"]) == 2
    assert "Did you mean resnet50" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_images_of_given_data_are_counted_anew(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, more = tmp_path / "run", tmp_path / "more"
    shutil.copytree(photos, more)
    words = (f"--data_dir={more}", f"--model_dir={run}")
    trains(capsys, *words, *TINY)
    assert config_of(run)["num_train_images"] == 16
    for number in range(10, 20):
        shutil.copy(more / "a" / "0.jpg", more / "a" / f"{number}.jpg")
    trains(capsys, *words, "--train_steps=2")
    assert config_of(run)["num_train_images"] == 24
