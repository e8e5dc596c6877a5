"""What the variables of the original program are called, and where they are in a network."""

from collections import Counter
from collections.abc import Iterator

from resnet_tpu.models.network import Arrays, Network

Leaf = tuple[str, tuple[str, ...]]
"""Where an array of a network is: 'params' or 'batch_stats', and the keys down to it."""

# TensorFlow's name of each kind of layer, and its variables in order of creation with their place here
_LAYERS = {
    "conv": ("conv2d", (("kernel", "params", "kernel"),)),
    "norm": (
        "batch_normalization",
        (
            ("gamma", "params", "scale"),
            ("beta", "params", "bias"),
            ("moving_mean", "batch_stats", "mean"),
            ("moving_variance", "batch_stats", "var"),
        ),
    ),
    "dense": ("dense", (("kernel", "params", "kernel"), ("bias", "params", "bias"))),
}
_CREATION_ORDER = ("stem", "group", "block", "projection", "conv", "norm", "dense")


def tf_names(network: Network) -> dict[str, Leaf]:
    """Where each variable of the original is in `network`, in the original's order of creation.

    Layers are numbered as they are created, a projection before the convolutions of its block.
    """
    params, _ = network.shapes()
    counts: Counter[str] = Counter()
    names: dict[str, Leaf] = {}
    for path in _layers(params, ()):
        kind, variables = _LAYERS[path[-1]]
        layer = f"{kind}_{counts[kind]}" if counts[kind] else kind
        counts[kind] += 1
        for variable, collection, leaf in variables:
            names[f"{layer}/{variable}"] = (collection, (*path, leaf))
    return names


def _layers(modules: Arrays, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of the layers below `path` in order of creation."""

    def creation(name: str) -> tuple[int, int]:
        kind = name.rstrip("0123456789")
        return _CREATION_ORDER.index(kind), int(name[len(kind) :] or 0)

    for name in sorted(modules, key=creation):
        if name in _LAYERS:
            yield (*path, name)
        else:
            yield from _layers(modules[name], (*path, name))
