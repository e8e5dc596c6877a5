"""`python -m resnet_tpu.resnet_main`: the original program's flags, on top of the functions behind `resnet-tpu`.

Every option of `config` is a flag of the same name. The tables below hold the original's remaining flags: aliases of
options, and flags that no longer have an effect.
"""

import dataclasses
import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Alias, Group
from resnet_tpu.cli.command import Command
from resnet_tpu.cli.train import train_and_export
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import FilePath, Option
from resnet_tpu.options.overrides import Layer, merge, parse_overrides, read_yaml
from resnet_tpu.options.run_file import read_run
from resnet_tpu.recipes import FILES
from resnet_tpu.system.program import run_program

log = logging.getLogger("resnet_tpu.resnet_main")  # not by __name__, which is __main__ in `python -m`

ALIASES = {
    "resnet_size": "resnet_depth",
    "max_train_steps": "train_steps",
    "project": "gcp_project",
    "zone": "tpu_zone",
}
"""Aliases: the other name of a flag -> the flag."""

SHORTHANDS = {"lth_generate_predictions": ("mode", "predict"), "use_cache": ("cache", "records")}
"""Boolean flags that set an option to a fixed value: flag -> (option, value)."""

YAML_FLAGS = {
    "default_hparams_file": "YAML file of options, overridden by all others.",
    "config_file": "YAML file of options.",
    "hparams_file": "The same as config_file.",
    "param_file": "The same as config_file.",
}
TEXT_FLAGS = {
    "params_override": "Options in one string, overriding the YAML files: a=1,b=2; or a YAML mapping; or a YAML file.",
    "param_overrides": "The same as params_override.",
    "hparams": "The same as params_override, but overrides single flags too.",
}
"""Flags that hold many options, in ascending priority; single flags rank just below `hparams`. Each may be repeated: a
later one overrides an earlier one."""

WITHOUT_EFFECT = {
    name: Option(name, (kind, type(None)), why, choices=choices)
    for name, kind, choices, why in (
        ("tpu", str, (), "The program runs on the machine that holds the devices and finds them itself."),
        ("tpu_zone", str, (), "The program runs on the machine that holds the devices."),
        ("eval_master", str, (), "The original never read it."),
        ("eval_after_training", bool, (), "The original never read it; mode=train_and_eval ends with an evaluation."),
        ("transpose_input", bool, (), "The compiler chooses the layout of images on the device."),
        ("data_format", str, ("channels_first", "channels_last"), "The compiler chooses the layout of activations."),
        ("use_async_checkpointing", bool, (), "Checkpoints are always written in the background."),
        ("export_to_tpu", bool, (), "The StableHLO in every export runs on a TPU too."),
        ("inference_with_all_cores", bool, (), "Serving an export uses all cores."),
        ("lth_no_pruning", bool, (), "Prediction never prunes."),
    )
}
"""Flags without effect, and why: values that the original accepts are accepted, and the reason is logged."""

_LIST = "inference_batch_sizes"
"""A flag that the original accepts several times, each adding to one list."""

SINGLE_FLAGS: dict[str, Option] = {
    **OPTIONS,
    _LIST: dataclasses.replace(OPTIONS[_LIST], is_repeatable=True),
    **{
        name: Option(name, (bool,), f"The same as {'='.join(meant)}.", default=False)
        for name, meant in SHORTHANDS.items()
    },
    **WITHOUT_EFFECT,
}
"""Every flag that has one value, by its primary name; a flag named like an option sets that option."""

_BULK = {
    name: Option(name, (FilePath if name in YAML_FLAGS else str,), text, default="", is_repeatable=True)
    for name, text in {**YAML_FLAGS, **TEXT_FLAGS}.items()
}

_ALIASES = {name: Alias(first) for name, first in ALIASES.items()}

COMMAND = Command(
    "python -m resnet_tpu.resnet_main",
    usage="--data_dir=FOLDER --model_dir=FOLDER [flags]",
    groups=[
        Group("flags with an effect", {name: SINGLE_FLAGS[name] for name in OPTIONS}, aliases=_ALIASES),
        Group("bool flags that set the value of another", {name: SINGLE_FLAGS[name] for name in SHORTHANDS}),
        Group(
            "many options at once, from lowest to highest priority; single flags rank just below hparams",
            _BULK,
        ),
        Group("accepted, but without effect", WITHOUT_EFFECT, aliases=_ALIASES),
    ],
    single_dash=True,
)

