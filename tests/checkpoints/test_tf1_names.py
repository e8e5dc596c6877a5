"""The original's names of the variables of every variant, in its order."""

import csv
from pathlib import Path
from typing import Any

import jax
import pytest

from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

RS: dict[str, Any] = {
    "use_resnetd_stem": True, "resnetd_shortcut": True, "replace_stem_max_pool": True, "se_ratio": 0.25
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    **{f"v1-{depth}": {"resnet_depth": depth} for depth in (18, 34, 50, 101, 152, 200)},
    "v2-50": {"resnet_depth": 50, "pre_activation": True},
    "v2-18-evonorm_b0": {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_b0"},
    "v2-18-evonorm_s0": {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_s0"},
    "rs-50": {"resnet_depth": 50, **RS},
}


def make_network(**options: Any) -> Network:
    return create_network(Config().replace(**options).model, num_classes=1000, image_size=224)


@pytest.mark.parametrize("model", MODELS)
def test_names_shapes_and_order_of_every_variant_are_the_originals(spec: Path, model: str) -> None:
    network = make_network(**MODELS[model])
    trees = network.shape_trees()
    ours = []
    for name, place in tf_names(network).items():
        leaf = leaf_at(trees, place)
        ours.append((name, "x".join(map(str, leaf.shape)), str(leaf.dtype), str(int(place[0] == "params"))))
    with (spec / "tf_variables.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    assert ours == [(row["name"], row["shape"], row["dtype"], row["trainable"]) for row in rows]


@pytest.mark.parametrize(
    ("depth", "last_conv", "last_norm"),
    [
        (50, 87, 55),
        *(
            pytest.param(*numbers, marks=pytest.mark.long)
            for numbers in (
                (101, 172, 106), (152, 257, 157), (200, 337, 205), (270, 457, 277), (350, 587, 355), (420, 702, 424)
            )
        ),
    ],
)  # fmt: skip
def test_convolutions_and_norms_of_resnet_rs_are_counted_apart(depth: int, last_conv: int, last_norm: int) -> None:
    names = list(tf_names(make_network(resnet_depth=depth, **RS)))
    assert [name for name in names if name.startswith("conv2d")][-2:] == [
        f"conv2d_{last_conv}/kernel", f"conv2d_{last_conv}/bias"
    ]  # fmt: skip
    assert [name for name in names if name.endswith("gamma")][-1] == f"batch_normalization_{last_norm}/gamma"


def test_squeeze_excite_comes_after_the_convolutions_of_its_block_reducing_first() -> None:
    names = tf_names(make_network(resnet_depth=50, **RS))
    block = ("group1", "block1")
    for number, path in enumerate(
        [
            ("stem", "conv1", "conv"), ("stem", "conv2", "conv"), ("stem", "conv3", "conv"), ("pool", "conv"),
            (*block, "projection", "conv"), (*block, "conv1", "conv"), (*block, "conv2", "conv"),
            (*block, "conv3", "conv"), (*block, "squeeze_excite", "reduce"), (*block, "squeeze_excite", "expand"),
            ("group1", "block2", "conv1", "conv"),
        ]
    ):  # fmt: skip
        layer = f"conv2d_{number}" if number else "conv2d"
        assert names[f"{layer}/kernel"] == ("params", (*path, "kernel"))
    assert names["conv2d_8/bias"] == ("params", (*block, "squeeze_excite", "reduce", "bias"))


def test_norms_of_a_preactivated_network_are_before_the_convolutions_and_one_is_last() -> None:
    names = tf_names(make_network(resnet_depth=50, pre_activation=True))
    block = ("group1", "block1")
    places = [place for name, place in names.items() if name.endswith("gamma")]
    assert places[:4] == [
        ("params", (*path, "scale"))
        for path in ((*block, "norm_in"), (*block, "conv1", "norm"), (*block, "conv2", "norm"),
                     ("group1", "block2", "norm_in"))
    ]  # fmt: skip
    assert names["batch_normalization_48/gamma"] == ("params", ("norm_out", "scale"))
    assert list(names)[:6] == [
        "conv2d/kernel", "batch_normalization/gamma", "batch_normalization/beta", "batch_normalization/moving_mean",
        "batch_normalization/moving_variance", "conv2d_1/kernel",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        *MODELS.values(),
        {"resnet_depth": 20},
        {"resnet_depth": 18, "project_first_group": False},
        {"resnet_depth": 50, "pre_activation": True, "norm_act_layer": "evonorm_b0", **RS, "se_ratio": None},
    ],
)
def test_every_array_of_a_network_has_one_name(options: dict[str, Any]) -> None:
    network = make_network(**options)
    named = [(collection, *path) for collection, path in tf_names(network).values()]
    assert len(named) == len(set(named))
    assert set(named) == {
        tuple(key.key for key in path) for path, _ in jax.tree.leaves_with_path(network.shape_trees())
    }
