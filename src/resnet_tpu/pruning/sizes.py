"""The size of a pruned network: weights kept in each layer, parameters, multiply-adds."""

import math
from dataclasses import dataclass

import numpy as np

from resnet_tpu.models.arrays import Arrays, node_at
from resnet_tpu.models.flops import multiply_adds, parameter_shapes
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.layers import maskable


@dataclass(frozen=True)
class LayerSize:
    """A prunable layer, by its name in the pruning fork: its weights, those kept, and multiply-adds per image.

    The multiply-adds are those of the kept weights: the layer's total times its density.
    """

    layer: str
    weights: int
    kept: int
    density: float
    multiply_adds: int


@dataclass(frozen=True)
class Size:
    """The size of a masked network. Parameters and multiply-adds are those left in all layers."""

    layers: tuple[LayerSize, ...]
    parameters: int
    multiply_adds: int

    @property
    def density(self) -> float:
        """The fraction of the weights of all prunable layers that is kept."""
        return sum(layer.kept for layer in self.layers) / sum(layer.weights for layer in self.layers)


def size_of(config: Config, masks: Arrays | None) -> Size:
    """The size of the network of a run. config: resolved. masks: of its checkpoint, if any."""
    network = network_of(config)
    paths, shapes, work = maskable(network), parameter_shapes(network), multiply_adds(network)
    layers = []
    for name, path in paths.items():
        total = math.prod(shapes[path])
        kept = total if masks is None else int(np.count_nonzero(node_at(masks, path)))
        layers.append(LayerSize(name, total, kept, kept / total, round(work[path] * kept / total)))
    removed = sum(layer.weights - layer.kept for layer in layers)
    saved = sum(work[path] for path in paths.values()) - sum(layer.multiply_adds for layer in layers)
    return Size(tuple(layers), sum(map(math.prod, shapes.values())) - removed, sum(work.values()) - saved)
