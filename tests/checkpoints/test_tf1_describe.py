"""What a checkpoint's variables tell about its network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu.checkpoints import tf1_bundle, tf1_names
from resnet_tpu.checkpoints.tf1_describe import Contents, contents, options_of
from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import CIFAR_DEPTHS
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

RS = {"use_resnetd_stem": True, "resnetd_shortcut": True, "replace_stem_max_pool": True, "se_ratio": 0.25}
NETWORKS: list[dict[str, Any]] = [
    *({"resnet_depth": depth} for depth in (18, 34, 50, 420, 8, 20, 110)),
    {"resnet_depth": 50, **RS},
    {"resnet_depth": 18, "replace_stem_max_pool": True},
    {"resnet_depth": 18, "use_resnetd_stem": True},
    {"resnet_depth": 18, "use_resnetd_stem": True, "resnet_width": 7},
    {"resnet_depth": 18, "project_first_group": False},
    {"resnet_depth": 34, "project_first_group": False, "replace_stem_max_pool": True},
    {"resnet_depth": 20, "project_first_group": False},
    {"resnet_depth": 50, "pre_activation": True},
    {"resnet_depth": 50, "pre_activation": True, **RS, "se_ratio": None},
    {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_b0"},
    {"resnet_depth": 34, "pre_activation": True, "norm_act_layer": "evonorm_s0", "replace_stem_max_pool": True},
    {"resnet_depth": 50, "stem": "small"},
    {"resnet_depth": 18, "stem": "small", "project_first_group": False},
    {"resnet_depth": 50, "se_ratio": 1 / 16},
    {"resnet_depth": 50, "se_ratio": 1.0},
]
DEEP: list[dict[str, Any]] = [
    *({"resnet_depth": depth} for depth in (101, 152, 200, 270, 350, 32, 44, 56)),
    *({"resnet_depth": depth, **RS} for depth in (101, 420)),
]


class Shape:
    """All that `options_of` looks at."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def make_network(options: dict[str, Any], num_classes: int = 7) -> Network:
    config = Config().replace(**{"stem": "imagenet", **options})
    return create_network(config.model, num_classes=num_classes, image_size=224)


def variables_of(network: Network) -> dict[str, Shape]:
    trees = network.shape_trees()
    names = tf1_names.tf_names(network)
    return {name: Shape(*leaf_at(trees, place).shape) for name, place in names.items()}


def described(options: dict[str, Any]) -> dict[str, Any]:
    small = options["resnet_depth"] in CIFAR_DEPTHS
    always = {"num_label_classes": 7, "stem": "small" if small else "imagenet"}
    return always | {name: value for name, value in options.items() if value is not None}


@pytest.mark.parametrize(
    "options", [*NETWORKS, *(pytest.param(options, marks=pytest.mark.long) for options in DEEP)], ids=str
)
def test_tells_every_network_from_its_variables(options: dict[str, Any]) -> None:
    assert options_of(variables_of(make_network(options))) == described(options)


@pytest.mark.parametrize("width", [1, 5, 24, 128])
@pytest.mark.parametrize("options", [{"resnet_depth": 18}, {"resnet_depth": 20}], ids=str)
def test_tells_the_width(options: dict[str, Any], width: int) -> None:
    options = options | {"resnet_width": width}
    assert options_of(variables_of(make_network(options))) == described(options)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 7 / 160, 0.999])
@pytest.mark.parametrize("width", [4, *(pytest.param(width, marks=pytest.mark.long) for width in (5, 7))])
def test_any_share_of_squeeze_and_excite_gives_the_same_network(ratio: float, width: int) -> None:
    network = make_network({"resnet_depth": 50, "se_ratio": ratio, "resnet_width": width})
    found = options_of(variables_of(network))
    assert found["se_ratio"] == pytest.approx(ratio, abs=1 / (32 * width))
    again = make_network(found)
    assert again.shapes() == network.shapes()


