"""The layers of a network that can be pruned, by their names in the original's pruning fork."""

import numpy as np

from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.models.arrays import Arrays, Path, node_at
from resnet_tpu.models.network import Network
from resnet_tpu.pruning.masks import LayerKernels, Masks, full_masks


def maskable(network: Network) -> dict[str, Path]:
    """The kernels that can be pruned, by the fork's names, in the order in which the original makes them.

    Convolutions are `conv_J`, projections of shortcuts `proj_J_P`: J is the number of the next convolution that is not
    a projection, P its number among all, both from 1. The classifier is `dense`. Squeeze-and-excite is never pruned.
    """
    kernels = [path for name, (_, path) in tf_names(network).items() if name.endswith("/kernel")]
    found: dict[str, Path] = {}
    number, position = 1, 0
    for path in kernels:
        if path[0] == "dense":
            found["dense"] = path
        elif "squeeze_excite" not in path:
            position += 1
            is_projection = "projection" in path
            found[f"proj_{number}_{position}" if is_projection else f"conv_{number}"] = path
            number += not is_projection
    return found


def kernels_of(params: Arrays, layers: dict[str, Path]) -> LayerKernels:
    """The kernels of these layers."""
    return {name: node_at(params, path) for name, path in layers.items()}


def masks_of(arrays: Arrays, layers: dict[str, Path]) -> Masks:
    """The masks in the arrays of a checkpoint; masks that keep everything if it has none."""
    if "masks" not in arrays:
        return full_masks(kernels_of(arrays["params"], layers))
    return {name: np.asarray(node_at(arrays["masks"], path)) for name, path in layers.items()}
