"""Arrays of a network, nested as its modules are."""

import functools
import operator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from resnet_tpu.errors import NonFiniteError

Arrays = dict[str, Any]
"""Nested dicts of arrays by module name: `arrays["group1"]["block1"]["conv1"]["conv"]["kernel"]`."""

Path = tuple[str, ...]
"""The keys that lead to an array."""

Leaf = tuple[str, Path]
"""The place of an array in a network: 'params' or 'batch_stats', and the keys that lead to it."""


def leaf_at(trees: Mapping[str, Arrays], leaf: Leaf) -> Any:
    """The array at `leaf` in `trees`: {"params": ..., "batch_stats": ...}."""
    collection, path = leaf
    return node_at(trees[collection], path)


def node_at(tree: Arrays, path: Path) -> Any:
    """The array at `path` in `tree`, or the module there, itself a tree. Raises KeyError when there is none."""
    return functools.reduce(operator.getitem, path, tree)


def leaves(arrays: Arrays) -> list[tuple[str, Any]]:
    """(name, array) for each array, as in `group1/block1/conv1/conv/kernel`; modules are sorted by name."""
    flat, _ = jax.tree_util.tree_flatten_with_path(arrays)
    return [("/".join(str(getattr(key, "key", key)) for key in path), leaf) for path, leaf in flat]


def first_not_finite(arrays: Arrays) -> str:
    """The name of the first array that holds nan or inf; empty if none does."""
    return next((name for name, leaf in leaves(arrays) if not np.isfinite(np.asarray(leaf)).all()), "")


def require_finite(arrays: Arrays, of: str, do: str) -> None:
    """Raises NonFiniteError if an array holds nan or inf, naming the first. of: what the arrays belong to."""
    if name := first_not_finite(arrays):
        raise NonFiniteError(f"Weights of {of}", f"nan or inf in {name}", "finite numbers", do)


def nest(named: Mapping[str, Any]) -> Arrays:
    """The inverse of `leaves`: {"a/b": 1} -> {"a": {"b": 1}}."""
    arrays: Arrays = {}
    for name, array in named.items():
        put(arrays, tuple(name.split("/")), array)
    return arrays


def copy_dicts(tree: Any) -> Any:
    """The same arrays in new dicts, which the caller may change."""
    return jax.tree.map(lambda leaf: leaf, tree)


def put(arrays: Arrays, path: Path, leaf: Any) -> None:
    """Sets the array at `path` to `leaf`, in place, and adds the modules that are missing on the way."""
    for name in path[:-1]:
        arrays = arrays.setdefault(name, {})
    arrays[path[-1]] = leaf
