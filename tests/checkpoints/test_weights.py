"""Weights of every kind are found by any of their paths; anything else is refused, saying what it is."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1_bundle
from resnet_tpu.checkpoints.inspection import inspect
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.checkpoints.weights import Kind, LocatedWeights, fixed_options, locate, open_weights
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.options.config import Config

KINDS: tuple[Kind, ...] = ("ours", "tf1", "torch")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_holds_the_same_weights_in_the_same_layout(kind: Kind, three_kinds: Any) -> None:
    weights = three_kinds.open(kind)
    assert weights.kind == kind
    names = weights.names_in(three_kinds.network)
    assert len(names) == len(tf_names(three_kinds.network))
    for name, place in names.items():
        np.testing.assert_array_equal(weights.variables[name], leaf_at(three_kinds.arrays, place))
    assert {name: weights.options[name] for name in ("resnet_depth", "resnet_width", "num_label_classes")} == {
        "resnet_depth": 18, "resnet_width": 4, "num_label_classes": 3
    }  # fmt: skip
    assert Config().replace(**weights.options).model.stem == "imagenet"
    assert weights.step == (None if kind == "torch" else 7)
    assert weights.class_names == (three_kinds.class_names if kind == "ours" else None)


@pytest.mark.parametrize(
    ("kind", "padding", "mean"),
    [
        ("ours", "same", (0.5, 0.5, 0.5)),
        ("tf1", "same", (0.485, 0.456, 0.406)),
        ("torch", "symmetric", (0.485, 0.456, 0.406)),
    ],
)
def test_fixed_options_by_kind_of_weights(kind: Kind, padding: str, mean: tuple[float, ...], three_kinds: Any) -> None:
    assert fixed_options(three_kinds.open(kind)) == {
        "inner_channels": "",
        "pool_padding": padding,
        "project_first_group": True,
        "mean_rgb": mean,
        "stddev_rgb": (0.229, 0.224, 0.225),
    }


@pytest.mark.parametrize(
    ("kind", "path", "source"),
    [
        ("ours", "", "checkpoints/7"),
        ("ours", "checkpoints", "checkpoints/7"),
        ("ours", "checkpoints/7", "checkpoints/7"),
        ("tf1", "", "model.ckpt-7"),
        ("tf1", "model.ckpt-7", "model.ckpt-7"),
        ("tf1", "model.ckpt-7.index", "model.ckpt-7"),
        ("tf1", "model.ckpt-7.data-00000-of-00001", "model.ckpt-7"),
        ("torch", "", "model.safetensors"),
        ("torch", "model.safetensors", "model.safetensors"),
    ],
)
def test_any_of_their_paths_will_do(kind: Kind, path: str, source: str, three_kinds: Any) -> None:
    assert locate(str(three_kinds.folders[kind] / path)) == LocatedWeights(
        kind, str(three_kinds.folders[kind] / source)
    )


@pytest.mark.parametrize("kind", ["tf1", "torch"])
def test_weights_in_a_bucket(kind: Kind, three_kinds: Any) -> None:
    folder = f"memory://weights/{kind}"
    fsspec.filesystem("memory").put(str(three_kinds.folders[kind]), folder, recursive=True)
    remote, local = open_weights(folder), three_kinds.open(kind)
    assert remote.source.startswith("memory://")
    assert remote.options == local.options
    assert remote.variables.keys() == local.variables.keys()
    assert all(np.array_equal(array, local.variables[name]) for name, array in remote.variables.items())
    assert inspect(folder).summary == inspect(str(three_kinds.folders[kind])).summary


def test_masks_of_the_pruning_program_are_applied(tmp_path: Path, three_kinds: Any) -> None:
    names = tf_names(three_kinds.network)
    variables = {name: np.asarray(leaf_at(three_kinds.arrays, place)) for name, place in names.items()}
    kernel = variables.pop("conv2d/kernel")
    mask = np.arange(kernel.size).reshape(kernel.shape) % 2
    pruned = {"conv_1_w": kernel, "conv_1_m": mask.astype(np.float32), **variables}
    tf1_bundle.write_bundle(str(tmp_path / "model.ckpt-1"), pruned)
    weights = open_weights(str(tmp_path))
    np.testing.assert_array_equal(weights.variables["conv2d/kernel"], kernel * mask)
    assert set(weights.variables) == set(names)


def make_files(folder: Path, names: str) -> None:
    for name in names.split():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something")


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ("", "resnet50.pth", "resnet50.pth, which does not exist, expected a TF1 checkpoint (PREFIX.index), a "),
        ("in/resnet50-0676ba61.pth", "in/resnet50.pth", "Check the path. Did you mean resnet50-0676ba61.pth?"),
        ("", "https://host/resnet50.pth", "Download it first"),
        ("", "timm/resnet50.a1_in1k", "which does not exist"),
        ("in/a/1.jpg in/b.txt", "in", "in, a folder of a, b.txt, expected a TF1 checkpoint"),
        ("in/a in/b in/c in/d in/e in/f in/g in/h", "in", "a folder of a, b, c, d, e, f and 2 more"),
        ("checkpoints/in/0/1.jpg checkpoints/in/1/1.jpg", "checkpoints/in", "in, a folder of 0, 1, expected"),
        ("in/resnet50.pth", "in", "Give a file of it: "),
        ("in/model-00001-of-00002.safetensors", "in", "in, weights in several files, expected one file"),
        ("in/a/model-00001-of-00002.safetensors", "in/a/model-00001-of-00002.safetensors", "several files"),
        ("in/pytorch_model.bin.index.json", "in/pytorch_model.bin.index.json", "weights in several files"),
        ("in/saved_model.pb in/variables/variables.index", "in", "in, a SavedModel, expected"),
        ("1700000000/saved_model.pb", ".", "1700000000, a SavedModel, expected"),
        ("in/model.stablehlo in/labels.txt", "in", "in, an exported model, expected"),
        ("resnet50_weights.h5", "resnet50_weights.h5", "resnet50_weights.h5, Keras weights, expected"),
        ("resnet50.onnx", "resnet50.onnx", "resnet50.onnx, an ONNX model, expected"),
        ("notes.txt", "notes.txt", "Weights: got notes.txt, expected"),
        ("checkpoints/7/_CHECKPOINT_METADATA", "", "Weights: got nothing, expected"),  # not the current folder
    ],
)
def test_paths_without_weights_are_refused_by_what_they_are(
    files: str, path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_files(tmp_path, files)
    with pytest.raises(UserError) as raised:
        open_weights(path)
    assert message in str(raised.value)


def test_an_empty_folder_holds_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder of nothing, expected"):
        open_weights(str(tmp_path))
