"""Whatever the network, its exported forms compute the same as the network."""

import dataclasses
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest

from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.serving.export.bundle import Bundle, open_bundle
from resnet_tpu.serving.export.export import export_model
from resnet_tpu.serving.export.fold import fold
from resnet_tpu.serving.export.runtime import load_onnx
from resnet_tpu.serving.export.stablehlo import load_stablehlo
from resnet_tpu.training.inference.trained import Trained, data_for_network
from resnet_tpu.training.maths.step import normalize

VARIANTS: dict[str, dict[str, Any]] = {
    "18": {"resnet_depth": 18, "stem": "imagenet", "image_size": 37},  # odd sizes are padded differently
    "as_pytorch": {"resnet_depth": 18, "stem": "imagenet", "pool_padding": "symmetric", "project_first_group": False},
    "as_timm_18d": {
        "resnet_depth": 18, "image_size": 75, "pool_padding": "symmetric", "project_first_group": False,
        "use_resnetd_stem": True, "resnetd_shortcut": True,
    },
    "cifar": {"resnet_depth": 20},
    "rs": {
        "resnet_depth": 50, "image_size": 72, "use_resnetd_stem": True, "resnetd_shortcut": True,
        "replace_stem_max_pool": True, "se_ratio": 0.25, "dropblock_groups": "3,4", "dropblock_keep_prob": 0.9,
        "drop_connect_rate": 0.2, "dropout_rate": 0.25,
    },
    "v2": {"resnet_depth": 50, "stem": "imagenet", "pre_activation": True, "resnetd_shortcut": True},
    "compacted": {"resnet_depth": 20, "resnet_width": 8, "inner_channels": "3,8,1,16,5,9,32,2,7"},
    "evonorm_b0": {
        "resnet_depth": 18, "stem": "imagenet", "image_size": 64, "pre_activation": True,
        "norm_act_layer": "evonorm_b0", "use_resnetd_stem": True,
    },
    "evonorm_s0": {
        "resnet_depth": 18, "resnet_width": 6, "stem": "small", "pre_activation": True,
        "norm_act_layer": "evonorm_s0", "dropout_rate": 0.5,
    },
}  # fmt: skip


def live_logits(trained: Trained, images: np.ndarray) -> np.ndarray:
    apply = jax.jit(lambda *arrays: trained.network.apply(*arrays, train=False)[0])
    inputs = normalize(jnp.asarray(images), trained.network.model)
    return np.asarray(apply(trained.params, trained.batch_stats, inputs))


EACH = [pytest.param(name, marks=[] if name == "18" else [pytest.mark.long]) for name in VARIANTS]


@pytest.mark.parametrize("name", EACH)
def test_exported_equals_live(name: str, drawn: Callable[..., Trained], tmp_path: Path) -> None:
    trained = drawn(**VARIANTS[name])
    bundle = make(trained, tmp_path, "stablehlo,onnx")
    images = images_of(bundle)
    expected = live_logits(trained, images)
    assert expected.std() > 0.01  # otherwise the comparison would mean little
    for found in (load_stablehlo(bundle, "logits")(images), load_onnx(bundle, "onnx", output="logits")(images)):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))


def make(trained: Trained, folder: Path, forms: str, **options: Any) -> Bundle:
    config = Config().replace(export_dir=str(folder), export_forms=forms, **options)
    return open_bundle(export_model(trained, config))


def images_of(bundle: Bundle, n: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (n, bundle.image_size, bundle.image_size, 3), np.uint8)


def test_onnx_says_what_it_is(drawn: Callable[..., Trained], tmp_path: Path) -> None:
    bundle = make(drawn(resnet_depth=8), tmp_path, "onnx")
    model = onnx.load_from_string(bundle.read("model.onnx"))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    about = {prop.key: prop.value for prop in model.metadata_props}
    assert json.loads(about.pop("class_names")) == bundle.class_names
    told = {name: bundle.description[name] for name in ("image_size", "eval_preprocessing", "resize_method", "step")}
    assert about == {**{name: str(value) for name, value in told.items()}, "crop_pct": "0.875"}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}


ALONE = """
import json, sys
sys.path.append(sys.argv[1])  # there is nothing beside Python's own library before
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
about = session.get_modelmeta().custom_metadata_map
logits, probabilities = session.run(["logits", "probabilities"], {"images": numpy.load(sys.argv[3])})
names = json.loads(about["class_names"])
print(json.dumps([logits.tolist(), probabilities.tolist(), [names[k] for k in logits.argmax(1)]]))
"""


