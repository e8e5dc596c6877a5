"""Masks: which weights of a network are kept, by the layer names of the original's pruning fork.

A network's maskable weights are the kernels of its convolutions (`conv_J`, projections `proj_J_P`) and of the
classifier (`dense`), in the order in which the layers are made. A mask is bool, True for what is kept.
"""

from collections.abc import Iterable, Mapping

import numpy as np

LayerKernels = Mapping[str, np.ndarray]
"""Kernels float32 by layer, HWIO or [in, out]."""

Masks = dict[str, np.ndarray]
"""Masks bool by layer."""


def all_kept(kernels: LayerKernels) -> Masks:
    """The masks of a network that was never pruned."""
    return {name: np.ones(kernel.shape, bool) for name, kernel in kernels.items()}


def density(masks: Iterable[np.ndarray]) -> float:
    """The fraction of weights that is kept, of all together."""
    masks = list(masks)
    return sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks)
