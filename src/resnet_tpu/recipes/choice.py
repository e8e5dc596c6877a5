"""The recipe of a training run that names none, and the options that follow from the weights it starts from."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from resnet_tpu.checkpoints.weights import options_of_weights
from resnet_tpu.options.config import OPTIONS, PREPROCESSING, VARIANT, Config, require_config
from resnet_tpu.recipes import find_recipe

FEW_IMAGES = 100_000
"""A data set with up to this many training images is treated as photos, a larger one like ImageNet."""

DEFAULT_FROM_WEIGHTS = ("resnet_depth", "resnet_width", "stem", *VARIANT, "se_ratio", *PREPROCESSING)
"""Options that follow from the weights unless set otherwise: the network, and the preprocessing of photos for it.

Options that always follow from the weights are in `weights.FIXED_BY_WEIGHTS`."""


class ChosenRecipe(NamedTuple):
    """A recipe by name, and the options that are changed to suit the data."""

    recipe: str
    changes: Mapping[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """All options of the recipe, with the changes."""
        return {**find_recipe(self.recipe).flat(), **self.changes}


def choose(num_train_images: int, *, device: str, has_weights: bool) -> ChosenRecipe:
    """The recipe to use when none is named: for this many images on `device`, one of JAX's platforms.

    The batch is at most as large as the data set, so that an epoch has at least one step.
    """
    if num_train_images > FEW_IMAGES:
        return ChosenRecipe("imagenet", {})
    name = "finetune" if has_weights else "flowers_cpu" if device == "cpu" else "flowers"
    batch = find_recipe(name).train.train_batch_size
    most = 1 << max(num_train_images.bit_length() - 1, 0)
    return ChosenRecipe(name, {"train_batch_size": most} if most < batch else {})


def options_to_follow(config: Config, theirs: Mapping[str, Any], *, fixed: Collection[str]) -> dict[str, Any]:
    """The options in `DEFAULT_FROM_WEIGHTS` that change when `config` follows those of weights or a run, `theirs`.

    fixed: names of options that stay as they are. So do options that a recipe has changed from their defaults.
    """
    now = config.flat()
    return {
        name: theirs[name]
        for name in DEFAULT_FROM_WEIGHTS
        if name in theirs and name not in fixed and now[name] == OPTIONS[name].default and theirs[name] != now[name]
    }


def follow_weights(config: Config) -> Config:
    """`config` with the network and the preprocessing of the weights that it starts from, `resnet_checkpoint`.

    Options that differ from their defaults stay. Named weights are fetched once. Raises UserError when there are no
    weights.
    """
    require_config(config)
    theirs = options_of_weights(config.train.resnet_checkpoint)
    return config.replace(**options_to_follow(config, theirs, fixed=()))
