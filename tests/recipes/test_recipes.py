"""Recipes are complete, valid configs that train; those of the original have the values of its files."""

import math
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config
from resnet_tpu.recipes import RECIPES, find_recipe
from resnet_tpu.recipes.imagenet import CLOUD, MODERN
from resnet_tpu.recipes.resnet_rs import RESNET_RS
from resnet_tpu.training.loop import train


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_a_valid_config_made_anew(name: str) -> None:
    config = find_recipe(name)
    assert Config().replace(**config.flat()) == config
    assert find_recipe(name) == config
    assert (config.data.data_dir, config.run.model_dir, config.run.mode) == ("", "", "train_and_eval")
    check_options(config)


def test_imagenet_is_the_defaults() -> None:
    assert find_recipe("imagenet") == Config()


@pytest.mark.parametrize("name", MODERN)
def test_later_slices_follow_the_originals_table(name: str) -> None:
    own, cores = find_recipe(name), MODERN[name]
    assert own.train.train_batch_size == min(128 * cores, 32768)
    assert own.eval.eval_batch_size % cores == 0  # every device of the slice gets the same number of images
    if f"v3-{cores}" not in CLOUD:
        return
    names = (
        "train_batch_size",
        "train_steps",
        "enable_lars",
        "label_smoothing",
        "base_learning_rate",
        "skip_host_call",
    )
    before = find_recipe(f"v3-{cores}").flat()
    assert {name: own.flat()[name] for name in names} == {name: before[name] for name in names}


def num_params(config: Config) -> int:
    """The number of parameters of the recipe's network with ImageNet's classes, without computing anything."""
    network = create_network(config.model, num_classes=1000, image_size=config.data.image_size)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(network.shapes()[0]))


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in RESNET_RS])
def test_other_recipes_have_a_network_of_their_depth(name: str) -> None:
    plain = {18: 11693736, 20: 337112, 50: 25557032}
    assert num_params(find_recipe(name)) == plain[find_recipe(name).model.resnet_depth]


@pytest.fixture(scope="module")
def photos_of_noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two class folders of ten JPEGs each, of which eight are for training."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number in range(10):
            cv2.imwrite(str(folder / name / f"{number}.jpg"), rng.integers(0, 256, (70, 80, 3), np.uint8))
    return folder


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("v3-128", marks=pytest.mark.long),
        pytest.param("v5e-8", marks=pytest.mark.long),
        pytest.param("randaugment-8", marks=pytest.mark.long),
        "cifar",
        pytest.param("resnetrs200_i256", marks=pytest.mark.slow),
    ],
)
def test_one_recipe_of_each_kind_trains(name: str, photos_of_noise: Path, tmp_path: Path) -> None:
    recipe = find_recipe(name)
    small = recipe.replace(
        data_dir=str(photos_of_noise), model_dir=str(tmp_path), num_cores=1, resnet_width=4,
        image_size=min(recipe.data.image_size, 64), train_batch_size=8, eval_batch_size=8,
        resnet_depth={20: 8, 50: 18, 200: 50}.get(recipe.model.resnet_depth, recipe.model.resnet_depth),
        train_steps=2, iterations_per_loop=1, steps_per_eval=2, save_checkpoints_steps=2,
    )  # fmt: skip
    summary = train(small)
    assert summary.step == 2
    assert summary.evaluation is not None
    assert math.isfinite(summary.evaluation["loss"])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("flower", "flowers"),
        ("v3-9", "v3-8"),
        ("v6e-9", "v6e-"),
        ("randaugment-9", "randaugment-8"),
        ("resnetrs50_i161", "resnetrs50_i160"),
    ],
)
def test_unknown_recipe_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"Recipe: got {name}, .* Did you mean .*{near}"):
        find_recipe(name)
