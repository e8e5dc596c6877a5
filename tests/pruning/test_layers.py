"""Names and order of maskable layers are the original's, and tables give the known densities of their networks."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.layers import kernels_of, maskable
from resnet_tpu.pruning.masks import density, full_masks
from resnet_tpu.pruning.methods import find_method


def network(depth: int, **options: object) -> Network:
    config = Config().replace(resnet_depth=depth, **options)
    is_cifar = depth == 56
    return create_network(config.model, num_classes=10 if is_cifar else 1000, image_size=32 if is_cifar else 224)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_layers_of_the_fork(depth: int, golden: Callable[[str], Path]) -> None:
    listed = json.loads(golden("pruning/rewinding_variables.json").read_text())[str(depth)]
    net = network(depth)
    shapes = {name: list(kernel.shape) for name, kernel in kernels_of(net.shapes()[0], maskable(net)).items()}
    expected = {name.removesuffix("_w"): shape for name, shape, *_ in listed if name.endswith("_w")}
    assert list(shapes.items()) == list(expected.items())


def test_numbers_of_projections() -> None:
    assert list(maskable(network(18)))[:8] == [
        "conv_1", "proj_2_2", "conv_2", "conv_3", "conv_4", "conv_5", "proj_6_7", "conv_6",
    ]  # fmt: skip


def test_squeeze_and_excite_has_no_masks() -> None:
    plain, squeezed = network(50), network(50, se_ratio=0.25)
    assert list(maskable(plain)) == list(maskable(squeezed))


@pytest.mark.parametrize(
    ("depth", "table", "densities"),
    [
        (56, "resnet56_A", (0.960609, 0.922908, 0.889434, 0.858664, 0.832798)),
        (56, "resnet56_B", (0.935926, 0.888757, 0.850719, 0.819949, 0.794928)),
        (34, "resnet34_A", (0.962347, 0.936064, 0.917819, 0.904757, 0.895767)),
        (34, "resnet34_B", (0.946905, 0.916656, 0.899416, 0.889262, 0.883445)),
    ],
)
def test_densities_of_structured_levels(depth: int, table: str, densities: tuple[float, ...]) -> None:
    """The known densities are those that the original's code gives, starting from masks of ones."""
    net = network(depth)
    shapes = kernels_of(net.shapes()[0], maskable(net))
    rng = np.random.default_rng(0)
    weights = {name: rng.random(kernel.shape, np.float32) for name, kernel in shapes.items()}
    for level, expected in enumerate(densities, 1):
        masks = find_method(f"prune_{table}_{level}")(weights, full_masks(weights))
        assert density(masks.values()) == pytest.approx(expected, abs=5e-7)
