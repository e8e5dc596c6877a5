"""Slices by their names in Google Cloud."""

from typing import Literal

import pytest

from resnet_tpu.cloud.slices import Slice, find_slice
from resnet_tpu.errors import UserError
from resnet_tpu.performance.plan.topology import TPU_SLICES
from resnet_tpu.recipes.imagenet import CLOUD, MODERN


@pytest.mark.parametrize("name", TPU_SLICES)
def test_every_slice_is_found_by_all_its_names(name: str) -> None:
    rented = Slice(TPU_SLICES[name])
    assert find_slice(name) == find_slice(rented.accelerator_type) == rented
    assert rented.hosts * rented.chips_per_host == rented.topology.chips
    assert rented.zones
    assert f"{rented.topology.generation.name}:{rented.shape}" == name


@pytest.mark.parametrize("recipe", CLOUD | MODERN)
def test_every_slice_recipe_has_a_slice_of_its_name(recipe: str) -> None:
    name = find_slice(recipe).accelerator_type
    assert name == recipe.replace("v5e", "v5litepod")


@pytest.mark.parametrize(
    ("name", "hosts", "chips"),
    [("v2-8", 1, 4), ("v3-32", 4, 4), ("v4-8", 1, 4), ("v4-64", 8, 4), ("v5litepod-1", 1, 1), ("v5litepod-8", 1, 8),
     ("v5e-16", 4, 4), ("v5p-32", 4, 4), ("v6e-8", 1, 8), ("v6e-256", 64, 4)],
)  # fmt: skip
def test_hosts(name: str, hosts: int, chips: int) -> None:
    found = find_slice(name)
    assert (found.hosts, found.chips_per_host) == (hosts, chips)


@pytest.mark.parametrize(
    ("name", "hint"), [("v5litepod-9", "v5litepod-"), ("v6-8", "v6e-8"), ("v3-33", "v3-32"), ("", "got nothing")]
)
def test_an_unknown_slice_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(
        UserError, match=r"--tpu_type: got .*expected a TPU slice such as v5litepod-8 or v4-32"
    ) as caught:
        find_slice(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "location", "message"),
    [
        (
            "v4-8",
            "zone",
            "us-central1-a",
            r"--zone: got us-central1-a, expected one with v4-8: us-central2-b\. ",
        ),
        ("v3-32", "zone", "us-central1-a", r"expected one with v3-32: europe-west4-a"),
        ("v5e-8", "zone", "us-west4-b", r"Did you mean us-west4-a"),
        (
            "v6e-8",
            "region",
            "us-west4",
            r"--region: got us-west4, expected one with v6e-8: us-central1, us-east1, ",
        ),
        ("v6e-8", "zone", "", r"--zone: got nothing, expected one with v6e-8: us-central1-b, "),
        (
            "v5e-8",
            "zone",
            "us-west4",
            r"--zone: got us-west4, expected one with v5litepod-8: .* mean us-west4-a",
        ),
        ("v5e-8", "region", "us-west4-a", r"--region: got us-west4-a, .*Did you mean us-west4\?"),
    ],
)
def test_a_wrong_zone_or_region_names_the_right_ones(
    name: str, kind: Literal["zone", "region"], location: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_slice(name).check_location(kind, location)


def test_right_zones_and_regions() -> None:
    find_slice("v3-8").check_location("zone", "us-central1-a")
    find_slice("v5e-256").check_location("region", "europe-west4")


def test_a_service_without_such_chips_names_those_it_has() -> None:
    with pytest.raises(UserError, match=r"got v3-8, expected a slice that GKE has: one of v4, v5e, v5p, v6e\."):
        _ = find_slice("v3-8").gke_label
    with pytest.raises(UserError, match=r"got v4-8, expected a slice that Vertex AI has: one of v2, v3, v5e, v6e\."):
        _ = find_slice("v4-8").vertex_family
