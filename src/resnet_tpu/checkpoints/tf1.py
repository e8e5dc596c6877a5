"""Finds, reads and writes checkpoints of the original program (TensorFlow 1)."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from google.protobuf import text_encoding

from resnet_tpu import storage
from resnet_tpu.checkpoints.tf1_bundle import read_bundle, write_bundle
from resnet_tpu.checkpoints.tf1_describe import AVERAGE, LARS, MOMENTUM, STEP, check_original, contents
from resnet_tpu.checkpoints.tf1_lottery import masked_variables, masks_by_layer
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, Leaf, leaf_at, node_at, put
from resnet_tpu.models.network import Network

STATE = "checkpoint"
"""File in a folder of checkpoints that names the latest."""

_FILE = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_STATE_PATH = re.compile(r'^[ \t]*model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)


def prefix_of(path: str) -> str:
    """`path` without the ending that a file of a checkpoint adds to the prefix."""
    return _FILE.sub("", path)


def find_checkpoint(path: str) -> str | None:
    """The prefix of the checkpoint that `path` means: a prefix, one of its files, or a folder of checkpoints.

    In a folder it is the one that the file `checkpoint` names as the latest, even if the folder has been moved; without
    that file, the one of the highest step. None when there is no checkpoint.
    """
    prefix = prefix_of(path)
    if storage.exists(f"{prefix}.index"):
        return prefix
    names = storage.list_dir(path)
    if STATE in names and (latest := read_state(storage.join(path, STATE))):
        moved = storage.join(path, re.split(r"[/\\]", latest)[-1])  # the state file may name the old folder
        for prefix in (moved, latest if storage.is_remote(latest) else storage.join(path, latest)):
            if storage.exists(f"{prefix}.index"):
                return prefix
    found = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    return storage.join(path, max(found, key=_step_of)) if found else None


def read_state(path: str) -> str | None:
    """The name of the latest checkpoint in the state file at `path`; None if that is another file, or a folder."""
    try:
        match = _STATE_PATH.search(storage.read_text(path))
        return text_encoding.CUnescape(match[1]).decode() if match else None
    except (OSError, ValueError):
        return None


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


def from_tf1(network: Network, variables: Mapping[str, np.ndarray]) -> Arrays:
    """All variables of a checkpoint of the original, or of its pruning fork, as the arrays of one of our checkpoints.

    step, an int, 0 if there is none; params, batch_stats, and momentum and ema if there are any, float32. Masks are
    applied to all of them and, if they remove anything, are part of the arrays, bool. The slots of Momentum equal
    ours, and so do those of LARS since TensorFlow 1.15 (earlier ones leave out the learning rate). Raises UserError
    when a variable is missing or has another shape than in the network.
    """
    check_original(variables)
    masks = masks_by_layer(variables)
    variables = masked_variables(variables)
    _check_depth(network, variables)
    names = tf_names(network)
    trainable = {name: leaf for name, leaf in names.items() if leaf[0] == "params"}
    arrays: Arrays = {"step": int(variables.get(STEP, 0)), **_fill(network, names, variables, "")}
    found = contents(variables)
    if found.optimizer:
        arrays["momentum"] = _fill(network, trainable, variables, f"/{found.optimizer}")["params"]
    if found.averaged:
        arrays["ema"] = _fill(network, names, variables, AVERAGE)
    if not all(mask.all() for mask in masks.values()):
        arrays["masks"] = {}
        for name, (_, path) in names.items():
            layer, _, variable = name.partition("/")
            if variable == "kernel" and "squeeze_excite" not in path:
                mask = masks.get(layer, np.ones(variables[name].shape, bool))
                put(arrays["masks"], path, mask.astype(bool))
    return arrays


def _fill(
    network: Network, names: Mapping[str, Leaf], variables: Mapping[str, np.ndarray], suffix: str
) -> dict[str, Arrays]:
    """The variables in `names`, each with `suffix` added to its name, in their places in the network."""
    filled: Any = network.shape_trees()
    for name, (collection, path) in names.items():
        parent = leaf_at(filled, (collection, path[:-1]))
        what, shape = f"Checkpoint variable {name}{suffix}", list(parent[path[-1]].shape)
        variable = variables.get(f"{name}{suffix}")
        if variable is None:
            raise UserError(what, "nothing", f"shape {shape}", "Give a checkpoint of this network.")
        if list(variable.shape) != shape:
            got = f"shape {list(variable.shape)}"
            raise UserError(what, got, str(shape), "Set the options of the network to the checkpoint's.")
        parent[path[-1]] = np.asarray(variable, np.float32)
    return filled


def _check_depth(network: Network, variables: Collection[str]) -> None:
    """Raises UserError when the checkpoint has more or fewer convolutions than the network.

    The numbers in their names would then mean other layers, and some would fit by accident.
    """
    pattern = re.compile(r"conv2d(_\d+)?/kernel")
    theirs = sum(bool(pattern.fullmatch(name)) for name in variables)
    ours = sum(bool(pattern.fullmatch(name)) for name in tf_names(network))
    if theirs != ours:
        expected = f"{ours}, as in resnet_depth {network.model.resnet_depth}"
        do = "Set resnet_depth to the checkpoint's, or give another checkpoint."
        raise UserError("Checkpoint", f"{theirs} convolutions", expected, do)


def write_checkpoint(folder: str, network: Network, arrays: Arrays, *, lars: bool = False) -> str:
    """Writes the arrays of one of our checkpoints as the original does. Returns the prefix, `folder/model.ckpt-<step>`.

    `arrays`: step, params, batch_stats, and momentum and ema if there are any; `lars`: whether the momentum is that of
    LARS. The file `checkpoint` then names it as the latest. No graph (`.meta`) is written: the original builds its own.
    TensorFlow can also read a network that the original does not have; the original cannot.
    """
    names = tf_names(network)
    step = int(arrays["step"])
    variables: dict[str, Any] = {STEP: np.array(step, np.int64)}
    for name, leaf in names.items():
        variables[name] = leaf_at(arrays, leaf)
        if arrays.get("momentum") is not None and leaf[0] == "params":
            variables[f"{name}{LARS if lars else MOMENTUM}"] = node_at(arrays["momentum"], leaf[1])
        if arrays.get("ema") is not None:
            variables[f"{name}{AVERAGE}"] = leaf_at(arrays["ema"], leaf)
    storage.make_dir(folder)
    name = f"model.ckpt-{step}"
    prefix = storage.join(folder, name)
    write_bundle(prefix, variables)
    state = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
    storage.write_text(storage.join(folder, STATE), state)
    return prefix
