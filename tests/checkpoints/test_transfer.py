"""Starting from the weights of another training: what fits is loaded, the rest is reported."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from resnet_tpu.checkpoints import tf1_names
from resnet_tpu.checkpoints.transfer import _notes, check_structure, start_from, with_options_of_weights
from resnet_tpu.checkpoints.weights import Kind, Weights, open_weights
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, leaf_at
from resnet_tpu.models.from_options import create_network, network_of
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

WriteBundle = Callable[..., str]


def config_of(**options: Any) -> Config:
    """A ResNet-18 of width 4 for 64 px, unless `options` say otherwise."""
    tiny = {"resnet_depth": 18, "resnet_width": 4, "stem": "imagenet", "precision": "float32", "image_size": 64}
    return Config().replace(**(tiny | options))


def make_network(*, num_classes: int = 3, **options: Any) -> Network:
    return create_network(config_of(**options).model, num_classes=num_classes, image_size=64)


def arrays_of(network: Network, seed: int) -> tuple[Arrays, Arrays]:
    """Random (params, batch_stats)."""
    rng = np.random.default_rng(seed)
    params, batch_stats = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), network.shapes())
    return params, batch_stats


def variables_of(network: Network, params: Arrays, batch_stats: Arrays) -> dict[str, np.ndarray]:
    """A network's arrays under the original's names, with momentum, averages and step, as a training saves them."""
    trees = {"params": params, "batch_stats": batch_stats}
    variables: dict[str, np.ndarray] = {"global_step": np.array(5, np.int64)}
    for name, place in tf1_names.tf_names(network).items():
        variables[name] = np.asarray(leaf_at(trees, place))
        variables[f"{name}/ExponentialMovingAverage"] = variables[name] * 0
        if place[0] == "params":
            variables[f"{name}/Momentum"] = variables[name] * 0
    return variables


NOTE_ON_AVERAGES = (
    "  note: evaluations of these weights use their moving averages, which cannot be written to a file to start from"
)


def assert_equal(actual: Arrays, expected: Arrays) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, actual, expected)))


def test_averages_that_fit_in_a_file_are_started_from_by_way_of_one() -> None:
    weights = Weights("a b", "ours", {"ema/x": np.zeros(1)}, {})
    (note,) = _notes(weights, ["ema/x"], network_of(Config().replace(num_label_classes=3)), None)
    assert note == (
        "evaluations of these weights use their moving averages. To start from those, give the file that this writes: "
        "resnet-tpu convert 'a b' averages.safetensors"
    )


def test_equal_networks_take_over_everything_but_the_optimizers(write_bundle: WriteBundle) -> None:
    network = make_network()
    old, new = arrays_of(network, 1), arrays_of(network, 2)
    path = write_bundle(variables_of(network, *old))
    params, batch_stats, report = start_from(network, open_weights(path), *new)
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
        NOTE_ON_AVERAGES,
    ]


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("ours", ["step", "ema of 107 variables", "momentum of 65 variables"]),
        ("tf1", ["global_step", "ExponentialMovingAverage of 107 variables", "Momentum of 65 variables"]),
        ("torch", ["num_batches_tracked of 1 variables"]),
    ],
)
def test_every_kind_is_loaded_and_reported_alike(kind: Kind, left: list[str], three_kinds: Any) -> None:
    weights = three_kinds.open(kind)
    params, batch_stats, report = start_from(three_kinds.network, weights, *three_kinds.network.init(0))
    assert_equal(params, three_kinds.arrays["params"])
    assert_equal(batch_stats, three_kinds.arrays["batch_stats"])
    assert str(report).splitlines() == [
        f"Started from {weights.source}: 107 of 107 variables loaded.",
        *(f"  not used: {line}" for line in left),
        *([] if kind == "torch" else [NOTE_ON_AVERAGES]),
    ]


def test_masks_that_are_not_used_are_noted(three_kinds: Any) -> None:
    weights = dataclasses.replace(three_kinds.open("tf1"), masks={"conv2d/mask": np.ones(1), "dense/mask": np.ones(1)})
    report = start_from(three_kinds.network, weights, *three_kinds.network.shapes())[-1]
    assert "the masks of 2 variables are not used: masked weights begin at 0, and training changes" in report.notes[0]


@pytest.mark.parametrize("kind", ["ours", "tf1", "torch"])
def test_every_kind_gives_way_to_a_new_head(kind: Kind, three_kinds: Any) -> None:
    network = make_network(num_classes=5)
    new = arrays_of(network, 2)
    params, _, report = start_from(network, three_kinds.open(kind), *new)
    assert_equal(params, {**three_kinds.arrays["params"], "dense": new[0]["dense"]})
    head = {"ours": "params/dense/kernel", "tf1": "dense/kernel", "torch": "fc.weight"}[kind]
    assert f"initial value kept: {head}: [32, 3] there, [32, 5] here" in str(report)


def test_a_classifier_that_says_yes_or_no_gives_way_too(three_kinds: Any, tmp_path: Path) -> None:
    arrays = safetensors.numpy.load_file(three_kinds.folders["torch"] / "model.safetensors")
    arrays |= {name: arrays[name][:1] for name in ("fc.weight", "fc.bias")}
    safetensors.numpy.save_file(arrays, tmp_path / "one.safetensors")
    network, weights = make_network(num_classes=2), open_weights(str(tmp_path / "one.safetensors"))
    assert with_options_of_weights(config_of(), weights).data.num_label_classes is None
    new = arrays_of(network, 2)
    params, _, report = start_from(network, weights, *new)
    assert_equal(params, {**three_kinds.arrays["params"], "dense": new[0]["dense"]})
    assert "initial value kept: fc.weight: [32, 1] there, [32, 2] here" in str(report)


def test_the_initial_arrays_are_left_as_they_were(write_bundle: WriteBundle) -> None:
    network = make_network()
    new = arrays_of(network, 2)
    start_from(network, open_weights(write_bundle(variables_of(network, *arrays_of(network, 1)))), *new)
    assert_equal(new[0], arrays_of(network, 2)[0])


def test_another_number_of_classes_keeps_the_new_head(write_bundle: WriteBundle) -> None:
    source, network = make_network(num_classes=10), make_network(num_classes=5)
    old, new = arrays_of(source, 1), arrays_of(network, 2)
    params, batch_stats, report = start_from(network, open_weights(write_bundle(variables_of(source, *old))), *new)
    assert_equal(params["dense"], new[0]["dense"])
    assert_equal({**params, "dense": 0}, {**old[0], "dense": 0})
    assert_equal(batch_stats, old[1])
    assert [str(skipped) for skipped in report.skipped] == [
        "dense/kernel: [32, 10] there, [32, 5] here",
        "dense/bias: [10] there, [5] here",
    ]
    assert "initial value kept: dense/kernel: [32, 10] there, [32, 5] here" in str(report)


@pytest.mark.parametrize(
    ("there", "here", "is_kept"),
    [
        (["a", "b", "c"], ["a", "b", "c"], True),
        (["a", "b", "c"], None, True),
        (None, ["a", "b", "c"], True),
        (["0", "1", "2"], ["a", "b", "c"], True),
        (["a", "b", "c"], ["b", "a", "c"], False),
        (["a", "b", "c"], ["a", "b", "d"], False),
    ],
)
def test_the_classifier_is_for_the_same_classes_in_the_same_order(
    there: list[str] | None, here: list[str] | None, is_kept: bool, write_bundle: WriteBundle
) -> None:
    network = make_network()
    source, initial = arrays_of(network, 1), arrays_of(network, 2)
    weights = open_weights(write_bundle(variables_of(network, *source)))
    params, _, report = start_from(network, dataclasses.replace(weights, class_names=there), *initial, class_names=here)
    expected = source if is_kept else initial
    np.testing.assert_array_equal(params["dense"]["kernel"], expected[0]["dense"]["kernel"])
    assert ("initial value kept: dense/kernel: for other classes there" in str(report)) == (not is_kept)
    is_told = "classes only by number; in the order of the data, 0 is a, 1 is b, 2 is c" in str(report)
    assert is_told == (there == ["0", "1", "2"])
    np.testing.assert_array_equal(params["stem"]["conv"]["kernel"], source[0]["stem"]["conv"]["kernel"])


def test_another_stem_keeps_the_new_stem(write_bundle: WriteBundle) -> None:
    source, network = make_network(), make_network(stem="small")
    old, new = arrays_of(source, 1), arrays_of(network, 2)
    params, _, report = start_from(network, open_weights(write_bundle(variables_of(source, *old))), *new)
    assert [str(skipped) for skipped in report.skipped] == ["conv2d/kernel: [7, 7, 3, 4] there, [3, 3, 3, 4] here"]
    assert np.array_equal(params["stem"]["conv"]["kernel"], new[0]["stem"]["conv"]["kernel"])
    assert np.array_equal(params["stem"]["norm"]["scale"], old[0]["stem"]["norm"]["scale"])


def test_report_names_variables_of_one_side_only(write_bundle: WriteBundle) -> None:
    network = make_network()
    variables = variables_of(network, *arrays_of(network, 1)) | {"extra/kernel": np.zeros(3, np.float32)}
    weights = open_weights(write_bundle(variables))
    without = {name: array for name, array in weights.variables.items() if name != "dense/bias"}
    _, _, report = start_from(network, dataclasses.replace(weights, variables=without), *arrays_of(network, 2))
    assert "initial value kept: dense/bias: not there, [3] here" in str(report)
    assert "not used: extra/kernel" in str(report)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"resnet_depth": 34},
            "got resnet_depth 34 there, 18 here, expected the same network. Give --resnet_depth=34,",
        ),
        ({"resnet_width": 8}, "got resnet_width 8 there, 4 here"),
        ({"pre_activation": True}, "got pre_activation True there, False here"),
        ({"resnet_depth": 50, "se_ratio": 0.25}, "resnet_depth 50 there, 18 here, se_ratio 0.25 there, 0.0 here"),
        ({"use_resnetd_stem": True}, "use_resnetd_stem True there, False here"),
        ({"project_first_group": False}, "project_first_group False there, True here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_another_depth_or_variant_is_refused(write_bundle: WriteBundle, other: dict[str, Any], message: str) -> None:
    network, source = make_network(), make_network(**other)
    new = arrays_of(network, 2)
    weights = open_weights(write_bundle(variables_of(source, *arrays_of(source, 1))))
    with pytest.raises(UserError, match=re.escape(message)):
        start_from(network, weights, *new)
    with pytest.raises(UserError, match=re.escape(message)):
        check_structure(network.model, 64, weights)
    assert_equal(new[0], arrays_of(network, 2)[0])


def test_weights_of_which_most_do_not_fit_are_refused(write_bundle: WriteBundle) -> None:
    network, new = make_network(), arrays_of(make_network(), 2)
    weights = open_weights(write_bundle(variables_of(network, *arrays_of(network, 1))))
    names = list(weights.names_in(network))
    half, fewer = (
        dataclasses.replace(weights, variables={name: weights.variables[name] for name in names[:count]})
        for count in (54, 53)
    )
    assert len(start_from(network, half, *new)[2].skipped) == 53
    with pytest.raises(UserError, match=r"got 53 of 107 variables that fit .*, expected weights of the same network"):
        start_from(network, fewer, *new)


def test_options_without_variables_are_not_compared(write_bundle: WriteBundle) -> None:
    options = {"resnet_depth": 50, "use_resnetd_stem": True}
    source = make_network(**options, resnetd_shortcut=True)
    weights = open_weights(write_bundle(variables_of(source, *arrays_of(source, 1))))
    check_structure(config_of(**options).model, 64, weights)


def test_options_that_travel_are_taken_over(write_bundle: WriteBundle, caplog: pytest.LogCaptureFixture) -> None:
    source = make_network(project_first_group=False)
    weights = open_weights(write_bundle(variables_of(source, *arrays_of(source, 1))))
    caplog.set_level("INFO", "resnet_tpu")
    config = config_of(pool_padding="symmetric")
    assert with_options_of_weights(config, weights) == config.replace(pool_padding="same", project_first_group=False)
    assert ": project_first_group = False, pool_padding = same" in caplog.text or (
        ": pool_padding = same, project_first_group = False" in caplog.text
    )
    with pytest.raises(UserError, match="resnet_depth 18 there, 50 here"):
        with_options_of_weights(config_of(resnet_depth=50), weights)


@pytest.mark.parametrize(("there", "here"), [(1001, 1000), (1000, 1001)])
def test_a_class_for_the_background_is_noted(write_bundle: WriteBundle, there: int, here: int) -> None:
    source, network = make_network(num_classes=there), make_network(num_classes=here)
    weights = open_weights(write_bundle(variables_of(source, *arrays_of(source, 1))))
    report = start_from(network, weights, *arrays_of(network, 2))[2]
    assert f"with {there} there and {here} here, labels shift by one" in str(report)
    assert "background" not in str(start_from(source, weights, *arrays_of(source, 2))[2])


def test_a_damaged_checkpoint_is_refused(write_bundle: WriteBundle) -> None:
    network = make_network()
    prefix = write_bundle(variables_of(network, *arrays_of(network, 1)))
    with Path(f"{prefix}.data-00000-of-00001").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with pytest.raises(UserError, match="checksum"):
        open_weights(prefix)
