"""Recipes are whole, valid configs; those for TPU slices hold the values of the original's files."""

import pytest

from resnet_tpu.config import Config
from resnet_tpu.errors import UserError
from resnet_tpu.recipes import RECIPES, find_recipe
from resnet_tpu.recipes.imagenet import cloud


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_a_valid_config_made_anew(name: str) -> None:
    config = find_recipe(name)
    assert Config().replace(**config.flat()) == config
    assert find_recipe(name) == config
    assert (config.data.data_dir, config.run.model_dir, config.run.mode) == ("", "", "train_and_eval")


@pytest.mark.parametrize("name", [name for name in RECIPES if "-" not in name])
def test_docstring_opens_with_the_command(name: str) -> None:
    assert (RECIPES[name].__doc__ or "").startswith(f"`resnet-tpu train --recipe={name} --data_dir=")


def test_docstring_of_the_slices_opens_with_a_command() -> None:
    assert (cloud.__doc__ or "").startswith("`resnet-tpu train --recipe=v3-32 --data_dir=")


def test_imagenet_is_the_defaults() -> None:
    assert find_recipe("imagenet") == Config()


@pytest.mark.parametrize(
    ("name", "train_steps", "train_batch_size", "enable_lars", "label_smoothing"),
    [
        ("v2-8", 113854, 1024, False, 0.0),
        ("v2-32", 28464, 4096, False, 0.0),
        ("v2-128", 7116, 16384, True, 0.1),
        ("v2-256", 3558, 32768, True, 0.1),
        ("v2-512", 3558, 32768, True, 0.1),
        ("v3-8", 113854, 1024, False, 0.0),
        ("v3-32", 28464, 4096, False, 0.0),
        ("v3-64", 14232, 8192, False, 0.0),
        ("v3-128", 7116, 16384, True, 0.1),
        ("v3-256", 3558, 32768, True, 0.1),
        ("v3-512", 3558, 32768, True, 0.1),
        ("v3-1024", 3558, 32768, True, 0.1),
        ("v3-2048", 3558, 32768, True, 0.1),
    ],
)
def test_tpu_slices(
    name: str, train_steps: int, train_batch_size: int, enable_lars: bool, label_smoothing: float
) -> None:
    assert find_recipe(name).flat() == Config().flat() | {
        "train_steps": train_steps,
        "iterations_per_loop": train_steps,
        "train_batch_size": train_batch_size,
        "eval_batch_size": 1024,
        "enable_lars": enable_lars,
        "label_smoothing": label_smoothing,
        "skip_host_call": True,
        "num_cores": int(name.partition("-")[2]),
    }
    epochs = train_steps * train_batch_size / 1281167
    assert 91 <= epochs < 91.1


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Recipe: got flower, .* Did you mean flowers"):
        find_recipe("flower")
    with pytest.raises(UserError, match=r"TPU slice: got v3-9, .* Did you mean v3-8"):
        cloud("v3-9")
