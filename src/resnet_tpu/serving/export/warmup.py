"""Writes the requests with which TensorFlow Serving warms up a SavedModel before it answers clients."""

from collections.abc import Sequence

import cv2
import numpy as np

from resnet_tpu.checkpoints.tf1_table import make_varint
from resnet_tpu.data.records.tfrecord import framed

REQUESTS = "assets.extra/tf_serving_warmup_requests"
"""The path below the SavedModel where TensorFlow Serving looks for them."""

_PER_SIZE = 8  # as many as the original writes

# field numbers of tensorflow.serving.PredictionLog and of the messages in it
_PREDICT_LOG, _REQUEST = 6, 1
_MODEL_SPEC, _INPUTS = 1, 2
_NAME, _SIGNATURE = 1, 3
_KEY, _VALUE = 1, 2
_DTYPE, _SHAPE, _STRING_VAL, _DIM, _SIZE = 1, 2, 8, 2, 1
_DT_STRING = 7


def warmup_requests(model_name: str, batch_sizes: Sequence[int], image_size: int) -> bytes:
    """A TFRecord file of serialized PredictionLogs: for each batch size eight requests of one random JPEG repeated."""
    rng = np.random.default_rng(0)
    records: list[bytes] = []
    for size in batch_sizes:
        for _ in range(_PER_SIZE):
            _, jpeg = cv2.imencode(".jpg", rng.integers(0, 256, (image_size, image_size, 3), np.uint8))
            records += framed(_prediction_log(model_name, [jpeg.tobytes()] * size))
    return b"".join(records)


def _prediction_log(model_name: str, images: Sequence[bytes]) -> bytes:
    tensor = b"".join(
        [
            _number(_DTYPE, _DT_STRING),
            _bytes(_SHAPE, _bytes(_DIM, _number(_SIZE, len(images)))),
            *(_bytes(_STRING_VAL, image) for image in images),
        ]
    )
    spec = _bytes(_NAME, model_name.encode()) + _bytes(_SIGNATURE, b"serving_default")
    request = _bytes(_MODEL_SPEC, spec) + _bytes(_INPUTS, _bytes(_KEY, b"input") + _bytes(_VALUE, tensor))
    return _bytes(_PREDICT_LOG, _bytes(_REQUEST, request))


def _bytes(field: int, value: bytes) -> bytes:
    """A field of bytes, text or a message in protobuf's wire format."""
    return make_varint(field << 3 | 2) + make_varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return make_varint(field << 3) + make_varint(value)