def test_slots_averages_and_other_variables_change_nothing() -> None:
    variables = variables_of(make_network({"resnet_depth": 18}))
    assert contents(variables) == Contents(optimizer=None, averaged=False)
    others = {f"{name}/{copy}": shape for name, shape in variables.items() for copy in ("Momentum", "Adam")}
    others |= {f"{name}/ExponentialMovingAverage": shape for name, shape in variables.items()}
    others |= {"global_step": Shape(), "beta1_power": Shape(), "tower/weights": Shape(3, 4)}
    assert options_of(variables | others) == described({"resnet_depth": 18})
    assert contents(variables | others) == Contents(optimizer="Momentum", averaged=True)
    assert contents({"dense/kernel/LARSOptimizer": Shape(1)}).optimizer == "LARSOptimizer"


def without(shapes: dict[str, Shape], *names: str) -> dict[str, Shape]:
    return {name: shape for name, shape in shapes.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: without(v, "dense/kernel"), "got 21 convolutions, 21 batch norms, expected those of a ResNet"),
        (lambda v: without(v, "conv2d_20/kernel"), "got 20 convolutions, 21 batch norms, expected those of a ResNet"),
        (lambda v: v | {"conv2d_21/kernel": Shape(3, 3, 4, 4)}, "got 22 convolutions"),
        (lambda v: v | {"dense_1/kernel": Shape(7, 7)}, "of resnet_depth 18, with no dense_1/kernel"),
        (
            lambda v: v | {"conv2d_7/kernel": Shape(5, 5, 64, 128)},
            r"of resnet_depth 18, with conv2d_7/kernel of shape \[3, 3, 64, 128\]",
        ),
        (
            lambda v: without(v, "batch_normalization_3/moving_mean"),
            r"with batch_normalization_3/moving_mean of shape \[64\]",
        ),
        (lambda v: v | {"dense/kernel": Shape(513, 7)}, r"with dense/kernel of shape \[512, 7\]"),
        (lambda v: v | {"dense/kernel": Shape(640, 7)}, "got 21 convolutions"),
        (lambda v: v | {"dense/kernel": Shape(512)}, "got 21 convolutions"),
        (lambda v: v | {"conv2d/kernel": Shape(7, 7, 3, 0)}, "got 21 convolutions"),
        (lambda v: v | {"conv2d/kernel": Shape(147, 64)}, "got 21 convolutions"),
        (
            lambda v: v | {f"conv2d_{i}/{leaf}": Shape(1, 1, 8, 8) for i in (21, 22) for leaf in ("kernel", "bias")},
            "of resnet_depth 18, with no se_ratio",
        ),
        (lambda v: {}, "got none, expected"),
        (lambda v: {"w1": Shape(2), "b1": Shape(2)}, "got 2 variables such as w1, b1, expected those of a ResNet"),
    ],
)
def test_refuses_other_networks_and_describes_them(change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        options_of(change(variables_of(make_network({"resnet_depth": 18}))))


def test_a_vgg_of_the_pruning_fork_is_refused() -> None:
    vgg = {f"conv_{i}_w": Shape(3, 3, 64 if i > 1 else 3, 64) for i in range(1, 14)}
    with pytest.raises(UserError, match="got 13 convolutions, expected those of a ResNet of the original"):
        options_of(vgg | {"fc_14_w": Shape(512, 10), "fc_14_b": Shape(1, 10)})


def test_a_checkpoint_of_tensorflow_2_is_refused_by_name() -> None:
    keras = {"layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE": Shape(7, 7, 3, 64), "save_counter": Shape()}
    with pytest.raises(UserError, match="got an object-based checkpoint of TensorFlow 2"):
        options_of(keras)


def test_describes_the_originals_own_from_the_index_alone(golden: Callable[[str], Path], golden_case: str) -> None:
    meta = json.loads(golden(f"model/{golden_case}/meta.json").read_text())
    index = tf1_bundle.read_index(str(golden(f"model/{golden_case}") / meta["start_checkpoint"]))
    settings = meta["settings"]
    sizes = {"num_label_classes": settings["num_classes"], "resnet_width": 64 // settings["width_div"]}
    assert options_of(index) == {"stem": "imagenet"} | sizes | meta["upstream_params"]
