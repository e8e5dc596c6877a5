"""The names of a ResNet's arrays in torchvision and timm, and their layout in PyTorch."""

import numpy as np

from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Leaf, leaves
from resnet_tpu.models.network import Network

# Modules outside the groups; torchvision has only the 7x7 stem and the classifier, the others are timm's
_MODULES = {
    ("stem", "conv"): "conv1",
    ("stem", "norm"): "bn1",
    ("stem", "conv1", "conv"): "conv1.0",
    ("stem", "conv1", "norm"): "conv1.1",
    ("stem", "conv2", "conv"): "conv1.3",
    ("stem", "conv2", "norm"): "conv1.4",
    ("stem", "conv3", "conv"): "conv1.6",
    ("stem", "conv3", "norm"): "bn1",
    ("pool", "conv"): "maxpool.0",
    ("pool", "norm"): "maxpool.1",
    ("dense",): "fc",
}
_SQUEEZE_EXCITE = {"reduce": "se.fc1", "expand": "se.fc2"}
_VARIABLES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def torch_names(network: Network) -> dict[str, Leaf]:
    """The place in `network` of each array of torchvision's or timm's ResNet, by PyTorch's name.

    Raises UserError for a network that they have no names for: a pre-activated one.
    """
    if network.model.pre_activation:
        do = "Leave pre_activation out, or choose another format."
        raise UserError("pre_activation", True, "False, as in torchvision and timm", do)
    names: dict[str, Leaf] = {}
    for collection, shapes in network.shape_trees().items():
        for name, _ in leaves(shapes):
            *module, variable = name.split("/")
            prefix = _module_name(tuple(module), pools_shortcut=network.model.resnetd_shortcut)
            names[f"{prefix}.{_VARIABLES[variable]}"] = (collection, (*module, variable))
    return names


def _module_name(path: tuple[str, ...], *, pools_shortcut: bool) -> str:
    if path in _MODULES:
        return _MODULES[path]
    group, block, module, part = path
    prefix = f"layer{group.removeprefix('group')}.{int(block.removeprefix('block')) - 1}"
    if module == "projection":  # after the pooling, which exists even if it has stride 1 and does nothing
        return f"{prefix}.downsample.{pools_shortcut + (part == 'norm')}"
    if module == "squeeze_excite":
        return f"{prefix}.{_SQUEEZE_EXCITE[part]}"
    return f"{prefix}.{'conv' if part == 'conv' else 'bn'}{module.removeprefix('conv')}"


def to_ours(array: np.ndarray) -> np.ndarray:
    """PyTorch's layout -> ours: kernels [out, in, k, k] -> [k, k, in, out], the classifier [out, in] -> [in, out]."""
    return np.transpose(array, (2, 3, 1, 0)) if array.ndim == 4 else array.T


def to_torch(array: np.ndarray) -> np.ndarray:
    """Our layout -> PyTorch's, the inverse of `to_ours`."""
    return np.transpose(array, (3, 2, 0, 1)) if array.ndim == 4 else array.T
