"""Recipes: the options of a run, looked up by name: `resnet-tpu train --recipe=NAME`."""

from collections.abc import Mapping
from typing import Any

from resnet_tpu.errors import UserError, check_kind, nearest
from resnet_tpu.options.config import Config
from resnet_tpu.recipes.family import Family
from resnet_tpu.recipes.imagenet import IMAGENET, LATER_SLICES, ORIGINAL_SLICES, WITH_RANDAUGMENT
from resnet_tpu.recipes.photos import FINETUNE, FLOWERS, FLOWERS_CPU
from resnet_tpu.recipes.resnet_rs import RESNET_RS_NETWORKS
from resnet_tpu.recipes.small import CIFAR, DIGITS

_FILES = (ORIGINAL_SLICES, LATER_SLICES, WITH_RANDAUGMENT, RESNET_RS_NETWORKS)

FAMILIES: tuple[Family, ...] = (IMAGENET, FINETUNE, FLOWERS, FLOWERS_CPU, DIGITS, CIFAR, *_FILES)
"""All recipes."""


FILES: dict[str, Family] = {name: family for family in _FILES for name in family.members}
"""By the name of each recipe, its family: recipes named after the original's configuration files, and for later
slices."""

RECIPES: dict[str, Mapping[str, Any]] = {name: recipe for family in FAMILIES for name, recipe in family.members.items()}
"""The options of each recipe by its name; all others keep their defaults."""


def find_recipe(name: str) -> Config:
    """The options of the recipe called `name`. Raises UserError with the nearest names when there is none."""
    check_kind("Recipe", name, str, f"Choose one of {', '.join(RECIPES)}.")
    if name not in RECIPES:
        raise UserError("Recipe", name, f"one of {', '.join(RECIPES)}", f"Choose one.{nearest(name, RECIPES)}")
    return Config().replace(**RECIPES[name])
