"""The SavedModel works like the original's: encoded images in, classes out."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from resnet_tpu.data.pixels.preprocess import eval_image
from resnet_tpu.data.records.tfrecord import read_records
from resnet_tpu.options.config import Config
from resnet_tpu.serving.export.bundle import Bundle, open_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.export.export import export_model
from resnet_tpu.serving.export.savedmodel import load_savedmodel
from resnet_tpu.serving.export.warmup import REQUESTS, warmup_requests
from resnet_tpu.training.inference.trained import Trained

VARIANTS: dict[str, dict[str, Any]] = {
    "cifar": {"resnet_depth": 20, "image_size": 32, "crop_pct": 1.0},
    "rs": {
        "resnet_depth": 50, "image_size": 72, "use_resnetd_stem": True, "resnetd_shortcut": True, "se_ratio": 0.25,
        "replace_stem_max_pool": True, "resize_method": "bilinear",
    },
    "timm": {"resnet_depth": 18, "image_size": 48, "crop_pct": 0.95, "eval_preprocessing": "pil"},
    "v2": {"resnet_depth": 18, "stem": "imagenet", "image_size": 37, "pre_activation": True},
    "evonorm_b0": {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_b0"},
    "evonorm_s0": {"resnet_depth": 18, "stem": "small", "pre_activation": True, "norm_act_layer": "evonorm_s0"},
}  # fmt: skip


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def make(trained: Trained, folder: Path, **options: Any) -> Bundle:
    config = Config().replace(export_dir=str(folder), export_forms="stablehlo,savedmodel", **options)
    return open_bundle(export_model(trained, config))


def photos(count: int, suffix: str) -> list[bytes]:
    """Encoded images of several sizes, smooth enough for JPEG decoders to agree."""
    rng = np.random.default_rng(0)
    small = [rng.integers(0, 256, (4 + i, 6, 3), np.uint8) for i in range(count)]
    large = [
        cv2.resize(image, (90 + 7 * i, 80 - 5 * i), interpolation=cv2.INTER_CUBIC) for i, image in enumerate(small)
    ]
    return [cv2.imencode(suffix, image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes() for image in large]


@pytest.mark.peer("tensorflow-cpu")
@pytest.mark.filterwarnings("ignore")  # warnings from TensorFlow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_original_signature(name: str, tf: Any, drawn: Callable[..., Trained], tmp_path: Path) -> None:
    bundle = make(drawn(**VARIANTS[name]), tmp_path)
    loaded = tf.saved_model.load(bundle.path)
    assert set(loaded.signatures) == {"serving_default", "classify", "pixels"}
    size, classify = bundle.image_size, load_classifier(bundle, "stablehlo")
    for suffix, tolerance in ((".png", 1e-5), (".jpg", 0.02)):  # JPEG decoders differ by a level or two
        encoded = photos(4, suffix)
        images = np.empty((4, size, size, 3), np.uint8)
        for one, out in zip(encoded, images, strict=True):
            data = bundle.config.data
            eval_image(
                one, size, out, resize_method=data.resize_method, crop_pct=data.crop_pct,
                preprocessing=data.eval_preprocessing,
            )  # fmt: skip
        expected = classify(images)
        if bundle.config.data.eval_preprocessing == "pil":
            tolerance = 0.02  # Pillow rounds between the axes
        for signature in ("serving_default", "classify"):
            found = loaded.signatures[signature](input=tf.constant(encoded))
            assert {key: value.dtype.name for key, value in found.items()} == {
                "classes": "int64", "probabilities": "float32"
            }  # fmt: skip
            np.testing.assert_allclose(found["probabilities"].numpy(), expected, rtol=0, atol=tolerance)
            np.testing.assert_array_equal(found["classes"].numpy(), found["probabilities"].numpy().argmax(1))
    logits = load_savedmodel(bundle)(images)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), expected, rtol=0, atol=1e-5)


@pytest.mark.peer("tensorflow-cpu", "tensorflow-serving-api")
@pytest.mark.filterwarnings("ignore")
def test_the_model_answers_its_warm_up_requests(tf: Any, drawn: Callable[..., Trained], tmp_path: Path) -> None:
    logs = importlib.import_module("tensorflow_serving.apis.prediction_log_pb2")
    options = {"add_warmup_requests": True, "inference_batch_sizes": "1,3", "model_name": "flowers"}
    bundle = make(drawn(resnet_depth=20), tmp_path, **options)
    loaded = tf.saved_model.load(bundle.path)
    found = [logs.PredictionLog.FromString(record) for record in read_records(f"{bundle.path}/{REQUESTS}")]
    assert [log.predict_log.request.inputs["input"].tensor_shape.dim[0].size for log in found] == [1] * 8 + [3] * 8
    for log in found:
        images = tf.make_ndarray(log.predict_log.request.inputs["input"])
        expected = logs.PredictionLog()
        request = expected.predict_log.request
        request.model_spec.name, request.model_spec.signature_name = "flowers", "serving_default"
        request.inputs["input"].CopyFrom(tf.make_tensor_proto(images))
        assert log == expected
        answer = loaded.signatures["serving_default"](input=tf.constant(images))
        assert answer["probabilities"].shape == (len(images), 5)


def test_warm_up_requests_are_records_of_one_jpeg_each(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.write_bytes(warmup_requests("flowers", [2], 16))
    records = list(read_records(str(path)))
    assert len(records) == 8
    for record in records:
        assert b"flowers" in record
        assert record.count(b"\xff\xd8\xff") == 2  # the same photo twice
