"""Starts a run from the weights of another: variables that fit are loaded, and all others are reported."""

import logging
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from resnet_tpu.checkpoints.tf1_describe import AVERAGE
from resnet_tpu.checkpoints.torch_files import COUNTER, check_writable
from resnet_tpu.checkpoints.torch_names import torch_names
from resnet_tpu.checkpoints.weights import FIXED_BY_WEIGHTS, ORIGIN, Weights, fixed_options
from resnet_tpu.data.class_names import are_names_for_numbers, are_same_classes, numbering
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, copy_dicts, node_at, require_finite
from resnet_tpu.models.from_options import resolve_architecture
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import VARIANT, Config, ModelConfig

log = logging.getLogger(__name__)

_STRUCTURE = ("project_first_group", *VARIANT)
"""Options that, besides depth, width and squeeze-and-excite, must be equal for weights to be transferable. The stem for
small images is not among them: only its first convolution differs."""


@dataclass(frozen=True)
class Skipped:
    """A variable of the network that keeps its initial value."""

    name: str
    shape: tuple[int, ...]
    source_shape: tuple[int, ...] | None  # None if the source has no such variable

    def __str__(self) -> str:
        if self.source_shape == self.shape:
            return f"{self.name}: for other classes there"
        there = "not there" if self.source_shape is None else f"{list(self.source_shape)} there"
        return f"{self.name}: {there}, {list(self.shape)} here"


@dataclass(frozen=True)
class TransferReport:
    """The outcome for every variable of the network and of the source, by the source's names."""

    source: str
    loaded: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    left_over: tuple[str, ...]  # of the source: optimizer slots, averages, the step, and what the network lacks
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Lines for the log."""
        total = len(self.loaded) + len(self.skipped)
        lines = [f"Started from {self.source}: {len(self.loaded)} of {total} variables loaded."]
        lines += [f"  initial value kept: {skipped}" for skipped in self.skipped]
        known = {*self.loaded, *(skipped.name for skipped in self.skipped)}
        lines += [f"  not used: {line}" for line in describe_left_over(self.left_over, known)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def describe_left_over(left_over: Iterable[str], known: Collection[str]) -> list[str]:
    """A line for each unused variable; copies of `known` variables, such as slots, are only counted."""
    lines = []
    copies: Counter[str] = Counter()
    for name in left_over:
        if copy := _copy_of_known(name, known):
            copies[copy] += 1
        else:
            lines.append(name)
    return [*lines, *(f"{copy} of {count} variables" for copy, count in copies.items())]


def _copy_of_known(name: str, known: Collection[str]) -> str | None:
    """The kind of copy of a known variable: `Momentum` of conv2d/kernel, our `momentum` of params/stem/conv/kernel."""
    variable, _, suffix = name.rpartition("/")
    if variable in known:
        return suffix
    if name.endswith(COUNTER) and name.removesuffix(COUNTER) + "weight" in known:
        return COUNTER
    collection, _, rest = name.partition("/")
    return collection if rest in known or f"params/{rest}" in known else None


def with_options_of_weights(config: Config, weights: Weights) -> Config:
    """The options of a run that starts from `weights`, which set those in `FIXED_BY_WEIGHTS`; changes are logged.

    Raises UserError, naming both, when depth or variant differ from the weights'.
    """
    check_structure(config.model, config.data.image_size, weights, but=FIXED_BY_WEIGHTS)
    config = replace_and_log(config, fixed_options(weights), f"the weights of {weights.source}")
    return config.replace(**origin_options(weights.options))


def origin_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in `ORIGIN` that are set."""
    return {name: options[name] for name in ORIGIN if options.get(name)}


def replace_and_log(config: Config, options: Mapping[str, Any], source: str) -> Config:
    """`config` with `options` replaced; a log line says which change, with `source` as the reason."""
    now = config.replace(**options)
    before, after = config.flat(), now.flat()
    if changed := [f"{name} = {after[name]}" for name in options if after[name] != before[name]]:
        log.info("To match %s: %s", source, ", ".join(changed))
    return now


