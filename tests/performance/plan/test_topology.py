import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.performance.plan.generations import GENERATIONS
from resnet_tpu.performance.plan.topology import TPU_SLICES, find_topology, find_tpu_slice, smallest_like
from resnet_tpu.recipes import RECIPES, find_recipe
from resnet_tpu.recipes.imagenet import CLOUD, MODERN


@pytest.mark.parametrize(
    ("name", "found", "chips", "devices"),
    [
        ("v2:2x2", "v2:2x2", 4, 8),
        ("v3-2048", "v3:32x32", 1024, 2048),
        ("v4-8", "v4:2x2x1", 4, 4),
        ("v5e-8", "v5e:2x4", 8, 8),
        ("v5litepod-16", "v5e:4x4", 16, 16),
        ("v5litepod:2x4", "v5e:2x4", 8, 8),
        ("v5p:4x4x4", "v5p:4x4x4", 64, 64),
        ("v6e-1", "v6e:1x1", 1, 1),
        ("h200:8", "h200:8", 8, 8),
    ],
)
def test_slices_go_by_the_compilers_name_and_by_googles(name: str, found: str, chips: int, devices: int) -> None:
    topology = find_topology(name)
    assert (topology.name, topology.chips, topology.devices) == (found, chips, devices)


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
def test_googles_names(name: str, topology: str) -> None:
    assert find_tpu_slice(name) == find_tpu_slice(topology) == TPU_SLICES[topology]


@pytest.mark.parametrize("name", CLOUD | MODERN)
def test_every_slice_has_the_chips_for_its_cores(name: str) -> None:
    topology = find_topology(name)
    generation = topology.generation.name
    assert generation == name.partition("-")[0]
    assert topology.chips * (1 if generation in ("v5e", "v6e") else 2) == (CLOUD | MODERN)[name]


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in RECIPES if name not in CLOUD | MODERN),
        "v3-9",
        "v3-10",
        "v2-1024",
        "v5e-512",
        "v7-8",
        "v5e-",
        "v5e-08",
        "h200:8",
        "",
    ],
)
def test_finds_no_slice_of_unknown_name(name: str) -> None:
    assert find_tpu_slice(name) is None


@pytest.mark.parametrize(("name", "hosts"), [("v3-8", 1), ("v3-32", 4), ("v5e-8", 1), ("v5e-16", 4), ("h200:8", 1)])
def test_hosts(name: str, hosts: int) -> None:
    assert find_topology(name).hosts == hosts


@pytest.mark.parametrize("name", TPU_SLICES)
def test_devices_share_the_chip(name: str) -> None:
    topology = find_topology(name)
    generation, per_chip = topology.generation, topology.devices / topology.chips
    assert topology.device_memory * per_chip == pytest.approx(generation.usable_memory)
    assert topology.device_flops * per_chip == pytest.approx(generation.peak_flops)
    assert topology.device_bandwidth * per_chip == pytest.approx(generation.memory_bandwidth)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("v5e:2x3", "Did you mean v5e:2x4"),
        ("v5e:3x3", "one of v5e:1x1, v5e:2x2"),
        ("v3-31", "one of v3:2x2"),
        ("v7x:2x2x1", "a slice of v2, v3, v4, v5e, v5p, v6e"),
        ("a100:16", "one of a100:1, a100:2, a100:4, a100:8"),
        ("tpu", "such as v5e:2x4 or v3-32"),
        ("", "such as v5e:2x4 or v3-32"),
    ],
)
def test_a_slice_that_does_not_exist_is_refused_with_those_that_do(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        find_topology(name)


@pytest.mark.parametrize("name", ["v3:16x16", "v5p:8x8x8", "v5e:2x2", "h100:8"])
def test_the_smallest_slice_of_a_generation_exists(name: str) -> None:
    small = smallest_like(find_topology(name))
    assert find_topology(small.name) == small
    assert small.chips == 4


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda one: one.name)
def test_the_peak_is_what_the_matrix_units_do_at_the_clock(generation) -> None:
    products_per_cycle = generation.peak_flops / 2 / generation.clock / (128 * 128)
    assert products_per_cycle == pytest.approx(round(products_per_cycle), rel=0.01)  # a whole number of 128 x 128 units
    assert generation.usable_memory <= 1.01 * generation.memory


@pytest.mark.parametrize("name", [name for name in RECIPES if find_tpu_slice(name)])
def test_every_recipe_of_a_slice_divides_its_batch_among_all_devices(name: str) -> None:
    config, topology = find_recipe(name), find_topology(name)
    assert config.train.train_batch_size % topology.devices == 0
    assert config.run.num_cores in (None, topology.devices)
