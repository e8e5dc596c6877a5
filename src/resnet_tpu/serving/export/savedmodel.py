"""Writes the network as a TensorFlow SavedModel with the original's signature: encoded images in, classes out."""

import contextlib
import functools
import importlib
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resnet_tpu.errors import missing_extra
from resnet_tpu.models.architecture import EPSILON
from resnet_tpu.options.config import DataConfig, EvalConfig
from resnet_tpu.serving.export.bundle import Bundle
from resnet_tpu.serving.export.classifier import Classifier
from resnet_tpu.serving.export.fold import Folded
from resnet_tpu.serving.export.walk import Pads, walk
from resnet_tpu.serving.export.warmup import REQUESTS, warmup_requests

SIGNATURES = ("serving_default", "classify")
"""The original's: `input` string [n], JPEG, PNG, BMP or GIF -> `classes` int64 [n], `probabilities` [n, classes]."""

PIXELS = "pixels"
"""Our own signature: `images` uint8 [n, s, s, 3] -> `logits`, `probabilities` float32 [n, classes]."""


def write_savedmodel(
    folded: Folded, data: DataConfig, asked: EvalConfig, batch_sizes: Sequence[int]
) -> dict[str, bytes]:
    """Makes the files of the form, placed where TensorFlow Serving finds them when it is given the folder of exports.

    data: of training, for the preprocessing. With `add_warmup_requests` the files include warm-up requests of the batch
    sizes. Raises UserError when TensorFlow is not installed.
    """
    tf = _tensorflow()
    variables = {name: tf.Variable(array, trainable=False) for name, array in folded.weights.items()}
    module = tf.Module()
    module.weights = list(variables.values())
    outputs = functools.partial(walk, _Ops(tf, variables), folded)
    decode = functools.partial(_decode, tf, folded.image_size, data)

    def classify(encoded: Any) -> dict[str, Any]:
        images = tf.map_fn(decode, encoded, fn_output_signature=tf.uint8)
        logits, probabilities = outputs(tf.ensure_shape(images, [None, folded.image_size, folded.image_size, 3]))
        return {"classes": tf.argmax(logits, -1), "probabilities": probabilities}

    def pixels(images: Any) -> dict[str, Any]:
        logits, probabilities = outputs(images)
        return {"logits": logits, "probabilities": probabilities}

    size = folded.image_size
    strings = tf.TensorSpec([None], tf.string, name="input")
    module.classify = tf.function(classify, input_signature=[strings], autograph=False)
    module.pixels = tf.function(
        pixels, input_signature=[tf.TensorSpec([None, size, size, 3], tf.uint8, name="images")], autograph=False
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(
            module, folder, signatures={**dict.fromkeys(SIGNATURES, module.classify), PIXELS: module.pixels}
        )
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }
    if asked.add_warmup_requests:
        files[REQUESTS] = warmup_requests(asked.model_name, batch_sizes, size)
    return files


def load_savedmodel(bundle: Bundle) -> Classifier:
    """Loads the SavedModel of a bundle: pixels -> logits. Raises UserError when TensorFlow is not installed."""
    tf = _tensorflow()
    for name in bundle.files:
        if name.startswith(("saved_model", "variables")):
            bundle.read(name)  # TensorFlow would not notice a changed byte
    loaded = tf.saved_model.load(bundle.path)
    signature = loaded.signatures[PIXELS]

    def run(images: np.ndarray) -> np.ndarray:
        assert loaded is not None  # keeps its variables alive: a signature does not
        return signature(images=tf.constant(images))["logits"].numpy()

    return run


def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # otherwise it logs each instruction set it was not built for
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN is logged too, and does not speed up small batches
    try:
        tf = importlib.import_module("tensorflow")
    except ImportError:
        raise missing_extra("Form savedmodel", "tensorflow", "tf") from None
    with contextlib.suppress(RuntimeError):  # too late once TensorFlow has started
        tf.config.set_visible_devices([], "GPU")  # otherwise it would take all memory of GPUs that JAX uses too
    return tf


