"""A network as a pure function of its arrays."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.models.architecture import Architecture
from resnet_tpu.models.arrays import Arrays, copy_dicts
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.models.named_arrays import Draw, NamedArrays
from resnet_tpu.models.named_layers import NamedLayers, Training
from resnet_tpu.models.resnet import resnet
from resnet_tpu.options.config import ModelConfig


@dataclass(frozen=True)
class Network:
    """The structure of a network, without its arrays."""

    model: ModelConfig
    """The options that it was made from. `architecture` repeats those that define its structure; colours and precision
    are only here."""
    architecture: Architecture
    num_classes: int
    image_size: int
    kernels: Kernels = PLAIN
    """How training computes the layers."""

    def with_kernels(self, kernels: Kernels) -> "Network":
        """The same network, with these kernels in training."""
        return dataclasses.replace(self, kernels=kernels)

    def init(self, seed: int) -> tuple[Arrays, Arrays]:
        """Initial (params, batch_stats), float32, drawn from `seed`: the same everywhere."""
        rng = np.random.default_rng(seed)
        return jax.tree.map(jnp.array, _make(self._structure, lambda draw, shape: draw(rng, shape)))

    def shapes(self) -> tuple[Arrays, Arrays]:
        """(params, batch_stats) as `jax.ShapeDtypeStruct`s."""
        return copy_dicts(_shapes(self._structure))

    def shape_trees(self) -> dict[str, Arrays]:
        """The shapes as nested in a checkpoint, under `params` and `batch_stats`."""
        return dict(zip(("params", "batch_stats"), self.shapes(), strict=True))

    def apply(
        self,
        params: Arrays,
        batch_stats: Arrays,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
        progress: jax.Array | float = 0.0,
    ) -> tuple[jax.Array, Arrays]:
        """Normalised images [n, h, w, 3] -> (logits float32 [n, num_classes], the batch statistics afterwards).

        In training, `key` is the step's own and `progress` the fraction of all steps done, float32 []; see `Training`.
        Raises ValueError when training needs a key and gets none.
        """
        training = Training(key, progress) if train else None
        arrays = NamedArrays(params, batch_stats)
        net = NamedLayers(self.architecture, self._dtype, arrays, training=training, kernels=self.kernels)
        logits = resnet(net, images, self.num_classes)
        return logits, arrays.batch_stats

    def outputs(self, params: Arrays, batch_stats: Arrays, images: jax.Array) -> dict[str, jax.Array]:
        """Normalised images [n, h, w, 3] -> the output of each of the `stages` by name, in evaluation, float32.

        The stem and the groups give [n, h, w, c], `pooled` gives [n, c], `logits` [n, num_classes].
        """
        net = NamedLayers(self.architecture, self._dtype, NamedArrays(params, batch_stats))
        logits = resnet(net, images, self.num_classes)
        return {name: output.astype(jnp.float32) for name, output in (*net.outputs.items(), ("logits", logits))}

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the parts of the network, from `stem` to `logits`."""
        groups = range(1, len(self.architecture.blocks_per_group) + 1)
        return ("stem", *(f"group{number}" for number in groups), "pooled", "logits")

    @property
    def _dtype(self) -> Any:
        return jnp.dtype(self.model.precision)

    @property
    def _structure(self) -> "_Structure":
        return self.architecture, self.num_classes, self.image_size


_Structure = tuple[Architecture, int, int]
"""What determines the arrays of a network: its architecture, the number of classes, the image size."""


def _make(structure: _Structure, make: Callable[[Draw, tuple[int, ...]], Any]) -> tuple[Arrays, Arrays]:
    architecture, num_classes, image_size = structure
    arrays = NamedArrays({}, {}, make=make)
    net = NamedLayers(architecture, jnp.float32, arrays)
    images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
    jax.eval_shape(lambda images: resnet(net, images, num_classes), images)
    return arrays.params, arrays.batch_stats


@functools.lru_cache(maxsize=32)  # a deep network takes a second to trace, and a conversion asks many times
def _shapes(structure: _Structure) -> tuple[Arrays, Arrays]:
    return _make(structure, lambda _, shape: jax.ShapeDtypeStruct(shape, np.float32))
