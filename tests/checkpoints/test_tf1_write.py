"""Our checkpoints converted to the original's and back, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1, tf1_describe, tf1_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

RS = {"use_resnetd_stem": True, "resnetd_shortcut": True, "replace_stem_max_pool": True, "se_ratio": 0.25}
NETWORKS: list[dict[str, Any]] = [
    *({"resnet_depth": depth} for depth in (18, 8, 20)),
    {"resnet_depth": 50, **RS},
    {"resnet_depth": 50, "pre_activation": True},
    {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_b0"},
    {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_s0"},
    {"resnet_depth": 18, "stem": "small"},
]
DEEP = [
    pytest.param({"resnet_depth": depth}, marks=pytest.mark.long)
    for depth in (34, 50, 101, 152, 200, 270, 350, 420, 32, 44, 56, 110)
]
SLOT = {False: "Momentum", True: "LARSOptimizer"}


def make_network(options: dict[str, Any], num_classes: int = 3) -> Network:
    config = Config().replace(**{"stem": "imagenet", "resnet_width": 4, **options})
    return create_network(config.model, num_classes=num_classes, image_size=64)


def draw(network: Network, *, step: int = 1251, kept: tuple[str, ...] = ("momentum", "ema")) -> Arrays:
    """Checkpoint arrays with random bits, including NaN and subnormal numbers."""
    rng = np.random.default_rng(step)
    weights = network.shape_trees()
    trees = {**weights, "momentum": weights["params"], "ema": weights}
    drawn = jax.tree.map(lambda leaf: np.frombuffer(rng.bytes(4 * leaf.size), np.float32).reshape(leaf.shape), trees)
    unwanted = {"momentum", "ema"} - set(kept)
    return {"step": np.array(step, np.int32)} | {name: tree for name, tree in drawn.items() if name not in unwanted}


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


@pytest.mark.parametrize("options", [*NETWORKS, *DEEP], ids=str)
def test_there_and_back_is_the_same_bits(tmp_path: Path, options: dict[str, Any]) -> None:
    network = make_network(options)
    arrays = draw(network)
    prefix = tf1.write_checkpoint(str(tmp_path), network, arrays)
    variables = tf1.read_checkpoint(prefix)
    again = make_network(tf1_describe.options_of(variables))
    restored = tf1.from_tf1(again, variables)
    assert restored["step"] == 1251
    assert_same_bits(restored | {"step": arrays["step"]}, arrays)


@pytest.mark.parametrize("lars", [False, True])
@pytest.mark.parametrize("kept", [(), ("momentum",), ("ema",), ("momentum", "ema")], ids=str)
def test_writes_the_variables_that_the_original_has(tmp_path: Path, kept: tuple[str, ...], lars: bool) -> None:
    network = make_network({"resnet_depth": 18})
    arrays = draw(network, kept=kept)
    names = tf1_names.tf_names(network)
    expected = {"global_step", *names}
    if "momentum" in kept:
        expected |= {f"{name}/{SLOT[lars]}" for name, (collection, _) in names.items() if collection == "params"}
    if "ema" in kept:
        expected |= {f"{name}/ExponentialMovingAverage" for name in names}
        assert sum(name.endswith("Average") for name in expected) == 107
    variables = tf1.read_checkpoint(tf1.write_checkpoint(str(tmp_path), network, arrays, lars=lars))
    assert set(variables) == expected
    assert (variables["global_step"].dtype, variables["global_step"].shape) == (np.int64, ())
    assert all(array.dtype == np.float32 for name, array in variables.items() if name != "global_step")
    restored = tf1.from_tf1(network, variables)
    assert_same_bits((restored.get("momentum"), restored.get("ema")), (arrays.get("momentum"), arrays.get("ema")))
    found = tf1_describe.contents(variables)
    assert found == (SLOT[lars] if "momentum" in kept else None, "ema" in kept)


@pytest.mark.parametrize("missing", ["dense/bias/Momentum", "batch_normalization/moving_mean/ExponentialMovingAverage"])
def test_half_of_a_kind_is_refused(tmp_path: Path, missing: str) -> None:
    network = make_network({"resnet_depth": 18})
    variables = tf1.read_checkpoint(tf1.write_checkpoint(str(tmp_path), network, draw(network)))
    del variables[missing]
    with pytest.raises(UserError, match=f"Checkpoint variable {missing}: got nothing"):
        tf1.from_tf1(network, variables)


def test_the_folder_says_which_is_the_latest(tmp_path: Path) -> None:
    network = make_network({"resnet_depth": 18})
    folder = tmp_path / "new" / "folder"
    for step in (20, 3):
        prefix = tf1.write_checkpoint(str(folder), network, draw(network, step=step, kept=()))
        assert prefix == str(folder / f"model.ckpt-{step}")
        assert tf1.find_checkpoint(str(folder)) == prefix
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        *(f"model.ckpt-{step}.{part}" for step in (20, 3) for part in ("data-00000-of-00001", "index")),
    ]


def test_a_checkpoint_without_step_is_at_step_0(tmp_path: Path) -> None:
    network = make_network({"resnet_depth": 18})
    prefix = tf1.write_checkpoint(str(tmp_path), network, draw(network))
    variables = tf1.read_checkpoint(prefix)
    del variables["global_step"]
    assert tf1.from_tf1(network, variables)["step"] == 0


def test_device_arrays_go_to_a_bucket() -> None:
    network = make_network({"resnet_depth": 18})
    arrays = jax.tree.map(jnp.asarray, draw(network, kept=("momentum",)))
    try:
        prefix = tf1.write_checkpoint("memory://bucket/run", network, arrays)
        assert prefix == "memory://bucket/run/model.ckpt-1251"
        restored = tf1.from_tf1(network, tf1.read_checkpoint("memory://bucket/run"))
        assert_same_bits(restored["params"], jax.device_get(arrays["params"]))
    finally:
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_nothing_of_another_checkpoint_is_loaded(tmp_path: Path) -> None:
    keras = {"layer/kernel/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(3, np.float32)}
    with pytest.raises(UserError, match="got an object-based checkpoint of TensorFlow 2"):
        tf1.from_tf1(make_network({"resnet_depth": 18}), keras)


@pytest.mark.parametrize(("case", "when"), [("r18", "after"), ("r50_d_se", "start")])
def test_writes_the_data_file_that_tensorflow_wrote(
    golden: Callable[[str], Path], tmp_path: Path, case: str, when: str
) -> None:
    meta = json.loads(golden(f"model/{case}/meta.json").read_text())
    theirs = golden(f"model/{case}/{meta[f'{when}_checkpoint']}.data-00000-of-00001")
    variables = tf1.read_checkpoint(str(theirs.with_suffix("")))
    options = tf1_describe.options_of(variables)
    network = make_network(options, num_classes=options["num_label_classes"])
    prefix = tf1.write_checkpoint(str(tmp_path), network, tf1.from_tf1(network, variables))
    ours = Path(f"{prefix}.data-00000-of-00001")
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.peer("tensorflow-cpu")
@pytest.mark.parametrize("options", [{"resnet_depth": 18}, {"resnet_depth": 50, **RS}], ids=str)
def test_tensorflow_reads_every_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    tf = pytest.importorskip("tensorflow")
    network = make_network(options)
    prefix = tf1.write_checkpoint(str(tmp_path), network, draw(network))
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    ours = tf1.read_checkpoint(prefix)
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert sorted(reader.get_variable_to_shape_map()) == list(ours)
    for name, array in ours.items():
        theirs = reader.get_tensor(name)
        assert (np.asarray(theirs).dtype, np.shape(theirs)) == (array.dtype, array.shape), name
        assert np.asarray(theirs).tobytes() == array.tobytes(), name
    assert tf.compat.v1.train.NewCheckpointReader(prefix).get_tensor("global_step") == 1251


@pytest.mark.peer("tensorflow-cpu")
def test_reads_what_tensorflow_merged_from_shards(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    arrays = {f"conv2d_{i}/kernel": rng.normal(size=(3, i, 2)).astype(np.float32) for i in range(300)}
    arrays |= {"global_step": np.array(7, np.int64), "conv_1_m": np.asarray(rng.random(5) < 0.5, jnp.bfloat16)}
    names = list(arrays)
    prefix, parts = str(tmp_path / "model.ckpt-7"), []
    for shard in range(3):
        part = tf.raw_ops.ShardedFilename(basename=f"{prefix}_temp/part", shard=shard, num_shards=3)
        own = names[shard::3]
        tf.raw_ops.SaveV2(
            prefix=part, tensor_names=own, shape_and_slices=[""] * len(own), tensors=[arrays[name] for name in own]
        )
        parts.append(part)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True)
    assert len(list(tmp_path.glob("*.data-*-of-00003"))) == 3
    read = tf1.read_checkpoint(prefix)
    assert list(read) == sorted(arrays)
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape, read[name].tobytes()) == (array.dtype, array.shape, array.tobytes())