def _decode(tf: Any, image_size: int, data: DataConfig, encoded: Any) -> Any:
    """uint8 [s, s, 3], the centre of an encoded image: `pixels.preprocess.eval_image` in TensorFlow's operations."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    center = _center if data.eval_preprocessing == "tf" else _resized_center
    return tf.cast(tf.clip_by_value(tf.round(center(tf, image, image_size, data)), 0.0, 255.0), tf.uint8)


def _center(tf: Any, image: Any, image_size: int, data: DataConfig) -> Any:
    """Crops like `data.pixels.crop.eval_window`, and resizes with the original's kernel."""
    shape = tf.shape(image)
    height, width = shape[0], shape[1]
    pad = round(image_size * (1 / data.crop_pct - 1))
    share = np.float32(image_size / (image_size + pad))
    side = tf.maximum(1, tf.cast(share * tf.cast(tf.minimum(height, width), tf.float32), tf.int32))
    top, left = (height - side + 1) // 2, (width - side + 1) // 2
    window = tf.cast(image[top : top + side, left : left + side], tf.float32)[None]
    resize = tf.raw_ops.ResizeBicubic if data.resize_method == "bicubic" else tf.raw_ops.ResizeBilinear
    resized = resize(images=window, size=[image_size, image_size], align_corners=False, half_pixel_centers=False)
    return resized[0]


def _resized_center(tf: Any, image: Any, image_size: int, data: DataConfig) -> Any:
    """Like `data.pixels.pillow.resized_center`, but a level or two off: Pillow also rounds between the two axes."""
    sides = tf.shape(image)[:2]
    resized_sides = math.floor(image_size / data.crop_pct) * sides // tf.reduce_min(sides)
    resized = tf.image.resize(image, resized_sides, data.resize_method, antialias=True)
    top, left = tf.unstack(tf.cast(tf.round((resized_sides - image_size) / 2), tf.int32))
    return resized[top : top + image_size, left : left + image_size]


@dataclass(frozen=True)
class _Ops:
    """`walk.Ops` in TensorFlow."""

    tf: Any
    weights: dict[str, Any]

    def normalize(self, images: Any, mean: np.ndarray, std: np.ndarray) -> Any:
        return (self.tf.cast(images, self.tf.float32) - mean) / std

    def conv(self, x: Any, name: str, *, stride: int = 1, relu: bool = False) -> Any:
        kernel = self.weights[f"{name}/kernel"]
        size = kernel.shape[0]
        pads = [(size - 1) // 2, size // 2]
        x = self.tf.nn.conv2d(x, kernel, stride, [[0, 0], pads, pads, [0, 0]])
        if f"{name}/bias" in self.weights:
            x = self.tf.nn.bias_add(x, self.weights[f"{name}/bias"])
        return self.tf.nn.relu(x) if relu else x

    def scale_shift(self, x: Any, name: str) -> Any:
        return self.tf.nn.relu(self._affine(x, name))

    def evonorm_b0(self, x: Any, name: str) -> Any:
        variance = self.tf.math.reduce_variance(x, [1, 2], keepdims=True)
        own = self.weights[f"{name}/v"] * x + self.tf.sqrt(variance + EPSILON)
        return self._affine(x / self.tf.maximum(self.weights[f"{name}/std"], own), name)

    def evonorm_s0(self, x: Any, name: str, groups: int) -> Any:
        height, width, features = x.shape[1:]
        shape = [-1, height, width, groups, features // groups]
        variance = self.tf.math.reduce_variance(self.tf.reshape(x, shape), [1, 2, 4], keepdims=True)
        active = x * self.tf.sigmoid(self.weights[f"{name}/v"] * x)
        divided = self.tf.reshape(active, shape) / self.tf.sqrt(variance + EPSILON)
        return self._affine(self.tf.reshape(divided, [-1, height, width, features]), name)

    def _affine(self, x: Any, name: str) -> Any:
        return x * self.weights[f"{name}/scale"] + self.weights[f"{name}/bias"]

    def max_pool(self, x: Any, pads: Pads) -> Any:
        return self.tf.nn.max_pool2d(x, 3, 2, [[0, 0], pads, pads, [0, 0]])

    def average_pool(self, x: Any, pads: Pads) -> Any:
        del pads  # the same as TensorFlow's SAME
        return self.tf.nn.avg_pool2d(x, 2, 2, "SAME")

    def add(self, x: Any, y: Any, *, relu: bool) -> Any:
        return self.tf.nn.relu(x + y) if relu else x + y

    def gate(self, x: Any, y: Any) -> Any:
        return x * self.tf.sigmoid(y)

    def global_mean(self, x: Any) -> Any:
        return self.tf.reduce_mean(x, [1, 2], keepdims=True)

    def classify(self, x: Any, name: str) -> tuple[Any, Any]:
        flat = x[:, 0, 0]
        logits = self.tf.matmul(flat, self.weights[f"{name}/kernel"]) + self.weights[f"{name}/bias"]
        return logits, self.tf.nn.softmax(logits)
