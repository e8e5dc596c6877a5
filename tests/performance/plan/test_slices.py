"""Slices by name: their topologies, and how many chips these have."""

import math

import pytest

from resnet_tpu.performance.plan.slices import topologies, topology_of
from resnet_tpu.recipes import RECIPES, SLICES
from resnet_tpu.recipes.imagenet import CLOUD, MODERN


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v2-8", "v2:2x2"),
        ("v2-256", "v2:8x16"),
        ("v3-32", "v3:4x4"),
        ("v3-64", "v3:4x8"),
        ("v3-1024", "v3:16x32"),
        ("v4-8", "v4:2x2x1"),
        ("v4-64", "v4:2x4x4"),
        ("v5e-1", "v5e:1x1"),
        ("v5e-8", "v5e:2x4"),
        ("v5e-256", "v5e:16x16"),
        ("v5p-32", "v5p:2x2x4"),
        ("v6e-128", "v6e:8x16"),
    ],
)
def test_topologies(name: str, topology: str) -> None:
    assert topology_of(name) == topology
    assert topology in topologies()


@pytest.mark.parametrize("name", SLICES)
def test_every_slice_has_the_chips_for_its_cores(name: str) -> None:
    generation, _, shape = (topology_of(name) or "").partition(":")
    chips = math.prod(int(side) for side in shape.split("x"))
    assert generation == name.partition("-")[0]
    assert chips * (1 if generation in ("v5e", "v6e") else 2) == (CLOUD | MODERN)[name]


@pytest.mark.parametrize(
    "name",
    [*(name for name in RECIPES if name not in SLICES), "v3-9", "v3-10", "v2-1024", "v5e-512", "v7-8", "v5e-", ""],
)
def test_what_is_no_slice_has_no_topology(name: str) -> None:
    assert topology_of(name) is None