def check_structure(model: ModelConfig, image_size: int, weights: Weights, *, but: Collection[str] = ()) -> None:
    """Raises UserError, naming both, when options that decide which layers there are differ from the weights'.

    but: options that may differ.
    """
    if weights.kind == "tf1":
        but = (*but, "resnetd_shortcut")  # pooling leaves no trace in the variables
    # without the number of classes, which may be 1: a yes-or-no classifier
    saved = Config().replace(**{name: value for name, value in weights.options.items() if name != "num_label_classes"})
    in_weights, in_options = _structure(saved.model, saved.data.image_size), _structure(model, image_size)
    differ = [name for name in in_weights if in_weights[name] != in_options[name] and name not in but]
    if differ:
        got = ", ".join(f"{name} {in_weights[name]} there, {in_options[name]} here" for name in differ)
        do = f"Give {' '.join(f'--{name}={in_weights[name]}' for name in differ)}, or other weights."
        raise UserError(f"Weights {weights.source}", got, "the same network", do)


def _structure(model: ModelConfig, image_size: int) -> dict[str, Any]:
    network = resolve_architecture(model, image_size=image_size)
    features = 32 * network.width  # the channels that the last group's squeeze-and-excite reduces
    return {
        "resnet_depth": model.resnet_depth,
        "resnet_width": network.width,
        **{name: getattr(network, name) for name in _STRUCTURE},
        "se_ratio": int(features * network.se_ratio) / features,
    }


def start_from(
    network: Network, weights: Weights, params: Arrays, batch_stats: Arrays, *, class_names: list[str] | None = None
) -> tuple[Arrays, Arrays, TransferReport]:
    """`params` and `batch_stats` with the values of `weights` wherever name and shape are the same, and a report.

    class_names: of the data, if known. Step, optimizer slots and moving averages are never loaded; nor is the
    classifier if its classes differ from these in number, names or order. Raises UserError when the weights are of
    another network or not finite; the given arrays are left as they are.
    """
    check_structure(network.model, network.image_size, weights)
    trees: dict[str, Any] = copy_dicts({"params": params, "batch_stats": batch_stats})
    names = weights.names_in(network)
    has_classes = are_same_classes(class_names, weights.class_names)
    loaded: list[str] = []
    skipped: list[Skipped] = []
    for name, (collection, path) in names.items():
        parent = node_at(trees[collection], path[:-1])
        ours, theirs = parent[path[-1]], weights.variables.get(name)
        if theirs is None or theirs.shape != ours.shape or (path[0] == "dense" and not has_classes):
            skipped.append(Skipped(name, ours.shape, None if theirs is None else theirs.shape))
        else:
            require_finite({name: theirs}, weights.source, "Take an earlier checkpoint.")
            parent[path[-1]] = jnp.array(theirs, ours.dtype)
            loaded.append(name)
    if len(skipped) > len(loaded):
        got = f"{len(loaded)} of {len(names)} variables that fit (the first that does not is {skipped[0]})"
        do = "Set the options of the network to the checkpoint's, or give another checkpoint."
        raise UserError(f"Weights {weights.source}", got, "weights of the same network", do)
    left_over = tuple(name for name in weights.variables if name not in names)
    notes = tuple(_notes(weights, left_over, network, class_names))
    report = TransferReport(weights.source, tuple(loaded), tuple(skipped), left_over, notes)
    return trees["params"], trees["batch_stats"], report


def _notes(
    weights: Weights, left_over: Iterable[str], network: Network, class_names: list[str] | None
) -> Iterator[str]:
    """Notes for the user on a run that starts from these weights."""
    there, here = weights.options.get("num_label_classes"), network.num_classes
    if {there, here} == {1000, 1001}:  # one of them has a class for the background before ImageNet's 1000
        yield f"of 1001 classes the first is the background; with {there} there and {here} here, labels shift by one"
    if class_names and weights.class_names and are_names_for_numbers(class_names, weights.class_names):
        yield f"these weights know their classes only by number; in the order of the data, {numbering(class_names)}"
    if weights.masks:  # of the pruning fork; the masks of our own checkpoints are among what is left over
        masks = f"the masks of {len(weights.masks)} variables are not used"
        yield f"{masks}: masked weights begin at 0, and training changes them"
    if any(name.startswith("ema/") or name.endswith(AVERAGE) for name in left_over):
        note = "evaluations of these weights use their moving averages"
        if not _has_file_form(network):
            yield f"{note}, which cannot be written to a file to start from"
        else:
            command = f"resnet-tpu convert {shlex.quote(weights.source)} averages.safetensors"
            yield f"{note}. To start from those, give the file that this writes: {command}"


def _has_file_form(network: Network) -> bool:
    """Whether `convert` can write the network as a .safetensors file."""
    try:
        check_writable(network)
        torch_names(network)
    except UserError:
        return False
    return not network.model.inner_channels
