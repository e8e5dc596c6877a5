"""The pruning fork's variables under the original's names, with masks applied."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1, tf1_describe, tf1_lottery, tf1_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaf_at, leaves, node_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

# depth -> projections, as in the fork's networks
PROJECTIONS = {
    18: ["proj_2_2", "proj_6_7", "proj_10_12", "proj_14_17"],
    34: ["proj_2_2", "proj_8_9", "proj_16_18", "proj_28_31"],
    50: ["proj_2_2", "proj_11_12", "proj_23_25", "proj_41_44"],
    101: ["proj_2_2", "proj_11_12", "proj_23_25", "proj_92_95"],
    152: ["proj_2_2", "proj_11_12", "proj_35_37", "proj_143_146"],
    200: ["proj_2_2", "proj_11_12", "proj_83_85", "proj_191_194"],
}


def make_network(depth: int) -> Network:
    config = Config().replace(resnet_depth=depth, resnet_width=4, stem="auto" if depth == 20 else "imagenet")
    return create_network(config.model, num_classes=3, image_size=32)


def fork_names(network: Network) -> dict[str, str]:
    """The fork's name, without `_w`, of each of the original's kernels, numbered as the fork numbers them."""
    names: dict[str, str] = {}
    conv = 0
    kernels = [(name, path) for name, (_, path) in tf1_names.tf_names(network).items() if name.endswith("/kernel")]
    for position, (name, path) in enumerate(kernels, 1):
        conv += "projection" not in path
        names[name] = f"proj_{conv + 1}_{position}" if "projection" in path else f"conv_{conv}"
    return names | {"dense/kernel": "dense"}


def as_fork(
    network: Network, variables: Mapping[str, Any], masks: Mapping[str, np.ndarray], scope: str = ""
) -> dict[str, Any]:
    names = fork_names(network)
    renamed: dict[str, Any] = {}
    for name, array in variables.items():
        variable = "/".join(name.split("/")[:2])
        fork = {"dense/bias": "dense_b"}.get(variable, f"{names[variable]}_w" if variable in names else variable)
        renamed[scope + fork + name.removeprefix(variable)] = array
    return renamed | {f"{scope}{names[name]}_m": mask for name, mask in masks.items()}


def draw(network: Network, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random (variables with their Momentum slots, masks) under the original's names."""
    rng = np.random.default_rng(seed)
    trees = network.shape_trees()
    variables: dict[str, np.ndarray] = {}
    for name, place in tf1_names.tf_names(network).items():
        shape = leaf_at(trees, place).shape
        variables[name] = rng.normal(size=shape).astype(np.float32)
        if place[0] == "params":
            variables[f"{name}/Momentum"] = rng.normal(size=shape).astype(np.float32)
    masks = {name: rng.random(array.shape) < 0.3 for name, array in variables.items() if name.endswith("/kernel")}
    return variables, {name: mask.astype(jnp.bfloat16) for name, mask in masks.items()}


@pytest.mark.parametrize("depth", PROJECTIONS)
def test_projections_are_called_as_in_the_fork(depth: int) -> None:
    names = fork_names(make_network(depth))
    assert [name for name in names.values() if name.startswith("proj")] == PROJECTIONS[depth]
    renamed = tf1_lottery.rename({f"{fork}_w": original for original, fork in names.items()})
    assert all(name == original for name, original in renamed.items())
    assert len(renamed) == len(names)


@pytest.mark.parametrize(("depth", "scope"), [(18, ""), (50, ""), (20, "resnet_model/")])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_weights_and_slots_come_with_their_masks_applied(depth: int, scope: str, dtype: Any) -> None:
    network = make_network(depth)
    variables, masks = draw(network, depth)
    step = {"global_step": np.array(11259, np.int64)}
    fork = as_fork(network, variables, {name: mask.astype(dtype) for name, mask in masks.items()}, scope) | step
    restored = tf1.from_tf1(network, fork)
    kept = restored.pop("masks")
    for name, (_, path) in tf1_names.tf_names(network).items():
        if name.endswith("/kernel"):
            np.testing.assert_array_equal(node_at(kept, path), masks.get(name, True))
    for name, array in list(variables.items()):
        if (mask := masks.get(name.removesuffix("/Momentum"))) is not None:
            variables[name] = array * mask.astype(np.float32)
    expected = tf1.from_tf1(network, variables | step)
    np.testing.assert_equal(restored, expected)
    for name, array in leaves({collection: restored[collection] for collection in ("params", "momentum")}):
        assert not np.signbit(array[array == 0]).any(), name  # no -0, which would be stored
    kernel = restored["params"]["dense"]["kernel"]
    assert 0 < np.count_nonzero(kernel) / kernel.size < 0.6


def test_what_is_masked_is_0_whatever_it_was() -> None:
    variables = {"conv_1_w": np.array([-1, np.nan, 2], np.float32), "conv_1_m": np.array([0, 0, 1], np.float32)}
    kernel = tf1_lottery.masked_variables(variables)["conv2d/kernel"]
    assert kernel.tobytes() == np.array([0, 0, 2], np.float32).tobytes()


def test_ordinary_checkpoints_stay_as_they_are() -> None:
    variables, _ = draw(make_network(18), 0)
    masked = tf1_lottery.masked_variables(variables)
    assert list(masked) == list(variables)
    assert all(masked[name] is array for name, array in variables.items())


def test_weights_without_masks_are_taken_whole() -> None:
    network = make_network(18)
    variables, _ = draw(network, 0)
    masked = tf1_lottery.masked_variables(as_fork(network, variables, {}))
    np.testing.assert_equal(masked, variables)


def test_masks_that_keep_everything_are_left_out() -> None:
    network = make_network(18)
    variables, masks = draw(network, 0)
    fork = as_fork(network, variables, {name: np.ones_like(mask) for name, mask in masks.items()})
    assert "masks" not in tf1.from_tf1(network, fork)


def test_a_mask_of_another_shape_is_refused() -> None:
    variables = {"conv_1_w": np.ones((3, 3, 3, 4), np.float32), "conv_1_m": np.ones((3, 3, 3, 1), np.float32)}
    with pytest.raises(UserError, match=r"Mask of conv2d/kernel: got shape \[3, 3, 3, 1\], expected \[3, 3, 3, 4\]"):
        tf1_lottery.masked_variables(variables)


@pytest.mark.parametrize(("depth", "scope"), [(18, ""), (50, ""), (20, "resnet_model/")])
def test_detects_network_from_the_variables_of_the_fork(depth: int, scope: str) -> None:
    network = make_network(depth)
    fork = as_fork(network, *draw(network, 0), scope)
    options = tf1_describe.options_of(fork)
    assert (options["resnet_depth"], options["resnet_width"], options["num_label_classes"]) == (depth, 4, 3)
    assert tf1_describe.contents(fork) == ("Momentum", False)


def test_names_are_the_forks_own(golden: Callable[[str], Path]) -> None:
    plain = json.loads(golden("model/variables_full_width.json").read_text())
    for depth, rows in json.loads(golden("pruning/rewinding_variables.json").read_text()).items():
        renamed = tf1_lottery.rename({name: shape for name, shape, *_ in rows})
        masks = {name: shape for name, shape in renamed.items() if name.endswith("/mask")}
        weights = {name: shape for name, shape in renamed.items() if name not in masks}
        assert list(weights.items()) == [(name, shape) for name, shape, *_ in plain[depth]]
        assert masks == {name.replace("kernel", "mask"): weights[name] for name in weights if name.endswith("/kernel")}
