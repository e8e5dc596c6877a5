"""The same logits from the same weights in torchvision, timm and here, in both directions."""

import argparse
import dataclasses
import functools
import importlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import resnet_tpu as rt
from resnet_tpu import cli
from resnet_tpu.checkpoints import torch_files as weights
from resnet_tpu.checkpoints.pretrained import PRETRAINED
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import ModelConfig

pytestmark = pytest.mark.peer("torch")
torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

_NUM_CLASSES = 10
_TORCHVISION = ["torchvision/resnet18", "torchvision/resnet34", "torchvision/resnet50", "torchvision/resnet101"]
_TIMM = ["timm/resnet50", "timm/resnet18d", "timm/resnet34d", "timm/resnet50d", "timm/seresnet50", "timm/resnetrs50"]
_TOLERANCE = 1e-4  # logits are between -7 and 7; PyTorch's own differ from those in float64 by up to 2e-5


@functools.cache
def _torchvision() -> Any:
    """torchvision, even if it is a build for GPUs next to a torch for CPUs.

    Its C++ operations are missing then; it looks up these two by name on import, and no network here uses any.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision")


def _make(name: str) -> Any:
    """The network `library/name` with random weights, whose batch-norm statistics come from some noise."""
    library, model_name = name.split("/")
    torchvision, timm = _torchvision(), pytest.importorskip("timm")  # which imports torchvision
    create = torchvision.models.get_model if library == "torchvision" else timm.create_model
    torch.manual_seed(0)
    model = create(model_name, num_classes=_NUM_CLASSES)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
                module.weight.normal_(1.0, 0.2)
                module.bias.normal_(0.0, 0.2)
        for module in model.modules():
            if last := getattr(module, "bn3", getattr(module, "bn2", None)):  # of a block; else errors grow 1000-fold
                last.weight.mul_(0.2)
        model.fc.weight.normal_(0.0, 0.1)
        model.train()(torch.randn(16, 3, 64, 64))
    return model.eval()


def _logits(model: Any, images: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.from_numpy(images)).numpy()


def _load(path: str) -> tuple[Network, Arrays, Arrays]:
    """The network and its arrays from a file of PyTorch."""
    state_dict = weights.read_state_dict(path)
    options = weights.options_of(state_dict, path)
    num_classes = options.pop("num_label_classes")
    assert options.pop("eval_preprocessing") == "pil"
    network = create_network(ModelConfig(precision="float32", **options), num_classes=num_classes, image_size=64)
    trees: Any = network.shape_trees()
    for name, (collection, place) in weights.torch_names(network).items():
        parent = trees[collection]
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = jnp.asarray(weights.to_ours(state_dict[name]))
    return network, trees["params"], trees["batch_stats"]


@pytest.mark.peer("timm", "torchvision")
@pytest.mark.parametrize("name", [*_TORCHVISION, *_TIMM])
def test_same_logits_there_and_back(name: str, tmp_path: Path) -> None:
    model = _make(name)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    network, params, batch_stats = _load(str(tmp_path / "w.pth"))
    apply = jax.jit(lambda images: network.apply(params, batch_stats, images, train=False)[0])
    for size in (64, 75):  # even and odd maps are padded differently
        images = np.random.default_rng(0).standard_normal((2, 3, size, size), np.float32)
        theirs, ours = _logits(model, images), np.asarray(apply(images.transpose(0, 2, 3, 1)))
        assert np.abs(theirs[0] - theirs[1]).max() > 1  # otherwise the effect of the layers on images would not show
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=_TOLERANCE)

    arrays = {"params": params, "batch_stats": batch_stats}
    weights.write_safetensors(str(tmp_path / "back.safetensors"), network, arrays)
    again = _make(name)
    with torch.no_grad():
        for value in again.state_dict().values():
            value.zero_()
    again.load_state_dict(safetensors_torch.load_file(tmp_path / "back.safetensors"), strict=True)
    np.testing.assert_array_equal(_logits(again, images), _logits(model, images))


def _photos() -> list[Path]:
    """The two photos that come with scikit-learn."""
    folder = Path(importlib.import_module("sklearn.datasets").__file__ or "").parent / "images"
    return [folder / "china.jpg", folder / "flower.jpg"]


def _undecided(name: str) -> Any:
    """Like `_make`, but with a less confident classifier: differences show most when several classes have a share."""
    model = _make(name)
    with torch.no_grad():
        model.fc.weight.mul_(0.2)
    return model


def _probabilities(model: Any, transform: Any) -> np.ndarray:
    """The probabilities that a PyTorch network gives the photos, with its authors' preprocessing."""
    images = [transform(Image.open(photo).convert("RGB")) for photo in _photos()]
    with torch.inference_mode():
        return model(torch.stack(images)).softmax(1).numpy()


_SAME = 1e-5  # tolerance of probabilities


