"""The original's checkpoints: found by the paths that users give, with every variable in its place."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1, tf1_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

WriteBundle = Callable[..., str]


@functools.cache
def make_network(depth: int, *, width: int | None = None, num_classes: int = 1000) -> Network:
    config = Config().replace(resnet_depth=depth, resnet_width=width, stem="imagenet", precision="float32")
    return create_network(config.model, num_classes=num_classes, image_size=224)


def variables_of(network: Network, seed: int) -> dict[str, np.ndarray]:
    """Random values under the original's names."""
    rng = np.random.default_rng(seed)
    trees = network.shape_trees()
    return {
        name: rng.normal(size=leaf_at(trees, place).shape).astype(np.float32)
        for name, place in tf1_names.tf_names(network).items()
    }


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152, 200])
def test_names_shapes_and_order_are_the_originals(golden: Callable[[str], Path], depth: int) -> None:
    network = make_network(depth)
    trees = network.shape_trees()
    ours = [
        [name, list(leaf_at(trees, place).shape), str(leaf_at(trees, place).dtype), place[0] == "params"]
        for name, place in tf1_names.tf_names(network).items()
    ]
    assert ours == json.loads(golden("model/variables_full_width.json").read_text())[str(depth)]


@pytest.mark.parametrize(
    ("depth", "projections", "last"),
    [
        (18, (1, 6, 11, 16), 20),
        (34, (1, 8, 17, 30), 36),
        (50, (1, 11, 24, 43), 52),
        (101, (1, 11, 24, 94), 103),
        (152, (1, 11, 36, 145), 154),
        (200, (1, 11, 84, 193), 202),
    ],
)
def test_layers_are_numbered_in_order_of_creation(depth: int, projections: tuple[int, ...], last: int) -> None:
    names = tf1_names.tf_names(make_network(depth))
    found = [name for name, (_, path) in names.items() if "projection" in path and path[-1] == "kernel"]
    assert found == [f"conv2d_{number}/kernel" for number in projections]
    assert [name for name in names if name.endswith("/gamma")][-1] == f"batch_normalization_{last}/gamma"
    assert list(names)[:2] == ["conv2d/kernel", "batch_normalization/gamma"]
    assert list(names)[-2:] == ["dense/kernel", "dense/bias"]
    convs = last + 1
    assert len(names) == 5 * convs + 2
    assert len(set(names.values())) == len(names)


def test_restores_every_array(write_bundle: WriteBundle) -> None:
    network = make_network(18, width=4, num_classes=3)
    variables = variables_of(network, 0)
    names = tf1_names.tf_names(network)
    momentum = {f"{name}/Momentum": 2 * variables[name] for name, place in names.items() if place[0] == "params"}
    everything = variables | momentum | {"global_step": np.array(7, np.int64)}
    restored = tf1.from_tf1(network, tf1.read_checkpoint(write_bundle(everything)))
    assert restored["step"] == 7
    for name, place in names.items():
        assert np.array_equal(leaf_at(restored, place), variables[name]), name
        if place[0] == "params":
            assert np.array_equal(leaf_at({"params": restored["momentum"]}, place), momentum[f"{name}/Momentum"]), name


def test_restored_arrays_make_the_network_run() -> None:
    network = make_network(18, width=4, num_classes=3)
    restored = tf1.from_tf1(network, variables_of(network, 0))
    assert restored.keys() == {"step", "params", "batch_stats"}
    assert restored["step"] == 0
    images = jnp.zeros((2, 64, 64, 3))
    logits, _ = jax.eval_shape(
        lambda arrays: network.apply(arrays["params"], arrays["batch_stats"], images, train=False), restored
    )
    assert logits.shape == (2, 3)


def test_another_depth_is_refused_with_both_counts() -> None:
    variables = variables_of(make_network(34, width=4), 0)
    with pytest.raises(UserError, match="got 37 convolutions, expected 21, as in resnet_depth 18"):
        tf1.from_tf1(make_network(18, width=4), variables)


def test_another_shape_names_the_variable_and_both_shapes() -> None:
    variables = variables_of(make_network(18, width=4, num_classes=3), 0)
    with pytest.raises(UserError, match=r"dense/kernel: got shape \[32, 3\], expected \[32, 5\]"):
        tf1.from_tf1(make_network(18, width=4, num_classes=5), variables)


@pytest.mark.parametrize("missing", ["batch_normalization_3/moving_mean", "dense/bias", "conv2d_2/kernel/Momentum"])
def test_a_missing_variable_is_named(missing: str) -> None:
    network = make_network(18, width=4, num_classes=3)
    variables = variables_of(network, 0)
    slots = [name for name, (collection, _) in tf1_names.tf_names(network).items() if collection == "params"]
    variables |= {f"{name}/Momentum": variables[name] for name in slots}
    del variables[missing]
    with pytest.raises(UserError, match=f"Checkpoint variable {missing}: got nothing"):
        tf1.from_tf1(network, variables)


