"""Masks: the weights of a network that are kept, by the layer names of the original's pruning fork.

A network's maskable weights are the kernels of its convolutions (`conv_J`, projections `proj_J_P`) and of the
classifier (`dense`), in the order in which the layers are made. A mask is bool, True for a kept weight.
"""

from collections.abc import Iterable, Mapping

import numpy as np

LayerKernels = Mapping[str, np.ndarray]
"""Kernels float32 by layer, HWIO or [in, out]."""

Masks = dict[str, np.ndarray]
"""Masks bool by layer."""


def full_masks(kernels: LayerKernels) -> Masks:
    """Masks that keep every weight, as for a network that was never pruned."""
    return {name: np.ones(kernel.shape, bool) for name, kernel in kernels.items()}


def density(masks: Iterable[np.ndarray]) -> float:
    """The fraction of all weights together that is kept."""
    masks = list(masks)
    return sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks)


def are_equal(one: Masks, other: Masks) -> bool:
    """Whether all masks of `one` are the same in `other`."""
    return all(np.array_equal(one[name], other[name]) for name in one)
