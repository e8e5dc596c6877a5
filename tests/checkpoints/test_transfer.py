"""Starting from the weights of another training: what fits is loaded, the rest is reported."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1_names
from resnet_tpu.checkpoints.transfer import start_from
from resnet_tpu.config import Config
from resnet_tpu.errors import UserError
from resnet_tpu.models.network import Arrays, Network

WriteBundle = Callable[..., str]


def make_network(depth: int = 18, *, num_classes: int = 3, width: int = 4, stem: str = "imagenet") -> Network:
    config = Config().replace(resnet_depth=depth, resnet_width=width, stem=stem, precision="float32")
    return Network.create(config.model, num_classes=num_classes, image_size=64)


def arrays_of(network: Network, seed: int) -> tuple[Arrays, Arrays]:
    """Random (params, batch_stats)."""
    rng = np.random.default_rng(seed)
    params, batch_stats = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), network.shapes())
    return params, batch_stats


def variables_of(network: Network, params: Arrays, batch_stats: Arrays) -> dict[str, np.ndarray]:
    """The arrays of a network under the original's names, with momentum, average and step as a training saves them."""
    trees = {"params": params, "batch_stats": batch_stats}
    variables: dict[str, np.ndarray] = {"global_step": np.array(5, np.int64)}
    for name, (collection, path) in tf1_names.tf_names(network).items():
        node = trees[collection]
        for key in path:
            node = node[key]
        variables[name] = np.asarray(node)
        variables[f"{name}/ExponentialMovingAverage"] = variables[name] * 0
        if collection == "params":
            variables[f"{name}/Momentum"] = variables[name] * 0
    return variables


def assert_equal(actual: Arrays, expected: Arrays) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, actual, expected)))


def test_equal_networks_take_over_everything_but_the_optimizers(write_bundle: WriteBundle) -> None:
    network = make_network()
    old, new = arrays_of(network, 1), arrays_of(network, 2)
    path = write_bundle(variables_of(network, *old))
    params, batch_stats, report = start_from(network, path, *new)
    assert_equal(params, old[0])
    assert_equal(batch_stats, old[1])
    assert set(report.loaded) == set(tf1_names.tf_names(network))
    assert report.skipped == ()
    assert set(report.left_over) == {name for name in variables_of(network, *old) if name not in report.loaded}
    assert str(report).splitlines() == [
        f"Started from {path}: 107 of 107 variables loaded.",
        "  not used: global_step",
        "  not used: ExponentialMovingAverage of 107 variables",
        "  not used: Momentum of 65 variables",
    ]


def test_the_initial_arrays_are_left_as_they_were(write_bundle: WriteBundle) -> None:
    network = make_network()
    new = arrays_of(network, 2)
    start_from(network, write_bundle(variables_of(network, *arrays_of(network, 1))), *new)
    assert_equal(new[0], arrays_of(network, 2)[0])


def test_another_number_of_classes_keeps_the_new_head(write_bundle: WriteBundle) -> None:
    source, network = make_network(num_classes=10), make_network(num_classes=5)
    old, new = arrays_of(source, 1), arrays_of(network, 2)
    params, batch_stats, report = start_from(network, write_bundle(variables_of(source, *old)), *new)
    assert_equal(params["dense"], new[0]["dense"])
    assert_equal({**params, "dense": 0}, {**old[0], "dense": 0})
    assert_equal(batch_stats, old[1])
    assert [str(skipped) for skipped in report.skipped] == [
        "dense/kernel: [32, 10] there, [32, 5] here",
        "dense/bias: [10] there, [5] here",
    ]
    assert "initial value kept: dense/kernel: [32, 10] there, [32, 5] here" in str(report)


def test_another_stem_keeps_the_new_stem(write_bundle: WriteBundle) -> None:
    source, network = make_network(), make_network(stem="small")
    old, new = arrays_of(source, 1), arrays_of(network, 2)
    params, _, report = start_from(network, write_bundle(variables_of(source, *old)), *new)
    assert [str(skipped) for skipped in report.skipped] == ["conv2d/kernel: [7, 7, 3, 4] there, [3, 3, 3, 4] here"]
    assert np.array_equal(params["stem"]["conv"]["kernel"], new[0]["stem"]["conv"]["kernel"])
    assert np.array_equal(params["stem"]["norm"]["scale"], old[0]["stem"]["norm"]["scale"])


def test_what_only_one_side_has_is_named(write_bundle: WriteBundle) -> None:
    network = make_network()
    variables = variables_of(network, *arrays_of(network, 1))
    del variables["dense/bias"]
    variables["extra/kernel"] = np.zeros(3, np.float32)
    _, _, report = start_from(network, write_bundle(variables), *arrays_of(network, 2))
    assert "initial value kept: dense/bias: not there, [3] here" in str(report)
    assert "not used: extra/kernel" in str(report)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (make_network(34), "got 37 convolutions, expected 21, as in resnet_depth 18"),
        (make_network(width=8), r"got 1 of 107 variables that fit .*\[7, 7, 3, 8\] there, \[7, 7, 3, 4\] here"),
    ],
    ids=["depth", "width"],
)
def test_another_network_is_refused(write_bundle: WriteBundle, source: Network, message: str) -> None:
    network = make_network()
    with pytest.raises(UserError, match=message):
        start_from(network, write_bundle(variables_of(source, *arrays_of(source, 1))), *arrays_of(network, 2))


def test_a_damaged_checkpoint_is_refused(write_bundle: WriteBundle) -> None:
    network = make_network()
    prefix = write_bundle(variables_of(network, *arrays_of(network, 1)))
    with Path(f"{prefix}.data-00000-of-00001").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with pytest.raises(UserError, match="checksum"):
        start_from(network, prefix, *arrays_of(network, 2))
