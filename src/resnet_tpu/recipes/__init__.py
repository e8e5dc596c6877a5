"""Recipes: functions that return every option of a training, looked up by name: `resnet-tpu train --recipe=NAME`."""

import functools
import inspect
from collections.abc import Callable

from resnet_tpu.options.config import Config
from resnet_tpu.recipes.imagenet import CLOUD, MODERN, RANDAUGMENT, cloud, imagenet, modern, randaugment
from resnet_tpu.recipes.photos import finetune, flowers, flowers_cpu
from resnet_tpu.recipes.resnet_rs import RESNET_RS, resnet_rs
from resnet_tpu.recipes.small import cifar, digits
from resnet_tpu.recipes.tables import look_up

SLICES: dict[str, Callable[[], Config]] = {
    **{name: functools.partial(cloud, name) for name in CLOUD},
    **{name: functools.partial(modern, name) for name in MODERN},
}
"""The recipes for TPU slices, by the name of the slice."""

FILES: dict[str, Callable[[], Config]] = {
    **SLICES,
    **{name: functools.partial(randaugment, name) for name in RANDAUGMENT},
    **{name: functools.partial(resnet_rs, name) for name in RESNET_RS},
}
"""Recipes named after configuration files of the original, and those for later slices, named in the same way."""

RECIPES: dict[str, Callable[[], Config]] = {
    "imagenet": imagenet,
    "finetune": finetune,
    "flowers": flowers,
    "flowers_cpu": flowers_cpu,
    "digits": digits,
    "cifar": cifar,
    **FILES,
}


def find_recipe(name: str) -> Config:
    """The options of the recipe called `name`. Raises UserError with the nearest names when there is none."""
    return look_up("Recipe", name, RECIPES)()


def text_of(name: str) -> str:
    """The description of a recipe: its function's docstring below the command. `name` must be in `RECIPES`."""
    recipe = RECIPES[name]
    function = recipe.func if isinstance(recipe, functools.partial) else recipe
    paragraph = inspect.cleandoc(function.__doc__ or "").split("\n\n")[1]
    return " ".join(line for line in paragraph.splitlines() if not line.startswith("Raises "))
