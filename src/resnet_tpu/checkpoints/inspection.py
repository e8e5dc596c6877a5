"""Lists the arrays in a file of weights, and names the likely network. Values are not loaded if the names suffice."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from resnet_tpu.checkpoints.tf1_describe import contents
from resnet_tpu.checkpoints.tf1_lottery import rename
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.checkpoints.weights import FIXED_BY_WEIGHTS, ORIGIN, Weights, locate, outline, weights_of
from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.errors import UserError, listed, visible
from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import OPTIONS, VARIANT, Config

_NAMED = ("stem", *VARIANT, "se_ratio", *FIXED_BY_WEIGHTS, *ORIGIN)
"""Options that a summary names if they differ from the default."""

_SHOWN_CLASSES = 5
_ONE_OUTPUT = ("num_label_classes", 1)  # a yes-or-no classifier, which no network has here

_WRITERS = {
    "ours": "resnet_tpu",
    "tf1": "the original program (TensorFlow 1)",
    "torch": "PyTorch (torchvision or timm)",
}


@dataclass(frozen=True)
class Entry:
    """An array of a file. `leaf`: its name in our network, as in --freeze; '' for one that is not part of it."""

    name: str
    leaf: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


@dataclass(frozen=True)
class Inspection:
    """The arrays of a file, in the order of the network's layers and then the rest, and what the file seems to be."""

    source: str
    entries: list[Entry]
    summary: str


def inspect(path: str) -> Inspection:
    """The contents of the weights that `path` means (see `weights.locate`). Raises UserError if they are unreadable."""
    found = locate(path)
    arrays = outline(found)
    try:
        weights = weights_of(found, arrays)
        known = {name: value for name, value in weights.options.items() if (name, value) != _ONE_OUTPUT}
        network = network_of(Config().replace(**known))
        summary, names = f"{summarize(weights, network)}.", _names_of_leaves(weights, network, arrays)
    except UserError as error:
        summary, names = f"Arrays of {_WRITERS[found.kind]}, but not of a known network: {error}", {}
    order = {name: number for number, name in enumerate(names)}
    entries = [
        Entry(name, names.get(name, ""), array.shape, str(array.dtype), array.size * array.dtype.itemsize)
        for name, array in sorted(arrays.items(), key=lambda pair: (order.get(pair[0], len(order)), _natural(pair[0])))
    ]
    return Inspection(found.path, entries, summary)


def summarize(weights: Weights, network: Network) -> str:
    """A sentence on what the weights are, and what else the file holds."""
    model, options = network.model, weights.options
    name = f"ResNet-{model.resnet_depth}" + (f" of width {model.resnet_width}" if model.resnet_width else "")
    variant = [_in_words(option, options[option]) for option in _NAMED if _is_special(option, options)]
    names = weights.names_in(network).items()
    num_parameters = sum(
        weights.variables[name].size
        for name, (collection, _) in names
        if collection == "params" and name in weights.variables
    )
    return ", ".join(
        [
            f"{name} of {_WRITERS[weights.kind]}",
            *variant,
            _classifier(weights, network),
            f"{num_parameters / 1e6:.1f} M parameters" if num_parameters >= 1e6 else f"{num_parameters:,} parameters",
            *([f"step {weights.step}"] if weights.step is not None else []),
            *_kept(weights),
        ]
    )


def _classifier(weights: Weights, network: Network) -> str:
    if _ONE_OUTPUT in weights.options.items():
        return "a classifier with one output, which is not used here"
    return f"{network.num_classes} classes{_examples(weights.class_names)}" if network.num_classes else "no classifier"


def _examples(class_names: list[str] | None) -> str:
    """The first class names in brackets; nothing if there are none, or only numbers."""
    if class_names is None or class_names == numbers_as_names(len(class_names)):
        return ""
    return f" ({listed(class_names, _SHOWN_CLASSES)})"


def _is_special(option: str, options: Mapping[str, Any]) -> bool:
    """Whether an option is worth mentioning: it is known, and its value is not the usual one."""
    return option in options and options[option] not in (OPTIONS[option].default, "imagenet")


def _in_words(option: str, value: Any) -> str:
    return option if value is True else f"{option}={value}"


def _kept(weights: Weights) -> list[str]:
    """Names what the file holds besides the weights: optimizer state, averages."""
    if weights.kind == "torch":
        return []
    if weights.kind == "tf1":
        found = contents(weights.variables)
        momentum, averaged = f"{found.optimizer} slots" if found.optimizer else "no optimizer slots", found.averaged
    else:
        momentum, averaged = "momentum", any(name.startswith("ema/") for name in weights.variables)
    return [momentum, "moving averages" if averaged else "no averages"]


def _names_of_leaves(weights: Weights, network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Name in `network` of each array that has one, by its name in the file, in the order of the layers."""
    # the pruning fork names variables differently from the original
    in_file = rename({name: name for name in arrays}) if weights.kind == "tf1" else {name: name for name in arrays}
    found = {leaf: in_file[name] for name, leaf in weights.names_in(network).items() if name in in_file}
    return {found[leaf]: "/".join(leaf[1]) for leaf in tf_names(network).values() if leaf in found}


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts conv2d_9 before conv2d_10."""
    return [(len(part), part) if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def render(inspection: Inspection) -> RenderableType:
    """The arrays as a table, and what they seem to be."""
    table = Table("name", "name here", "shape", "dtype", "bytes", title=escape(visible(inspection.source)))
    for column in table.columns[:2]:
        column.overflow = "fold"
    table.columns[4].justify = "right"
    for entry in inspection.entries:
        shape = "×".join(map(str, entry.shape))
        table.add_row(escape(visible(entry.name)), entry.leaf, shape, entry.dtype, f"{entry.num_bytes:,}")
    table.add_section()
    total = sum(entry.num_bytes for entry in inspection.entries)
    table.add_row(f"{len(inspection.entries)} arrays", "", "", "", f"{total:,}")
    return Group(table, escape(visible(inspection.summary)))
