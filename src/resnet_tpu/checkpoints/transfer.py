"""Starting a training from the weights of another: what fits is loaded, and all that does not is reported."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.checkpoints import store, tf1
from resnet_tpu.checkpoints.tf1_names import Leaf, tf_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.network import Arrays, Network


@dataclass(frozen=True)
class Skipped:
    """A variable of the network that keeps its initial value."""

    name: str
    shape: tuple[int, ...]
    source_shape: tuple[int, ...] | None  # None where the source has no such variable

    def __str__(self) -> str:
        there = "not there" if self.source_shape is None else f"{list(self.source_shape)} there"
        return f"{self.name}: {there}, {list(self.shape)} here"


@dataclass(frozen=True)
class TransferReport:
    """What became of every variable of the network and of the source, by the source's names."""

    source: str
    loaded: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    left_over: tuple[str, ...]  # of the source: optimizer slots, averages, the step, and what the network has not

    def __str__(self) -> str:
        """Lines for the log; copies of variables, such as optimizer slots, are counted instead of named."""
        total = len(self.loaded) + len(self.skipped)
        lines = [f"Started from {self.source}: {len(self.loaded)} of {total} variables loaded."]
        lines += [f"  initial value kept: {skipped}" for skipped in self.skipped]
        known = {*self.loaded, *(skipped.name for skipped in self.skipped)}
        copies: Counter[str] = Counter()
        for name in self.left_over:
            variable, _, suffix = name.rpartition("/")
            if variable in known:
                copies[suffix] += 1
            else:
                lines.append(f"  not used: {name}")
        lines += [f"  not used: {suffix} of {count} variables" for suffix, count in copies.items()]
        return "\n".join(lines)


def start_from(
    network: Network, path: str, params: Arrays, batch_stats: Arrays
) -> tuple[Arrays, Arrays, TransferReport]:
    """`params` and `batch_stats` with the weights of the checkpoint at `path` wherever name and shape are the same.

    `path` is a TF1 checkpoint of the original (see `tf1.find_checkpoint`), or a checkpoint or model_dir of ours. Step,
    optimizer slots and moving averages are never loaded; the classifier is not when the number of classes differs.
    Raises UserError when there is no checkpoint, it is damaged, or it is of another network.
    """
    if tf1.find_checkpoint(path) is None:
        variables = store.load_named(store.find(path), ("params", "batch_stats"))
        return transfer(path, variables, _own_names(params, batch_stats), params, batch_stats)
    variables = tf1.read_checkpoint(path)
    tf1.check_depth(network, variables)
    return transfer(path, variables, tf_names(network), params, batch_stats)


def _own_names(params: Arrays, batch_stats: Arrays) -> dict[str, Leaf]:
    names = (name for name, _ in store.leaves({"params": params, "batch_stats": batch_stats}))
    return {name: (name.split("/")[0], tuple(name.split("/")[1:])) for name in names}


def transfer(
    source: str, variables: Mapping[str, np.ndarray], names: Mapping[str, Leaf], params: Arrays, batch_stats: Arrays
) -> tuple[Arrays, Arrays, TransferReport]:
    """The arrays with those of `variables` that fit, and what fitted. `names` says where each variable belongs.

    Raises UserError when most do not fit: then `variables` are of another network.
    """
    trees: dict[str, Any] = jax.tree.map(lambda leaf: leaf, {"params": params, "batch_stats": batch_stats})
    loaded: list[str] = []
    skipped: list[Skipped] = []
    for name, (collection, path) in names.items():
        parent = trees[collection]
        for key in path[:-1]:
            parent = parent[key]
        ours, theirs = parent[path[-1]], variables.get(name)
        if theirs is None or theirs.shape != ours.shape:
            skipped.append(Skipped(name, ours.shape, None if theirs is None else theirs.shape))
        else:
            parent[path[-1]] = jnp.array(theirs, ours.dtype)
            loaded.append(name)
    if len(skipped) > len(loaded):
        got = f"{len(loaded)} of {len(names)} variables that fit (the first that does not is {skipped[0]})"
        do = "Set the options of the network to the checkpoint's, or give another checkpoint."
        raise UserError(f"Checkpoint {source}", got, "weights of the same network", do)
    left_over = tuple(name for name in variables if name not in names)
    return trees["params"], trees["batch_stats"], TransferReport(source, tuple(loaded), tuple(skipped), left_over)
