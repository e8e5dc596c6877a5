"""The options of a run on the command lines of verbs, singly and in bulk, and how what was given becomes a config."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_tpu.cli.arguments import OtherName, Parser
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import FilePath, Option, option, options_of
from resnet_tpu.options.overrides import Layer, merge, parse_overrides, read_yaml

CONCERNS = {
    "data": "the images",
    "model": "the network",
    "optimizer": "loss, optimizer and learning rate",
    "train": "how long, how often, and what is kept",
    "eval": "evaluation, prediction and export",
    "run": "the run",
}
"""Groups of options, and their titles in the help."""

IN_TRAINING = frozenset({
    "min_crop_area", "crop_padding", "random_flip", "augment_name", "randaug_num_layers", "randaug_magnitude",
    "augment_flavor", "random_erasing", "cache", "cache_short_side", "cache_memory",
})  # fmt: skip
"""Options of the images that training alone heeds."""

IN_EXPORT = frozenset({"export_dir", "export_forms", "model_name", "inference_batch_sizes", "add_warmup_requests"})
"""Options of evaluation, prediction and export that only the last heeds."""

COMMON_IN_TRAINING = frozenset({
    "recipe", "config_file", "data_dir", "image_size", "resnet_depth", "precision", "base_learning_rate",
    "train_batch_size", "train_steps", "resnet_checkpoint", "seed", "model_dir",
})  # fmt: skip
"""What most people want to say of a training; --help-all shows the rest."""

COMMON_AFTERWARDS = frozenset({"data_dir", "eval_batch_size", "export_forms", "model_name"})
"""The same for what is done with one that is there."""

OTHER_NAMES = {
    "init_from": OtherName("resnet_checkpoint"),
    "epochs": OtherName("train_steps", unit="epochs"),
    "batch_size": OtherName("train_batch_size"),
    "lr": OtherName("base_learning_rate"),
}
"""What other names mean on the command line of a training; files and strings of options have the options' own."""


@dataclass(frozen=True)
class BulkOptions:
    """Where many options come from at once."""

    recipe: str = option(
        "", "Start from the options of a recipe, such as finetune, imagenet or v5e-8; see `resnet-tpu recipes`."
    )
    config_file: FilePath = option("", "YAML file of options, one `name: value` per line.")
    params_override: str = option("", "Options in one string: a=1,b=2; or a YAML mapping; or a YAML file.")


def add_run_options(
    parser: Parser, *concerns: str, without: Collection[str] = (), other_names: Mapping[str, OtherName] | None = None
) -> None:
    """Adds the options for working on a run that is there; its model_dir and the mode are the verb's to say.

    without: names of those that the verb would not heed. other_names: what other names mean.
    """
    bulk = options_of("bulk", BulkOptions)
    del bulk["recipe"]
    parser.add_options("options in bulk", bulk.values(), repeatable=bulk, common=COMMON_AFTERWARDS)
    for concern in concerns:
        heeded = [found for name, found in options_about(concern).items() if name not in without]
        parser.add_options(CONCERNS[concern], heeded, other_names=other_names, common=COMMON_AFTERWARDS)


def options_about(concern: str) -> dict[str, Option]:
    """The options of one of `CONCERNS` by name, but for model_dir and mode."""
    found = {name: option for name, option in OPTIONS.items() if option.group == concern}
    return {name: option for name, option in found.items() if name not in ("mode", "model_dir")}


def add_training_options(parser: Parser) -> None:
    """Adds the recipe, options in bulk, and every option of a training."""
    bulk = options_of("bulk", BulkOptions)
    repeatable = bulk.keys() - {"recipe"}
    parser.add_options("options in bulk", bulk.values(), repeatable=repeatable, common=COMMON_IN_TRAINING)
    for concern, title in CONCERNS.items():
        options = [found for found in OPTIONS.values() if found.group == concern]
        parser.add_options(title, options, other_names=OTHER_NAMES, common=COMMON_IN_TRAINING)


def configure_training(given: Mapping[str, Any], below: Sequence[Layer] = ()) -> Config:
    """The defaults, the layers `below`, the recipe, and what else was given of `add_training_options`."""
    from resnet_tpu.recipes import find_recipe

    name = given.get("recipe")
    recipe = [Layer(f"recipe {name}", find_recipe(name).flat())] if name else []
    return configure(given, [*below, *recipe])


def configure(given: Mapping[str, Any], below: Sequence[Layer]) -> Config:
    """The defaults, the layers `below`, and what was given on the command line, in bulk and singly."""
    return merge(Config(), [*below, *layers_of(given)])[0]


def layers_of(given: Mapping[str, Any]) -> list[Layer]:
    """What was given on the command line, in bulk and singly, from the lowest layer to the highest."""
    layers = [Layer(path, read_yaml(path)) for path in given.get("config_file", ())]
    layers += [Layer("--params_override", parse_overrides(text)) for text in given.get("params_override", ())]
    single = {name: value for name, value in given.items() if name in OPTIONS}
    if single.get("data_dir"):  # instead of the table of a run or a file
        single.setdefault("bigtable_instance", "")
    return [*layers, Layer("command line", single)]


def check_data(config: Config, *, without: str) -> None:
    """Raises UserError when it is not said where the images are. `without`: what data_dir=null would be good for."""
    if not config.data.place:
        do = f"Give --data_dir=FOLDER, or --data_dir=null {without}."
        raise UserError("data_dir", "nothing", "TFRecords or a folder of images per class", do)
