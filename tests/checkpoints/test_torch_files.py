"""Weights of torchvision and timm: what a file is, what it says, and conversion back. PyTorch itself is not needed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from resnet_tpu.checkpoints import torch_files
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import ModelConfig

_CLASSES = ["daisy", "rose", "tulip"]


def _network(depth: int = 18, num_classes: int = 3, **options: Any) -> Network:
    basic = {"project_first_group": False} if depth < 50 else {}
    model = ModelConfig(**{"resnet_depth": depth, "pool_padding": "symmetric", **basic, **options})
    return create_network(model, num_classes=num_classes, image_size=64)


def _state_dict(network: Network) -> dict[str, np.ndarray]:
    """Arrays with PyTorch's names, shapes and layout: zeros that take no memory."""
    trees = network.shape_trees()
    zeros = {
        name: np.broadcast_to(np.float32(0), leaf_at(trees, place).shape)
        for name, place in torch_files.torch_names(network).items()
    }
    return {name: torch_files.to_torch(array) for name, array in zeros.items()}


def _drawn(network: Network) -> dict[str, Any]:
    return dict(zip(("params", "batch_stats"), network.init(0), strict=True))


class Saved(NamedTuple):
    """A file written by `write_safetensors`, its network, and the arrays: {"params": ..., "batch_stats": ...}."""

    path: str
    network: Network
    arrays: dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Weights of a ResNet-18."""
    path = str(tmp_path_factory.mktemp("weights") / "r18.safetensors")
    network = _network(mean_rgb=(0.5, 0.4, 0.3))
    arrays = _drawn(network)
    torch_files.write_safetensors(path, network, arrays, class_names=_CLASSES)
    return Saved(path, network, arrays)


@pytest.fixture
def blank(tmp_path: Path) -> str:
    """The path of a file without a description of its own, for arrays made elsewhere."""
    (tmp_path / "w.pth").touch()
    return str(tmp_path / "w.pth")


def test_there_and_back_is_bit_equal(saved: Saved) -> None:
    found, names = torch_files.read_state_dict(saved.path), torch_files.torch_names(saved.network)
    assert found.keys() == names.keys()
    for name, place in names.items():
        np.testing.assert_array_equal(torch_files.to_ours(found[name]), leaf_at(saved.arrays, place))
        assert found[name].dtype == np.float32


def test_options_travel_with_the_weights(saved: Saved) -> None:
    options = torch_files.options_of(torch_files.read_state_dict(saved.path), saved.path)
    assert options == {
        "resnet_depth": 18, "stem": "imagenet", "project_first_group": False, "num_label_classes": 3,
        "pool_padding": "symmetric", "mean_rgb": (0.5, 0.4, 0.3), "stddev_rgb": (0.229, 0.224, 0.225),
        "eval_preprocessing": "tf",
    }  # fmt: skip
    assert torch_files.read_class_names(saved.path) == _CLASSES
    header = safetensors.safe_open(saved.path, "np").metadata()
    assert header["format"] == "pt"
    assert json.loads(header["resnet_tpu"])["class_names"] == _CLASSES


def test_an_outline_has_all_but_the_numbers(saved: Saved) -> None:
    whole, outline = torch_files.read_state_dict(saved.path), torch_files.read_outline(saved.path)
    assert {name: (a.shape, a.dtype) for name, a in outline.items()} == {
        name: (a.shape, a.dtype) for name, a in whole.items()
    }
    assert torch_files.options_of(outline, saved.path) == torch_files.options_of(whole, saved.path)


def test_averages_of_pytorch_have_a_counter_that_is_no_weight(saved: Saved) -> None:
    arrays = torch_files.read_state_dict(saved.path)
    assert torch_files.options_of({**arrays, "n_averaged": np.array(12)}, saved.path) == torch_files.options_of(
        arrays, saved.path
    )


@pytest.mark.parametrize("metadata", [[], {"resnet_tpu": 3}, {"resnet_tpu": "[1]"}])
def test_odd_notes_in_a_file(metadata: Any, tmp_path: Path) -> None:
    path = _write(tmp_path / "w.safetensors", {"__metadata__": metadata}, b"")
    assert torch_files.read_class_names(path) is None


def test_notes_in_a_file_that_are_damaged(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.safetensors", {"__metadata__": {"resnet_tpu": "{"}}, b"")
    with pytest.raises(UserError, match=r"w\.safetensors"):
        torch_files.read_class_names(path)


def test_names_and_layouts_are_torchvision_s(saved: Saved) -> None:
    shapes = {name: array.shape for name, array in torch_files.read_state_dict(saved.path).items()}
    assert len(shapes) == 122 - 20  # torchvision's resnet18 without its batch counters
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["bn1.running_var"] == (64,)
    assert shapes["layer2.0.conv1.weight"] == (128, 64, 3, 3)
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes["layer4.1.bn2.bias"] == (512,)
    assert shapes["fc.weight"] == (3, 512)
    assert not any(name.startswith("layer1.0.downsample") for name in shapes)


@pytest.mark.parametrize(("depth", "count"), [(34, 218), (50, 320), (101, 626), (152, 932)])
def test_as_many_names_as_torchvision_has(depth: int, count: int) -> None:
    names = torch_files.torch_names(_network(depth))
    norms = sum(name.endswith("running_mean") for name in names)
    assert len(names) + norms == count  # each norm has a counter too
    assert len(set(names.values())) == len(names)


_OPTIONS: list[dict[str, Any]] = [
    {"depth": 18},
    {"depth": 34},
    {"depth": 34, "project_first_group": True},
    {"depth": 18, "use_resnetd_stem": True, "resnetd_shortcut": True},
    {"depth": 50},
    {"depth": 50, "num_classes": 1001},
    {"depth": 50, "resnet_width": 32},
    {"depth": 50, "use_resnetd_stem": True},
    {"depth": 50, "se_ratio": 0.0625},
    {"depth": 50, "use_resnetd_stem": True, "resnetd_shortcut": True, "replace_stem_max_pool": True, "se_ratio": 0.25},
]
_DEEP: list[dict[str, Any]] = [
    {"depth": 34, "use_resnetd_stem": True, "resnetd_shortcut": True},
    {"depth": 101, "use_resnetd_stem": True, "resnetd_shortcut": True},
    {"depth": 152},
]


@pytest.mark.parametrize(
    "options", [*_OPTIONS, *(pytest.param(options, marks=pytest.mark.long) for options in _DEEP)], ids=str
)
def test_the_arrays_tell_the_options(options: dict[str, Any], blank: str) -> None:
    network = _network(**options)
    found = torch_files.options_of(_state_dict(network), blank)
    again = ModelConfig(
        **{name: value for name, value in found.items() if name not in ("num_label_classes", "eval_preprocessing")},
    )
    assert again == ModelConfig(**{**vars(network.model), "stem": "imagenet"})
    assert (found["num_label_classes"], found["eval_preprocessing"]) == (network.num_classes, "pil")


@pytest.mark.parametrize(("ratio", "width"), [(0.1, 64), (1 / 16, 4), (0.07, 24)])
def test_the_arrays_tell_the_ratio_of_squeeze_and_excite(ratio: float, width: int, blank: str) -> None:
    network = _network(50, se_ratio=ratio, resnet_width=width)
    # compares all arrays with those of the network found
    found = torch_files.options_of(_state_dict(network), blank)
    assert found["se_ratio"] == pytest.approx(ratio, abs=1 / (32 * width))


def _change(state_dict: Mapping[str, np.ndarray], **shapes: tuple[int, ...] | None) -> dict[str, np.ndarray]:
    """Gives some arrays other shapes, or removes them (None); '__' in a name stands for a dot."""
    changed = {**state_dict}
    for name, shape in shapes.items():
        if shape is None:
            del changed[name.replace("__", ".")]
        else:
            changed[name.replace("__", ".")] = np.zeros(shape, np.float32)
    return changed


_OTHERS: list[tuple[str, int, dict[str, tuple[int, ...] | None]]] = [
    (
        "a Wide ResNet-50-2: its 3x3 convolutions have 128 channels instead of 64", 50,
        {"layer1__0__conv1__weight": (128, 64, 1, 1), "layer1__0__conv2__weight": (128, 128, 3, 3)},
    ),
    (
        "a ResNeXt-50 32x4d", 50,
        {"layer1__0__conv1__weight": (128, 64, 1, 1), "layer1__0__conv2__weight": (128, 4, 3, 3)},
    ),
    ("an SE-ResNet-34", 34, {"layer1__0__se__fc1__weight": (4, 64, 1, 1)}),
    ("an ECA-ResNet", 50, {"layer1__0__se__conv__weight": (1, 1, 3)}),
    (
        "a ResNet-50 with 24, 32, 64 channels in the stem", 50,
        {"conv1__0__weight": (24, 3, 3, 3), "conv1__3__weight": (32, 24, 3, 3)},
    ),
    ("a ResNet-18 for small images, with a 3x3 convolution in the stem", 18, {"conv1__weight": (64, 3, 3, 3)}),
    ("a ResNet-18 with conv1.weight of shape [64, 1, 7, 7]", 18, {"conv1__weight": (64, 1, 7, 7)}),
    ("a ResNet-50 without layer3.2.bn2.running_var", 50, {"layer3__2__bn2__running_var": None}),
    ("a ResNet-50 with layer3.2.bn9.weight of shape [2]", 50, {"layer3__2__bn9__weight": (2,)}),
    ("a ResNet-50 with fc.1.bias of shape [3]", 50, {"fc__1__bias": (3,)}),
    ("a ResNet-53 (3, 4, 7, 3 bottleneck blocks)", 50, {"layer3__6__conv1__weight": (256, 1024, 1, 1)}),
    ("a ResNet without batch-norm statistics", 50, {"bn1__running_mean": None}),
    ("and no bn1.weight", 50, {"bn1__weight": None}),
    ("layer1.0.conv1.weight of shape [64]", 50, {"layer1__0__conv1__weight": (64,)}),
    ("fc.weight of shape [0, 2048]", 50, {"fc__weight": (0, 2048)}),
    ("a vision transformer", 18, {"blocks__0__attn__qkv__weight": (2, 2)}),
    ("a detector built on a ResNet", 18, {"backbone__body__layer1__0__conv1__weight": (2, 2)}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "depth", "changes"), _OTHERS, ids=[words for words, _, _ in _OTHERS])
def test_other_networks_are_refused_by_name(words: str, depth: int, changes: dict[str, Any], blank: str) -> None:
    arrays = _change(_state_dict(_network(depth)), **changes)
    with pytest.raises(UserError) as caught:
        torch_files.options_of(arrays, blank)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"Weights {blank}: got ")


def test_whole_numbers_without_their_scales_are_refused(blank: str) -> None:
    arrays = {name: array.astype(np.int8) for name, array in _state_dict(_network()).items()}
    with pytest.raises(UserError, match=r"a ResNet-18 with \S+ of type int8"):
        torch_files.options_of(arrays, blank)


def test_counters_are_passed_over_and_a_classifier_is_not_needed(blank: str) -> None:
    arrays = _change(_state_dict(_network()), bn1__num_batches_tracked=(), fc__weight=None, fc__bias=None)
    options = torch_files.options_of(arrays, blank)
    assert "num_label_classes" not in options
    assert options["resnet_depth"] == 18


def _config(folder: Path, **content: Any) -> str:
    """The path of an empty file beside a config.json."""
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "model.safetensors").touch()
    return str(folder / "model.safetensors")


def test_reads_older_timm_config(tmp_path: Path) -> None:
    told = {"mean": [0.5] * 3, "std": [0.2, 0.3, 0.4], "input_size": [3, 128, 128], "crop_pct": 0.95}
    path = _config(tmp_path, architecture="resnet18", label_names=_CLASSES, pretrained_cfg=told)
    options, names = torch_files.options_of(_state_dict(_network()), path), torch_files.read_class_names(path)
    path = _config(tmp_path, architecture="resnet18", labels=_CLASSES, **told)
    assert options == torch_files.options_of(_state_dict(_network()), path) and options["image_size"] == 128
    assert names == torch_files.read_class_names(path) == _CLASSES


def test_reads_timm_config_beside_the_weights(tmp_path: Path) -> None:
    pretrained = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.3, 0.4], "input_size": [3, 224, 224]}
    path = _config(tmp_path, architecture="resnet18", label_names=_CLASSES, pretrained_cfg=pretrained)
    options = torch_files.options_of(_state_dict(_network()), path)
    assert (options["mean_rgb"], options["stddev_rgb"]) == ((0.5, 0.5, 0.5), (0.2, 0.3, 0.4))
    assert torch_files.read_class_names(path) == _CLASSES
    plain = {"num_classes": 3, "in_chans": 3, "act_layer": "relu", "global_pool": "avg", "output_stride": 32}
    path = _config(tmp_path, architecture="resnet18", pretrained_cfg=pretrained, model_args=plain | {"aa_layer": None})
    assert torch_files.options_of(_state_dict(_network()), path) == options


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("act_layer", "silu", "relu"), ("global_pool", "max", "avg"), ("output_stride", 16, "32"),
        ("aa_layer", "blurpool", "null"),
    ],
)  # fmt: skip
def test_arguments_of_timm_that_no_array_shows_are_refused(
    name: str, value: object, expected: str, tmp_path: Path
) -> None:
    path = _config(tmp_path, architecture="resnet18", pretrained_cfg={}, model_args={"num_classes": 3, name: value})
    with pytest.raises(UserError, match=f"model_args in .*: got {name} {value}, expected {name} {expected}"):
        torch_files.options_of(_state_dict(_network()), path)


def test_a_config_that_does_not_fit(tmp_path: Path) -> None:
    arrays = _state_dict(_network())
    path = _config(tmp_path, architecture="resnetaa50d", pretrained_cfg={"mean": [0.5] * 3})
    with pytest.raises(UserError, match="got resnetaa50d, an anti-aliased ResNet"):
        torch_files.options_of(arrays, path)
    path = _config(tmp_path, label_names=["one"], pretrained_cfg={"std": [1, 1, 1]})
    with pytest.raises(UserError, match="1 class names for 3 classes"):
        torch_files.options_of(arrays, path)
    path = _config(tmp_path, pretrained_cfg={"mean": [0.5]})
    with pytest.raises(UserError, match=r"mean_rgb in the description of .*: got .*three numbers"):
        torch_files.options_of(arrays, path)
    for content in (b"{", b"\xff\xfe\xff", b"[" * 100_000):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(UserError, match=r"config\.json: got .*, expected JSON"):
            torch_files.options_of(arrays, path)


def test_ignores_config_of_another_program(tmp_path: Path) -> None:
    path = _config(tmp_path, mean_rgb=[9, 9, 9], pretrained_cfg=None, label_names=["one"])
    assert torch_files.options_of(_state_dict(_network()), path)["mean_rgb"] == ModelConfig.mean_rgb
    assert torch_files.read_class_names(path) is None


def test_which_file(tmp_path: Path) -> None:
    assert torch_files.find_file("a/b.pth") == "a/b.pth"
    assert torch_files.find_file("memory://a/b.safetensors") == "memory://a/b.safetensors"
    assert torch_files.find_file("a/model.ckpt-100") is None
    assert torch_files.find_file(str(tmp_path)) is None
    (tmp_path / "pytorch_model.bin").touch()
    assert torch_files.find_file(str(tmp_path)) == str(tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").touch()
    assert torch_files.find_file(str(tmp_path)) == str(tmp_path / "model.safetensors")
    folder = tmp_path.rename(tmp_path.with_suffix(".pt"))
    assert torch_files.find_file(str(folder)) == str(folder / "model.safetensors")


def _write(path: Path, entries: Mapping[str, Any], data: bytes, size: int | None = None) -> str:
    """Writes a .safetensors file byte by byte."""
    header = json.dumps(entries).encode()
    path.write_bytes((len(header) if size is None else size).to_bytes(8, "little") + header + data)
    return str(path)


def test_half_precision(tmp_path: Path) -> None:
    halves = np.arange(6).reshape(2, 3).astype(jnp.bfloat16)
    entries = {
        "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "f": {"dtype": "F16", "shape": [], "data_offsets": [12, 14]},
    }
    path = _write(tmp_path / "w.safetensors", entries, halves.tobytes() + np.float16(1.5).tobytes())
    found = torch_files.read_state_dict(path)
    assert (found["b"].dtype, found["f"].dtype) == (jnp.bfloat16, np.float16)
    np.testing.assert_array_equal(found["b"], halves)
    assert found["f"] == 1.5


_ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ({"a": _ENTRY | {"shape": [5]}}, None),
        ({"a": _ENTRY | {"data_offsets": [0, 12]}}, None),
        ({"a": _ENTRY | {"shape": [2**62, 4]}}, None),
        ({"a": _ENTRY | {"data_offsets": [0, 2**62], "shape": [2**60]}}, None),
        ({"a": _ENTRY, "b": _ENTRY}, None),
        ({"a": _ENTRY | {"dtype": "F31"}}, None),
        ({"a": 3}, None),
        ({"a": _ENTRY}, 2**63),
        ({"a": _ENTRY}, 99_000_000),
        ({"a": _ENTRY}, 5),
    ],
    ids=["size", "offsets", "huge", "huge and far", "overlap", "type", "number", "header", "long", "short"],
)  # fmt: skip
def test_damaged_headers(tmp_path: Path, entries: dict[str, Any], size: int | None) -> None:
    path = _write(tmp_path / "w.safetensors", entries, b"\0" * 16, size)
    with pytest.raises(UserError, match=r"w\.safetensors: got .+, expected a whole, undamaged \.safetensors file"):
        torch_files.read_state_dict(path)


@pytest.mark.parametrize("shape", [[4] + [1] * 99, [0, 2**63], [0, 2**40, 2**40]], ids=["many", "far", "large"])
def test_shapes_that_numpy_has_not(tmp_path: Path, shape: list[int]) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0 if 0 in shape else 16]}
    path = _write(tmp_path / "w.safetensors", {"a": entry}, b"" if 0 in shape else b"\0" * 16)
    for read in (torch_files.read_state_dict, torch_files.read_outline):
        with pytest.raises(UserError, match=r"w\.safetensors"):
            read(path)


@pytest.mark.parametrize(
    "entries",
    [{"a": _ENTRY | odd} for odd in ({"data_offsets": ["x", "y"]}, {"shape": [2**64 - 1]}, {"dtype": []})],
    ids=["offsets", "shape", "type"],
)  # fmt: skip
def test_headers_of_which_no_outline_can_be_made(tmp_path: Path, entries: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"w\.safetensors: got a header that cannot be read"):
        torch_files.read_outline(_write(tmp_path / "w.safetensors", entries, b"\0" * 16))


def test_null_metadata_reads_as_none(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.safetensors", {"__metadata__": None, "a": _ENTRY}, b"\0" * 16)
    assert torch_files.read_state_dict(path)["a"].shape == torch_files.read_outline(path)["a"].shape == (4,)
    assert torch_files.read_class_names(path) is None


@pytest.mark.parametrize("notes", ["[" * 5_000, '{"a":' * 5_000, "1" * 5_000], ids=["lists", "objects", "digits"])
def test_notes_that_no_program_wrote(tmp_path: Path, notes: str) -> None:
    path = _write(tmp_path / "w.safetensors", {"__metadata__": {"resnet_tpu": notes}, "a": _ENTRY}, b"\0" * 16)
    with pytest.raises(UserError, match=r"Description in .*, expected JSON"):
        torch_files.read_class_names(path)


def test_a_type_that_numpy_has_not(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.safetensors", {"a": _ENTRY | {"dtype": "F8_E5M2", "shape": [16]}}, b"\0" * 16)
    with pytest.raises(UserError, match=r"w\.safetensors, a: got type F8_E5M2"):
        torch_files.read_state_dict(path)


def test_every_truncated_file_is_noticed(tmp_path: Path) -> None:
    path = Path(_write(tmp_path / "w.safetensors", {"a": _ENTRY}, b"\0" * 16))
    whole = path.read_bytes()
    for data in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        path.write_bytes(data)
        for read in (torch_files.read_state_dict, torch_files.read_outline):
            with pytest.raises(UserError, match=r"w\.safetensors"):
                read(str(path))


def test_a_changed_number_or_class_name_in_a_file_of_ours_is_noticed(saved: Saved, tmp_path: Path) -> None:
    whole, path = Path(saved.path).read_bytes(), tmp_path / "w.safetensors"
    for at in (whole.index(b"daisy"), len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"w\.safetensors: got content with checksum .*, as when it was written"):
            torch_files.read_state_dict(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a Git LFS pointer instead of the file"),
        (b"<!DOCTYPE html><html>", "content that begins with b'<!DOCTYPE ht'"),
        (b"", "content that begins with b''"),
    ],
)
def test_refuses_files_without_weights(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UserError) as caught:
        torch_files.read_state_dict(str(tmp_path / "w.pth"))
    assert words in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"w\.pth: got no such file"):
        torch_files.read_state_dict(str(tmp_path / "w.pth"))
    with pytest.raises(UserError, match="expected a readable file"):
        torch_files.read_state_dict(str(tmp_path))


def test_prefixes_of_wrappers_are_taken_off(tmp_path: Path) -> None:
    path, one = str(tmp_path / "w.safetensors"), np.ones(1, np.float32)
    conv = "layer1.0.conv1.weight"
    safetensors.numpy.save_file({f"module._orig_mod.{conv}": one, "module._orig_mod.n": one, "n_averaged": one}, path)
    assert set(torch_files.read_state_dict(path)) == {conv, "n", "n_averaged"}
    safetensors.numpy.save_file({f"module.{conv}": one, "fc.bias": one}, path)  # only the rest was wrapped
    assert set(torch_files.read_state_dict(path)) == {conv, "fc.bias"}
    safetensors.numpy.save_file({f"module.{conv}": one, conv: one}, path)
    with pytest.raises(UserError, match="two networks, by their prefixes"):
        torch_files.read_state_dict(path)


def test_a_classifier_within_another_module_is_found(tmp_path: Path) -> None:
    path, one, conv = str(tmp_path / "w.safetensors"), np.ones(1, np.float32), "layer1.0.conv1.weight"
    head = {"backbone.fc.1.weight": one, "backbone.fc.1.bias": one}  # of Sequential(Dropout(), Linear())
    safetensors.numpy.save_file({f"backbone.{conv}": one, **head, "loss.weight": one}, path)
    assert set(torch_files.read_state_dict(path)) == {conv, "fc.weight", "fc.bias", "../loss.weight"}
    for others in ({f"backbone.{conv}": one}, {f"a.{conv}": one, f"b.{conv}": one, "a.fc.weight": one}):
        safetensors.numpy.save_file(others, path)
        assert set(torch_files.read_state_dict(path)) == set(others)  # a network for another task, or two
    two = {conv: one, "fc.0.weight": one, "fc.2.weight": one}
    safetensors.numpy.save_file(two, path)
    assert set(torch_files.read_state_dict(path)) == set(two)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 18, "project_first_group": True}, "project_first_group: got True, expected False"),
        ({"depth": 50, "resnet_width": 8}, "resnet_width: got 8, expected 64"),
        ({"depth": 20}, "stem: got small, expected imagenet"),
        ({"depth": 50, "stem": "small"}, "stem: got small, expected imagenet"),
        ({"depth": 50, "pre_activation": True}, "pre_activation: got True, expected False"),
    ],
)
def test_networks_that_pytorch_lacks_are_not_written(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        torch_files.write_safetensors(str(tmp_path / "w.safetensors"), _network(**options), {})
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_other_pool_padding_is_written_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, network = str(tmp_path / "w.safetensors"), _network(pool_padding="same", num_classes=2)
    torch_files.write_safetensors(path, network, _drawn(network))
    assert "pool_padding=same" in caplog.text
    assert torch_files.options_of(torch_files.read_state_dict(path), path)["pool_padding"] == "same"
    assert torch_files.read_class_names(path) is None


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    network = _network()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="got a file, expected a folder"):
        torch_files.write_safetensors(str(tmp_path / "file" / "w.safetensors"), network, _drawn(network))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
