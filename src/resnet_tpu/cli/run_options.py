"""The options of a run on the command lines of verbs, given singly or in bulk, and the `Config` made from them."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from resnet_tpu.cli.arguments import Alias, Group
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import FilePath, Option, option
from resnet_tpu.options.overrides import Layer, merge, parse_overrides, read_yaml
from resnet_tpu.options.run_file import read_run
from resnet_tpu.performance.plan.topology import find_tpu_slice
from resnet_tpu.recipes import find_recipe

log = logging.getLogger(__name__)

CONCERNS = {
    "data": "the images",
    "model": "the network",
    "optimizer": "loss, optimizer and learning rate",
    "train": "how long, how often, and what is kept",
    "eval": "evaluation, prediction and export",
    "run": "the run",
}
"""Groups of options, and their titles in the help."""

TRAINING_ONLY = frozenset({
    "min_crop_area", "crop_padding", "random_flip", "augment_name", "randaug_num_layers", "randaug_magnitude",
    "augment_flavor", "random_erasing", "cache", "cache_short_side", "cache_memory", "data_order",
    "image_size", "num_label_classes",
})  # fmt: skip
"""Image options that only training uses. After training, the network determines the last two."""

EXPORT_ONLY = frozenset({"export_dir", "export_forms", "model_name", "inference_batch_sizes", "add_warmup_requests"})
"""Options of `EvalConfig` that only the export uses."""

COMMON_IN_TRAINING = frozenset({
    "recipe", "config_file", "data_dir", "image_size", "resnet_depth", "precision", "base_learning_rate",
    "train_batch_size", "train_steps", "resnet_checkpoint", "seed", "model_dir",
})  # fmt: skip
"""Training options that --help shows; --help-all shows the rest."""

COMMON_AFTERWARDS = frozenset({"data_dir", "eval_batch_size", "export_forms", "model_name"})
"""The same for commands that work on an existing run."""

LIKE_THE_RUN = "Options that are not given are taken from the run; the defaults below apply to those that it lacks."
"""The note in --help of commands that take defaults from a run."""

ALIASES = {
    "init_from": Alias("resnet_checkpoint"),
    "epochs": Alias("train_steps", unit="epochs"),
    "batch_size": Alias("train_batch_size"),
    "lr": Alias("base_learning_rate"),
}
"""Aliases on the command line of `train`; option files and override strings accept only the real names."""


@dataclass(frozen=True)
class BulkOptions:
    """Sources of many options at once."""

    recipe: str = option(
        "", "Start from the options of a recipe, such as finetune, imagenet or v5e-8; see `resnet-tpu recipes`."
    )
    config_file: FilePath = option(
        "", "YAML file of options, one `name: value` per line. May be given several times.", is_repeatable=True
    )
    params_override: str = option(
        "", "Options as a=1,b=2, as a YAML mapping, or in a YAML file. May be given several times.", is_repeatable=True
    )


def groups_for_runs(*, without: Collection[str], aliases: Mapping[str, Alias] | None = None) -> list[Group]:
    """The options of verbs that work on an existing run, without those that only training uses.

    model_dir and mode are left out too: the verb sets them itself. without: more options that the verb does not use.
    aliases: other names of the rest.
    """
    without = {"recipe", "model_dir", "mode", *TRAINING_ONLY, *without}
    groups = {"options in bulk": BulkOptions} | {
        CONCERNS[name]: options_about(name) for name in ("data", "eval", "run")
    }
    return [
        Group(title, of, without=without, aliases=aliases or {}, common=COMMON_AFTERWARDS)
        for title, of in groups.items()
    ]


def groups_for_trainings() -> list[Group]:
    """The recipe, options in bulk, and all training options."""
    groups = {"options in bulk": BulkOptions, **{title: options_about(name) for name, title in CONCERNS.items()}}
    return [Group(title, of, aliases=ALIASES, common=COMMON_IN_TRAINING) for title, of in groups.items()]


def slice_for(recipe: str) -> str | None:
    """The TPU slice that a recipe is made for: from its name, else the v3 with its `num_cores`, else None."""
    found = find_tpu_slice(recipe) or find_tpu_slice(f"v3-{find_recipe(recipe).run.num_cores}")
    return found and found.name


def options_about(concern: str) -> dict[str, Option]:
    """The options of one of `CONCERNS` by name."""
    return {name: option for name, option in OPTIONS.items() if option.group == concern}


def configure(given: Mapping[str, Any], below: Layer | None = None) -> Config:
    """The config made from, in this order: defaults, the layer `below`, a recipe, bulk options, single options."""
    name = given.get("recipe")
    recipe = [Layer(f"recipe {name}", find_recipe(name).flat())] if name else []
    return merge(Config(), [*([below] if below else []), *recipe, *layers_of(given)])


def configure_like_run(given: Mapping[str, Any]) -> Config:
    """The config as from `configure`, with the options of the run in model_dir as defaults, if there is one."""
    run = read_run(configure(given).run.model_dir)
    return configure(given, run and without_old_counts(run, given))


def follow_start(config: Config, given: Mapping[str, Any]) -> Config:
    """`config`, made from `given`, with the network and its preprocessing of what a run of it starts from.

    That is the run to resume in model_dir, else the initial weights. Options that are given stay; changes are logged.
    """
    from resnet_tpu.checkpoints import folders, weights
    from resnet_tpu.recipes.choice import options_to_follow

    run = folders.run_to_resume(config.run.model_dir)
    source = run.origin if run else config.train.resnet_checkpoint
    source_options = run.values if run else weights.options_of_weights(source) if source else {}
    changes = options_to_follow(config, source_options, fixed=given_names(given))
    if changes:
        log.info("As in %s: %s", source, ", ".join(f"{name} = {value}" for name, value in changes.items()))
    return config.replace(**changes)


def given_names(given: Mapping[str, Any]) -> set[str]:
    """The names of the options given on the command line, in bulk and singly."""
    return {name for layer in layers_of(given) for name in layer.values}


def layers_of(given: Mapping[str, Any]) -> list[Layer]:
    """The options given on the command line, in bulk and singly, from the lowest layer to the highest."""
    layers = [Layer(path, read_yaml(path)) for path in given.get("config_file", ())]
    layers += [Layer("--params_override", parse_overrides(text)) for text in given.get("params_override", ())]
    layers.append(Layer("command line", {name: value for name, value in given.items() if name in OPTIONS}))
    return [_replacing_table(layer) if layer.values.get("data_dir") else layer for layer in layers]


def _replacing_table(layer: Layer) -> Layer:
    """The layer, which sets `data_dir`, changed to override a lower layer's Bigtable too."""
    return Layer(layer.origin, {"bigtable_instance": "", **layer.values})


def without_old_counts(run: Layer, given: Mapping[str, Any]) -> Layer:
    """The options of a run, without its counts of images and classes if other images are given."""
    if given_names(given).isdisjoint({"data_dir", "bigtable_instance"}):
        return run
    counted = ("num_train_images", "num_label_classes")
    return Layer(run.origin, {name: value for name, value in run.values.items() if name not in counted})