@pytest.mark.peer("onnxruntime", "numpy")
def test_onnx_runtime_needs_nothing_else(trained: Trained, tmp_path: Path) -> None:
    bundle = make(trained, tmp_path / "exported", "onnx")
    images = images_of(bundle)
    np.save(tmp_path / "images.npy", images)
    (site := tmp_path / "site").mkdir()
    for module in (np, onnxruntime):
        (site / module.__name__).symlink_to(module.__path__[0])
    arguments = [str(site), f"{bundle.path}/model.onnx", str(tmp_path / "images.npy")]
    done = subprocess.run([sys.executable, "-ISc", ALONE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    logits, probabilities, names = json.loads(done.stdout)
    expected = live_logits(trained, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(probabilities, jax.nn.softmax(expected), rtol=0, atol=1e-6)
    assert names == [trained.class_names[label] for label in expected.argmax(1)]


@pytest.mark.parametrize(
    "runtime",
    [pytest.param(name, marks=pytest.mark.peer(name)) for name in ("onnx", "opencv-python-headless", "openvino")],
)
@pytest.mark.parametrize("name", EACH)
def test_others_run_the_onnx_form(name: str, runtime: str, drawn: Callable[..., Trained], tmp_path: Path) -> None:
    trained = drawn(**VARIANTS[name])
    bundle = make(trained, tmp_path, "onnx")
    images = images_of(bundle)
    found = run_elsewhere(runtime, f"{bundle.path}/model.onnx", images)
    np.testing.assert_allclose(found, live_logits(trained, images), rtol=1e-5, atol=1e-5)


OPENVINO = """
import sys
import numpy, openvino
found = openvino.Core().compile_model(sys.argv[1], "CPU")({"images": numpy.load(sys.argv[2])})
numpy.save(sys.argv[2], found["logits"])
"""


def run_elsewhere(runtime: str, path: str, images: np.ndarray) -> np.ndarray:
    """The logits of a file, computed by another program than ONNX Runtime."""
    if runtime == "openvino":  # in a process of its own: its import forks, which JAX warns of
        array = f"{path}.npy"
        np.save(array, images)
        done = subprocess.run(
            [sys.executable, "-c", OPENVINO, path, array], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return np.load(array)
    if runtime == "onnx":
        found: Any = onnx.reference.ReferenceEvaluator(path).run(["logits"], {"images": images})
        return found[0]
    network = cv2.dnn.readNetFromONNX(path)
    network.setInput(images, "images")
    return network.forward("logits")


def test_a_pruned_network_is_exported_with_its_zeros(drawn: Callable[..., Trained], tmp_path: Path) -> None:
    whole = drawn(resnet_depth=8, resnet_width=8)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf * (rng.random(leaf.shape) < 0.2) if leaf.ndim == 4 else leaf, whole.params)
    pruned = dataclasses.replace(whole, params=params)
    bundle = make(pruned, tmp_path, "onnx")
    assert 0.15 < bundle.description["density"] < 0.25
    images = images_of(bundle)
    found = load_onnx(bundle, "onnx", output="logits")(images)
    np.testing.assert_allclose(found, live_logits(pruned, images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"resnet_depth": 20, "resnet_width": 8}, id="cifar"),
        pytest.param(
            {"resnet_depth": 50, "se_ratio": 0.25, "use_resnetd_stem": True, "resnetd_shortcut": True,
             "image_size": 64}, id="rs", marks=pytest.mark.long,
        ),
        pytest.param(
            {"resnet_depth": 18, "stem": "small", "pre_activation": True, "norm_act_layer": "evonorm_s0"},
            id="evonorm_s0", marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_int8_is_near(options: dict[str, Any], drawn: Callable[..., Trained], tmp_path: Path) -> None:
    trained = drawn(**options)
    bundle = make(trained, tmp_path, "onnx,int8", data_dir="synthetic", num_train_images=32)
    types = [node.op_type for node in onnx.load_from_string(bundle.read("model_int8.onnx")).graph.node]
    assert types.count("Conv") == sum(name.endswith("/kernel") for name in fold(trained).weights) - 1
    assert types.count("QuantizeLinear") > 20
    images = np.stack(
        [
            open_source(data_for_network(DataConfig("synthetic"), trained.config.data), "test")[i].encoded
            for i in range(8)
        ]
    )
    exact, rounded = (load_onnx(bundle, form, output="logits")(images) for form in ("onnx", "int8"))
    assert np.abs(rounded - exact).max() < 0.1 * np.abs(exact - exact.mean()).max()
    assert bundle.files["model_int8.onnx"][0] < bundle.files["model.onnx"][0]


def test_int8_needs_images_to_calibrate(
    drawn: Callable[..., Trained], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = r"Calibration of int8: data_dir: got 'nowhere', expected an existing .*\. Or leave int8 out of --forms\.$"
    with pytest.raises(UserError, match=wrong):
        make(drawn(resnet_depth=8), tmp_path, "onnx,int8", data_dir="nowhere")
    assert list(tmp_path.iterdir()) == []
    for name in ("a", "b"):
        (tmp_path / "photos" / "train" / name).mkdir(parents=True)
        (tmp_path / "photos" / "train" / name / "cut.jpg").write_bytes(b"no image")
    photos = {"data_dir": str(tmp_path / "photos"), "skip_bad_records": True}
    caplog.set_level(logging.INFO)
    with pytest.raises(UserError, match=r"Calibration of int8: got only damaged images"):
        make(drawn(resnet_depth=8), tmp_path / "exported", "onnx,int8", **photos)
    assert "cut.jpg" in caplog.text  # the log has what was left out, but no advice of ONNX Runtime
    assert "root" not in {record.name for record in caplog.records}
    assert not logging.getLogger().filters
