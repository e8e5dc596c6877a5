"""The arrays of a network by name: each layer finds its own in its scope, or makes them if the network is new."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.models.arrays import Arrays, Path, copy_dicts, leaf_at, node_at, put

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""An initialiser: returns the values of an array of this shape, float32."""


class NamedArrays:
    """The arrays during one call of the network. The trees passed in are not changed.

    Names are relative to the current scope, such as `norm/scale` in the scope `group1/block1/conv1`.
    """

    def __init__(
        self, params: Arrays, batch_stats: Arrays, *, make: Callable[[Draw, tuple[int, ...]], Any] | None = None
    ) -> None:
        """make: makes the arrays of a new network, which are collected in `params` and `batch_stats`."""
        self.params: Arrays = copy_dicts(params)
        self.batch_stats: Arrays = copy_dicts(batch_stats)
        self._make = make
        self._scope: Path = ()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Puts the names of the `with` block under `name`, which also appears in compiled programs and profiles."""
        outer = self._scope
        self._scope = (*outer, *name.split("/"))
        try:
            with jax.named_scope(name):
                yield
        finally:
            self._scope = outer

    def modules(self) -> Collection[str]:
        """The names of the modules in the current scope that have parameters."""
        return node_at(self.params, self._scope).keys()

    def param(self, name: str, draw: Draw, shape: tuple[int, ...]) -> jax.Array:
        """The parameter `name`; in a new network, one of this shape, initialised by `draw`."""
        return self._array("params", name, draw, shape)

    def stat(self, name: str, draw: Draw, shape: tuple[int, ...]) -> jax.Array:
        """The running statistic `name`; in a new network, one of this shape, initialised by `draw`."""
        return self._array("batch_stats", name, draw, shape)

    def get(self, collection: str, name: str) -> jax.Array:
        """The array `name` of `collection`, 'params' or 'batch_stats'."""
        return leaf_at(self._trees, (collection, self._path(name)))

    def set_stat(self, name: str, value: jax.Array) -> None:
        """Replaces the running statistic `name`."""
        put(self.batch_stats, self._path(name), value)

    def _array(self, collection: str, name: str, draw: Draw, shape: tuple[int, ...]) -> jax.Array:
        if self._make is None:
            return self.get(collection, name)
        put(self._trees[collection], self._path(name), self._make(draw, shape))
        return jnp.zeros(shape)  # a new network is only traced

    def _path(self, name: str) -> Path:
        return (*self._scope, *name.split("/"))

    @property
    def _trees(self) -> dict[str, Arrays]:
        return {"params": self.params, "batch_stats": self.batch_stats}
