"""The names of the original program's variables, and their places in a network."""

from collections import Counter
from collections.abc import Iterator

from resnet_tpu.models.arrays import Arrays, Leaf
from resnet_tpu.models.network import Network

# TensorFlow's name of each kind of layer, and its variables in order of creation, with their places here
_CONV = ("conv2d", (("kernel", "params", "kernel"), ("bias", "params", "bias")))
_DENSE = ("dense", (("kernel", "params", "kernel"), ("bias", "params", "bias")))
_BATCH_NORM = (
    "batch_normalization",
    (
        ("gamma", "params", "scale"),
        ("beta", "params", "bias"),
        ("moving_mean", "batch_stats", "mean"),
        ("moving_variance", "batch_stats", "var"),
    ),
)
_EVONORM = (
    "evonorm",
    (
        ("beta", "params", "bias"),
        ("gamma", "params", "scale"),
        ("v", "params", "v"),
        ("moving_variance", "batch_stats", "var"),
    ),
)
# Names of modules without their numbers. A norm is created after its convolution, but norm_in before everything else
# in its block.
_CREATION_ORDER = (
    "stem", "pool", "group", "block", "norm_in", "projection", "conv", "norm", "squeeze_excite", "reduce", "expand",
    "norm_out", "dense",
)  # fmt: skip


def tf_names(network: Network) -> dict[str, Leaf]:
    """The place in `network` of each variable of the original, in the original's order of creation.

    Layers are numbered as they are created, a projection before the convolutions of its block.
    """
    trees = network.shape_trees()
    counts: Counter[str] = Counter()
    names: dict[str, Leaf] = {}
    for path in _layers(trees["params"], ()):
        kind, variables = _kind(path, _at(trees["params"], path))
        layer = f"{kind}_{counts[kind]}" if counts[kind] else kind
        counts[kind] += 1
        for variable, collection, leaf in variables:
            if leaf in _at(trees[collection], path):
                names[f"{layer}/{variable}"] = (collection, (*path, leaf))
    return names


def _layers(modules: Arrays, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of the layers below `path` in order of creation."""

    def creation(name: str) -> tuple[int, int]:
        kind = name.rstrip("0123456789")
        return _CREATION_ORDER.index(kind), int(name[len(kind) :] or 0)

    for name in sorted(modules, key=creation):
        if any(isinstance(child, dict) for child in modules[name].values()):
            yield from _layers(modules[name], (*path, name))
        else:
            yield (*path, name)


def _kind(path: tuple[str, ...], layer: Arrays) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    if path[-1].startswith("norm"):
        return _EVONORM if "v" in layer else _BATCH_NORM
    return _DENSE if path[-1] == "dense" else _CONV


def _at(arrays: Arrays, path: tuple[str, ...]) -> Arrays:
    """The arrays of one layer in this collection; none if the layer has none."""
    for name in path:
        arrays = arrays.get(name, {})
    return arrays
