"""The computational cost of a network: the multiply-adds of its convolutions and its classifier, kernel by kernel."""

import math
from collections.abc import Iterator

from resnet_tpu.models.architecture import Architecture
from resnet_tpu.models.arrays import Path, leaves
from resnet_tpu.models.network import Network

PASSES_PER_STEP = 3
"""Cost of a training step in forward passes: the backward pass computes two products for each forward product."""


def forward_flops(network: Network) -> int:
    """FLOPs of the convolutions and the classifier for one image: two for each multiply-add.

    ResNet-50 at 224 px: 8.2e9. Nothing else is counted, as is usual for the utilisation of matrix units.
    """
    return 2 * sum(multiply_adds(network).values())


def multiply_adds(network: Network) -> dict[Path, int]:
    """Multiply-adds of each kernel for one image: its number of weights times the number of output positions.

    Taps that fall on the padding count too, as is usual.
    """
    architecture = network.architecture
    stem, *groups = _sides(architecture, network.image_size)
    return {
        path: math.prod(shape) * _side(path, architecture, stem, groups) ** 2
        for path, shape in parameter_shapes(network).items()
        if path[-1] == "kernel"
    }


def parameter_shapes(network: Network) -> dict[Path, tuple[int, ...]]:
    """The shape of each parameter, by its path in the network."""
    return {tuple(name.split("/")): leaf.shape for name, leaf in leaves(network.shapes()[0])}


def _sides(architecture: Architecture, image_size: int) -> Iterator[int]:
    """Sides in pixels of the outputs of the stem, before its pooling, and of each group."""
    halvings = 0 if architecture.small_stem else 1
    yield -(-image_size // 2**halvings)
    for number in range(len(architecture.blocks_per_group)):
        yield -(-image_size // 2 ** (2 * halvings + number))


def _side(path: Path, architecture: Architecture, stem: int, groups: list[int]) -> int:
    """Side in pixels of the output of the convolution at `path`; 1 for layers that see the whole image."""
    if path[0] == "dense" or "squeeze_excite" in path:
        return 1
    if not path[0].startswith("group"):
        return stem if path[0] == "stem" else groups[0]
    group = int(path[0].removeprefix("group"))
    is_before_stride = architecture.bottleneck and path[1:3] == ("block1", "conv1")
    return groups[max(group - 2, 0) if is_before_stride else group - 1]
