"""Recipes: functions that return every option of a training, looked up by name: `resnet-tpu train --recipe=NAME`."""

import functools
from collections.abc import Callable

from resnet_tpu.config import Config
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.recipes.imagenet import CLOUD, cloud, imagenet
from resnet_tpu.recipes.photos import flowers, flowers_cpu
from resnet_tpu.recipes.small import cifar, digits

RECIPES: dict[str, Callable[[], Config]] = {
    "imagenet": imagenet,
    "flowers": flowers,
    "flowers_cpu": flowers_cpu,
    "digits": digits,
    "cifar": cifar,
    **{name: functools.partial(cloud, name) for name in CLOUD},
}


def find_recipe(name: str) -> Config:
    """The options of the recipe called `name`. Raises UserError with the nearest names when there is none."""
    if name not in RECIPES:
        hint = nearest(name, RECIPES)
        raise UserError("Recipe", name, f"one of {', '.join(RECIPES)}", f"Choose one.{hint}")
    return RECIPES[name]()