def test_finds_a_checkpoint_by_prefix_index_file_or_folder(write_bundle: WriteBundle, tmp_path: Path) -> None:
    assert tf1.find_checkpoint(str(tmp_path)) is None
    array = {"a": np.zeros(1, np.float32)}
    prefixes = {step: write_bundle(array, name=f"model.ckpt-{step}") for step in (9, 10)}
    assert tf1.find_checkpoint(prefixes[9]) == prefixes[9]
    assert tf1.find_checkpoint(f"{prefixes[9]}.index") == prefixes[9]
    assert tf1.find_checkpoint(str(tmp_path)) == prefixes[10]  # the highest step
    for state in ("model.ckpt-9", prefixes[9], "gs://bucket/elsewhere/model.ckpt-9", "/old/place/model.ckpt-9"):
        text = f'model_checkpoint_path: "{state}"\nall_model_checkpoint_paths: "model.ckpt-10"\n'
        (tmp_path / "checkpoint").write_text(text)
        assert tf1.find_checkpoint(str(tmp_path)) == prefixes[9]  # the one called the latest


def test_a_state_file_may_hold_escapes(write_bundle: WriteBundle, tmp_path: Path) -> None:
    prefix = write_bundle({"a": np.zeros(1, np.float32)}, name='größe "1"-3')
    write_bundle({"a": np.zeros(1, np.float32)}, name="model.ckpt-4")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "gr\\303\\266\\303\\237e \\"1\\"-3"\n')
    assert tf1.find_checkpoint(str(tmp_path)) == prefix


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b'model_checkpoint_path: "\\377-9"', b""])
def test_another_thing_called_checkpoint_is_passed_over(
    write_bundle: WriteBundle, tmp_path: Path, content: bytes | None
) -> None:
    prefix = write_bundle({"a": np.zeros(1, np.float32)})
    if content is None:
        (tmp_path / "checkpoint").mkdir()
    else:
        (tmp_path / "checkpoint").write_bytes(content)
    assert tf1.find_checkpoint(str(tmp_path)) == prefix


def test_reads_from_a_bucket(write_bundle: WriteBundle) -> None:
    arrays = {"a": np.arange(3, dtype=np.float32), "b": np.zeros((2, 0), np.float32)}
    prefix = Path(write_bundle(arrays, num_shards=2))
    bucket = fsspec.filesystem("memory")
    for file in prefix.parent.iterdir():
        bucket.pipe(f"/bucket/run/{file.name}", file.read_bytes())
    bucket.pipe("/bucket/run/checkpoint", b'model_checkpoint_path: "gs://old/model.ckpt-7"')
    try:
        assert tf1.find_checkpoint("memory://bucket/run") == "memory://bucket/run/model.ckpt-7"
        for path in ("memory://bucket/run", "memory://bucket/run/model.ckpt-7"):
            read = tf1.read_checkpoint(path)
            assert list(read) == ["a", "b"]
            assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
        bucket.rm("/bucket/run/model.ckpt-7.data-00001-of-00002")
        with pytest.raises(UserError, match="data-00001-of-00002: got no such file"):
            tf1.read_checkpoint("memory://bucket/run")
    finally:
        bucket.rm("/bucket", recursive=True)


@pytest.mark.parametrize("name", ["", "missing", "file.txt"])
def test_a_path_without_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(UserError, match="expected the prefix of a TensorFlow checkpoint"):
        tf1.read_checkpoint(str(tmp_path / name))


def test_reads_checkpoints_that_tensorflow_wrote(golden: Callable[[str], Path], golden_case: str) -> None:
    variables = tf1.read_checkpoint(str(golden(f"model/{golden_case}/start")))
    rows = json.loads(golden(f"model/{golden_case}/variables.json").read_text())
    meta = json.loads(golden(f"model/{golden_case}/meta.json").read_text())
    assert {name: list(variables[name].shape) for name, *_ in rows} == {name: shape for name, shape, *_ in rows}
    assert variables["global_step"] == meta["start_global_step"]
    slots = {name for name in variables if name.endswith("/Momentum")}
    trained = {f"{name}/Momentum" for name, _, _, trainable in rows if trainable}
    assert slots == (trained if meta["start_has_momentum"] else set())


def test_values_are_the_ones_that_tensorflow_saw(golden: Callable[[str], Path]) -> None:
    variables = tf1.read_checkpoint(str(golden("model/r18/after")))
    rows = json.loads(golden("model/r18/variables.json").read_text())
    results = np.load(golden("model/r18/results.npz"))
    values = [variables[name].astype(np.float64) for name, *_ in rows]
    slots = [variables[f"{name}/Momentum"].astype(np.float64) for name, _, _, trainable in rows if trainable]
    for prefix, arrays in (("after", values), ("mom", slots)):
        # The sums were computed in float64 from the same float32 values; only the order of additions may differ.
        np.testing.assert_allclose([array.sum() for array in arrays], results[f"{prefix}_sum"], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose([np.linalg.norm(array) for array in arrays], results[f"{prefix}_l2"], rtol=1e-12)
    assert variables["global_step"] == json.loads(golden("model/r18/meta.json").read_text())["after_global_step"]


@pytest.mark.timeout(60)
def test_a_state_file_of_empty_lines_ends_soon(write_bundle: WriteBundle, tmp_path: Path) -> None:
    prefix = write_bundle({"a": np.zeros(4, np.float32)})
    (tmp_path / "checkpoint").write_text("\n" * 300_000)
    assert tf1.find_checkpoint(str(tmp_path)) == prefix
