"""Checkpoints of the original program (TensorFlow 1): where they are, and what their variables are called here."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from google.protobuf import text_encoding

from resnet_tpu import storage
from resnet_tpu.checkpoints.tf1_bundle import read_bundle
from resnet_tpu.checkpoints.tf1_names import Leaf, tf_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.network import Arrays, Network

STEP = "global_step"
MOMENTUM = "/Momentum"
AVERAGE = "/ExponentialMovingAverage"

_STATE_PATH = re.compile(r'^\s*model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)


def find_checkpoint(path: str) -> str | None:
    """The prefix of the checkpoint that `path` means: a prefix, its `.index` file, or a folder of checkpoints.

    In a folder it is the one that the file `checkpoint` calls the latest, wherever the folder was moved to; without
    that file the one of the highest step. None when there is no checkpoint.
    """
    prefix = path.removesuffix(".index")
    if storage.exists(f"{prefix}.index"):
        return prefix
    names = storage.list_dir(path)
    if "checkpoint" in names and (match := _STATE_PATH.search(storage.read_text(storage.join(path, "checkpoint")))):
        latest = text_encoding.CUnescape(match[1]).decode()
        moved = storage.join(path, re.split(r"[/\\]", latest)[-1])  # the state file may name the folder of old
        for place in (moved, latest if storage.is_remote(latest) else storage.join(path, latest)):
            if storage.exists(f"{place}.index"):
                return place
    found = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    return storage.join(path, max(found, key=_step_of)) if found else None


def _step_of(name: str) -> tuple[int, str]:
    match = re.search(r"(\d+)$", name)
    return (int(match[1]) if match else -1), name


def read_checkpoint(path: str) -> dict[str, np.ndarray]:
    """All variables of the checkpoint that `path` means (see `find_checkpoint`), by TensorFlow's names, sorted.

    Raises UserError when there is none or a file of it is missing or damaged.
    """
    prefix = find_checkpoint(path)
    if prefix is None:
        expected = "the prefix of a TensorFlow checkpoint (PREFIX.index, PREFIX.data-*) or a folder of them"
        raise UserError("Checkpoint", path, expected, "Check the path.")
    return read_bundle(prefix)


class Restored(NamedTuple):
    """What a checkpoint of the original holds for a network."""

    params: Arrays
    batch_stats: Arrays
    momentum: Arrays | None  # None where the checkpoint has no optimizer slots
    global_step: int | None


def from_tf1(network: Network, variables: Mapping[str, np.ndarray]) -> Restored:
    """The arrays of `network`, float32, from all variables of a checkpoint of the original.

    Raises UserError when a variable is missing or has another shape than in the network.
    """
    check_depth(network, variables)
    params, batch_stats = network.shapes()
    trees = {"params": params, "batch_stats": batch_stats}
    names = tf_names(network)
    filled = _fill(trees, names, variables)
    slots = {f"{name}{MOMENTUM}": leaf for name, leaf in names.items() if leaf[0] == "params"}
    momentum = _fill(trees, slots, variables)["params"] if any(slot in variables for slot in slots) else None
    step = int(variables[STEP]) if STEP in variables else None
    return Restored(filled["params"], filled["batch_stats"], momentum, step)


def _fill(
    trees: Mapping[str, Arrays], names: Mapping[str, Leaf], variables: Mapping[str, np.ndarray]
) -> dict[str, Arrays]:
    """`trees` of shapes with the variables in place of the leaves that `names` names."""
    filled: Any = jax.tree.map(lambda leaf: leaf, trees)
    for name, (collection, path) in names.items():
        parent: Any = filled[collection]
        for key in path[:-1]:
            parent = parent[key]
        what, shape = f"Checkpoint variable {name}", list(parent[path[-1]].shape)
        if name not in variables:
            raise UserError(what, "nothing", f"shape {shape}", "Give a checkpoint of this network.")
        if list(variables[name].shape) != shape:
            got = f"shape {list(variables[name].shape)}"
            raise UserError(what, got, str(shape), "Set the options of the network to the checkpoint's.")
        parent[path[-1]] = np.asarray(variables[name], np.float32)
    return filled


def check_depth(network: Network, variables: Mapping[str, np.ndarray]) -> None:
    """Raises UserError when the checkpoint has more or fewer convolutions than the network.

    Their numbers would then mean other layers, and some would fit by accident.
    """
    pattern = re.compile(r"conv2d(_\d+)?/kernel")
    theirs = sum(bool(pattern.fullmatch(name)) for name in variables)
    ours = sum(bool(pattern.fullmatch(name)) for name in tf_names(network))
    if theirs != ours:
        expected = f"{ours}, as in resnet_depth {network.model.resnet_depth}"
        do = "Set resnet_depth to the checkpoint's, or give another checkpoint."
        raise UserError("Checkpoint", f"{theirs} convolutions", expected, do)