_HELP = {"-h", "--help", "-help", "--helpfull", "-helpfull", "--helpshort", "-helpshort"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program. Returns the exit code, like `resnet_tpu.cli.main`."""
    return run_program(_run, arguments)


def _run(arguments: Sequence[str]) -> None:
    """Trains, evaluates or predicts, as `mode` says."""
    if _HELP.intersection(arguments):
        print(COMMAND.help(whole=True))
        return
    config, origins = parse(arguments)
    values = config.flat()
    for name, origin in origins.items():
        if values[name] != OPTIONS[name].default:
            log.info("%s = %s (%s)", name, values[name], origin)
    if not config.data.location and config.run.mode.startswith("train"):
        log.warning("data_dir is not given: training on zeros instead of images, which only measures speed.")
        config = config.replace(data_dir="null")
    config.run.require_model_dir()
    if config.run.mode == "eval":
        from resnet_tpu.training.inference.evaluate_run import await_options, evaluate_run

        if read_run(config.run.model_dir) is None:
            await_options(config)
            config, origins = parse(arguments)
        # An options file gives the usual length of training; only the command line gives the length of this run.
        says = origins.get("train_steps", "")
        is_this = says == "command line" or says.removeprefix("--") in TEXT_FLAGS
        evaluate_run(config, watch=True, train_steps=config.train.train_steps if is_this else None)
    elif config.run.mode == "predict":
        from resnet_tpu.training.inference.predict import predict

        predict(config, split="validation" if config.lottery.lth_prediction_result_dir else "test")
    else:
        train_and_export(config)


def parse(arguments: Sequence[str]) -> tuple[Config, dict[str, str]]:
    """The options that a command line in the original's style sets, and the origin of each value given.

    Logs why a flag has no effect. Raises UserError for an unknown flag or key, naming the nearest, and for an invalid
    value.
    """
    layers = [_by_first_names(layer) for layer in _layers(arguments)]
    last = {name: layer for layer in layers for name in layer.values}
    for name, layer in last.items():
        if name in WITHOUT_EFFECT:
            _convert(name, layer)
            log.info("%s: accepted, but has no effect. %s", name, WITHOUT_EFFECT[name].help)
    acting = [_acting(layer, [name for name in layer.values if last[name] is layer]) for layer in layers]
    given = {name: layer for layer in acting for name in layer.values}
    mode, model_dir = (_convert(name, given[name]) if name in given else "" for name in ("mode", "model_dir"))
    base = _base(mode, model_dir)
    if "data_dir" in given:  # replaces the table that the run read
        base = base.replace(bigtable_instance="")
    return merge(base, acting), {name: layer.origin for name, layer in given.items()}


def _acting(layer: Layer, final: Collection[str]) -> Layer:
    """The options that a layer of flags sets. final: the flags that no higher layer gives."""
    values: dict[str, Any] = {}
    for name, value in layer.values.items():
        if name in OPTIONS:
            values[name] = value
        elif name in SHORTHANDS and _convert(name, layer) and name in final:
            values.update([SHORTHANDS[name]])
    return Layer(layer.origin, values)


def _base(mode: str, model_dir: str) -> Config:
    """The defaults; to evaluate an existing run or predict with it, the options of that run."""
    own = read_run(model_dir) if mode in ("eval", "predict") else None
    if own is None:
        return Config()
    log.info("Options that are not given are those of %s.", own.origin)
    return merge(Config(), [own])


def _layers(arguments: Sequence[str]) -> Iterator[Layer]:
    """The layers of given options in ascending priority: the order in which the original merges them."""
    given = COMMAND.parse(arguments).values
    yield from (_file_layer(name, path) for name in YAML_FLAGS for path in given.get(name, ()) if path)
    overrides = [Layer(f"--{name}", _parse_text(name, text)) for name in TEXT_FLAGS for text in given.get(name, ())]
    yield from (layer for layer in overrides if layer.origin != "--hparams")
    yield Layer("command line", {name: value for name, value in given.items() if name in SINGLE_FLAGS})
    yield from (layer for layer in overrides if layer.origin == "--hparams")


def _file_layer(name: str, path: str) -> Layer:
    """The options in a YAML file; for a missing file named like one of the original's, those that the file sets."""
    recipe = path.rsplit("/", 1)[-1].removesuffix(".yaml")
    if recipe in FILES and not storage.exists(path):
        log.info("%s: there is no file %s; the recipe %s has its values.", name, path, recipe)
        return Layer(f"recipe {recipe}", FILES[recipe].in_file(recipe))
    return Layer(path, read_yaml(path))


def _parse_text(name: str, text: str) -> dict[str, Any]:
    """Options in a string. Two flags once held exactly one `key=value`: in these, the value may hold commas."""
    try:
        return parse_overrides(text)
    except UserError:
        key, equals, value = text.partition("=")
        if name == "params_override" or not equals or "=" in value:
            raise
        return {key.strip(): value}


def _by_first_names(layer: Layer) -> Layer:
    """The layer with aliases replaced by the flags' primary names. Raises UserError for an unknown flag."""
    values: dict[str, Any] = {}
    for given, value in layer.values.items():
        name = ALIASES.get(given, given)
        if name not in SINGLE_FLAGS:
            hint = nearest(given, (*SINGLE_FLAGS, *ALIASES))
            raise UserError(f"Option ({layer.origin})", given, "a known option", f"See {COMMAND.program} --help.{hint}")
        if name == _LIST and isinstance(value, list):
            value = ",".join(map(str, value))
        values[name] = value
    return Layer(layer.origin, values)


def _convert(name: str, layer: Layer) -> Any:
    try:
        return SINGLE_FLAGS[name].convert(layer.values[name])
    except UserError as error:
        raise error.but(what=f"{error.what} ({layer.origin})") from None


if __name__ == "__main__":
    sys.exit(main())