@pytest.mark.peer("timm", "torchvision")
@pytest.mark.parametrize(
    ("architecture", "interpolation", "crop_pct", "size"),
    [("resnet18", "bilinear", 0.875, 224), ("resnet50", "bicubic", 0.95, 224), ("seresnet50", "bicubic", 0.875, 160)],
)
def test_predicts_a_photo_as_timm_does(
    architecture: str, interpolation: str, crop_pct: float, size: int, tmp_path: Path
) -> None:
    """Loaded from a folder in the hub's format that timm wrote; also when converted, exported and served."""
    model, timm = _undecided(f"timm/{architecture}"), importlib.import_module("timm")
    told = {
        "interpolation": interpolation,
        "crop_pct": crop_pct,
        "input_size": (3, size, size),
        "mean": (0.5, 0.4, 0.3),
    }
    model.pretrained_cfg.update(told)
    folder, run = str(tmp_path / "folder"), str(tmp_path / "run")
    timm.models.save_for_hf(model, folder)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    expected = _probabilities(theirs, transform)
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    assert expected.max() < 0.9
    found = rt.load_model(folder)
    np.testing.assert_allclose(found.predict(_photos()).probabilities, expected, rtol=0, atol=_SAME)
    assert cli.main(["convert", folder, run]) == 0
    bundle = rt.export(rt.load_model(run).config.replace(export_dir=str(tmp_path / "exported"), export_forms="onnx"))
    for source in (run, bundle):
        np.testing.assert_allclose(rt.load_model(source).predict(_photos()).probabilities, expected, rtol=0, atol=_SAME)


@pytest.mark.peer("torchvision")
@pytest.mark.parametrize(("name", "weights_name"), [("resnet18", "IMAGENET1K_V1"), ("resnet50", "IMAGENET1K_V2")])
def test_torchvision_s_prediction_of_a_photo(
    name: str, weights_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the published weights with a short name; the weights are random here."""
    model, file = _undecided(f"torchvision/{name}"), tmp_path / "w.pth"
    torch.save(model.state_dict(), file)
    monkeypatch.setitem(PRETRAINED, name, dataclasses.replace(PRETRAINED[name], location=str(file)))
    transform = _torchvision().models.get_model_weights(name)[weights_name].transforms()
    found = rt.load_model(name).predict(_photos()).probabilities
    np.testing.assert_allclose(found, _probabilities(model, transform), rtol=0, atol=_SAME)


@pytest.mark.parametrize("zipped", [True, False])
def test_reads_what_torch_load_reads(zipped: bool, tmp_path: Path) -> None:
    """A training checkpoint with every type, and with non-contiguous arrays."""
    values = torch.arange(48).reshape(2, 4, 3, 2)
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool)
    state_dict = {str(kind): values.to(kind) for kind in kinds}
    state_dict |= {
        "transposed": values.float().permute(3, 1, 0, 2),
        "channels_last": values.float().contiguous(memory_format=torch.channels_last),
        "part": values[1, ::2],
        "parameter": torch.nn.Parameter(values.float()),
        "parameter with an attribute": torch.nn.Parameter(values.float()),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 3),
    }
    state_dict["parameter with an attribute"].tag = "a"
    content = {
        "model": OrderedDict(state_dict),
        "args": argparse.Namespace(lr=0.1, output=Path("a"), device=torch.device("cpu"), dtype=torch.float32),
        "best": np.float64(0.7),
        "size": torch.Size([1, 2]),
        "classes": {"a"},
        "frozen": frozenset("a"),
        "odd": [1j, bytearray(b"a")],
        "kinds": list(kinds),
        "by": {(1, 2): 3, None: 4, 0.5: 5, True: 6},
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(3)}}},
    }
    path = tmp_path / "w.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    theirs = torch.load(path, weights_only=False)["model"]
    ours = weights.read_state_dict(str(path))
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype.name == str(value.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(ours[name].astype(np.float64), value.detach().double().numpy())


def test_torch_reads_what_is_converted_to_it(tmp_path: Path) -> None:
    network = create_network(
        ModelConfig(resnet_depth=18, stem="imagenet", project_first_group=False), num_classes=3, image_size=64
    )
    arrays: Arrays = dict(zip(("params", "batch_stats"), network.init(0), strict=True))
    weights.write_safetensors(str(tmp_path / "w.safetensors"), network, arrays)
    theirs = safetensors_torch.load_file(tmp_path / "w.safetensors")
    torch.save(theirs, tmp_path / "w.pth")
    ours, again = (weights.read_state_dict(str(tmp_path / name)) for name in ("w.safetensors", "w.pth"))
    named = weights.torch_names(network)
    assert theirs.keys() == ours.keys() == again.keys() == named.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(tensor.numpy(), ours[name])
        np.testing.assert_array_equal(tensor.numpy(), again[name])


@pytest.mark.peer("torchvision")
@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_model_is_refused_by_name(zipped: bool, tmp_path: Path) -> None:
    torch.save(_torchvision().models.resnet18(), tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=r"asks to run torchvision\.models\.resnet\.ResNet.*save model\.state_dict\(\)"):
        weights.read_state_dict(str(tmp_path / "w.pth"))
