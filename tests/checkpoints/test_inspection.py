"""The contents of a file of weights: every array once, in the order of the layers, and a sentence on what it is."""

import io
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from rich.console import Console

from resnet_tpu.checkpoints import tf1_bundle
from resnet_tpu.checkpoints.inspection import inspect, render
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.checkpoints.weights import Kind, open_weights
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaf_at

SUMMARIES: dict[Kind, str] = {
    "ours": "ResNet-18 of width 4 of resnet_tpu, mean_rgb=(0.5, 0.5, 0.5), 3 classes (daisy, rose, tulip), "
    "{} parameters, step 7, momentum, moving averages",
    "tf1": "ResNet-18 of width 4 of the original program (TensorFlow 1), 3 classes, {} parameters, step 7, "
    "Momentum slots, moving averages",
    "torch": "ResNet-18 of width 4 of PyTorch (torchvision or timm), pool_padding=symmetric, 3 classes, {} parameters",
}


@pytest.mark.parametrize("kind", SUMMARIES)
def test_every_array_is_there_once_in_the_order_of_the_layers(kind: Kind, three_kinds: Any) -> None:
    weights = three_kinds.open(kind)
    found = inspect(str(three_kinds.folders[kind]))
    assert found.source == weights.source
    assert sorted(entry.name for entry in found.entries) == sorted(weights.variables)
    sizes = {name: array.nbytes for name, array in weights.variables.items()}
    assert {entry.name: entry.num_bytes for entry in found.entries} == sizes
    assert {entry.name: entry.dtype for entry in found.entries} == {
        name: str(array.dtype) for name, array in weights.variables.items()
    }
    names = [entry.leaf for entry in found.entries if entry.leaf]
    assert names == ["/".join(path) for _, path in tf_names(three_kinds.network).values()]
    assert [entry.leaf for entry in found.entries[: len(names)]] == names
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(three_kinds.arrays["params"]))
    assert found.summary == SUMMARIES[kind].format(f"{num_parameters:,}") + "."


def test_what_follows_the_layers_is_in_natural_order(three_kinds: Any) -> None:
    names = [
        entry.name for entry in inspect(str(three_kinds.folders["tf1"])).entries if entry.name.endswith("Momentum")
    ]
    assert names.index("conv2d/kernel/Momentum") < names.index("conv2d_2/kernel/Momentum")
    assert names.index("conv2d_2/kernel/Momentum") < names.index("conv2d_10/kernel/Momentum")


def test_tf1_data_is_not_read_beyond_the_step(three_kinds: Any, tmp_path: Path) -> None:
    variables = {
        name: np.asarray(leaf_at(three_kinds.arrays, place)) for name, place in tf_names(three_kinds.network).items()
    }
    tf1_bundle.write_bundle(str(tmp_path / "model.ckpt-3"), variables)
    (tmp_path / "model.ckpt-3.data-00000-of-00001").write_bytes(b"")
    assert len(inspect(str(tmp_path)).entries) == len(variables)
    with pytest.raises(UserError, match="0 bytes"):
        open_weights(str(tmp_path))


def test_a_safetensors_file_is_read_by_its_header(three_kinds: Any, tmp_path: Path) -> None:
    arrays = safetensors.numpy.load_file(three_kinds.folders["torch"] / "model.safetensors")
    path = tmp_path / "wrapped.safetensors"
    safetensors.numpy.save_file({f"module.{name}": array for name, array in arrays.items()}, path)
    assert {entry.name: entry.shape for entry in inspect(str(path)).entries} == {
        name: array.shape for name, array in arrays.items()
    }
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:size] + b"\xff" * (len(data) - size))
    assert inspect(str(path)).summary.startswith("ResNet-18 of width 4 of PyTorch")
    for damaged, message in (
        (data[:-1], f"got {len(data) - 1} bytes, expected {len(data)}"),
        (data[:size], "bytes"),
        (data[:50], "Description"),
        (data[:8] + b"{}", "bytes"),
        (data.replace(b"F32", b"F33"), "F33"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=message):
            inspect(str(path))


def test_the_pruning_programs_names_have_their_places(three_kinds: Any, tmp_path: Path) -> None:
    variables = {
        name: np.asarray(leaf_at(three_kinds.arrays, place)) for name, place in tf_names(three_kinds.network).items()
    }
    kernel = variables.pop("conv2d/kernel")
    tf1_bundle.write_bundle(str(tmp_path / "model.ckpt-3"), {"conv_1_w": kernel, "conv_1_m": kernel * 0, **variables})
    found = {entry.name: entry for entry in inspect(str(tmp_path)).entries}
    assert found["conv_1_w"].leaf == "stem/conv/kernel"
    assert found["conv_1_m"].leaf == ""


def test_a_classifier_with_one_output_is_of_a_network_all_the_same(three_kinds: Any, tmp_path: Path) -> None:
    arrays = safetensors.numpy.load_file(three_kinds.folders["torch"] / "model.safetensors")
    arrays |= {name: arrays[name][:1] for name in ("fc.weight", "fc.bias")}
    safetensors.numpy.save_file(arrays, tmp_path / "one.safetensors")
    inspection = inspect(str(tmp_path / "one.safetensors"))
    assert "a classifier with one output" in inspection.summary
    assert "stem/conv/kernel" in [entry.leaf for entry in inspection.entries]


@pytest.mark.parametrize("kind", ["tf1", "torch"])
def test_arrays_of_anything_are_listed(kind: Kind, tmp_path: Path) -> None:
    arrays = {"layer_10/w": np.zeros((2, 3), np.float32), "layer_9/w": np.zeros(4, np.int64), "odd": np.float16(1)}
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    if kind == "tf1":
        tf1_bundle.write_bundle(str(tmp_path / "model.ckpt-3"), arrays)
    else:
        safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    found = inspect(str(tmp_path))
    assert [(entry.name, entry.shape, entry.dtype) for entry in found.entries] == [
        ("layer_9/w", (4,), "int64"), ("layer_10/w", (2, 3), "float32"), ("odd", (), "float16")
    ]  # fmt: skip
    assert "but not of a known network: " in found.summary


def test_the_table_shows_names_shapes_sizes_and_totals(three_kinds: Any) -> None:
    text = io.StringIO()
    Console(file=text, width=1000).print(render(inspect(str(three_kinds.folders["tf1"]))))
    lines = [[cell.strip() for cell in line.split("│")] for line in text.getvalue().splitlines()]
    assert ["", "conv2d/kernel", "stem/conv/kernel", "7×7×3×4", "float32", "2,352", ""] in lines
    num_bytes = sum(array.nbytes for array in three_kinds.open("tf1").variables.values())
    assert ["", "280 arrays", "", "", "", f"{num_bytes:,}", ""] in lines
    assert text.getvalue().endswith("moving averages.\n")
