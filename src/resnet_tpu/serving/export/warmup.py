"""Writes the requests with which TensorFlow Serving warms up a SavedModel before it answers clients."""

from collections.abc import Sequence

import cv2
import numpy as np

from resnet_tpu.data.records.messages import message_classes
from resnet_tpu.data.records.tfrecord import framed

REQUESTS = "assets.extra/tf_serving_warmup_requests"
"""The path below the SavedModel where TensorFlow Serving looks for them."""

_PER_SIZE = 8  # as many as the original writes

# the fields that a request needs, of messages of the package tensorflow.serving, and of TensorProto
_SCHEMA = """
name: "resnet_tpu/prediction_log.proto" package: "warmup" syntax: "proto3"
message_type { name: "Dim" field { name: "size" number: 1 type: TYPE_INT64 } }
message_type { name: "Shape" field { name: "dim" number: 2 label: LABEL_REPEATED type_name: ".warmup.Dim" } }
message_type {
  name: "Tensor"
  field { name: "dtype" number: 1 type: TYPE_INT32 }
  field { name: "tensor_shape" number: 2 type_name: ".warmup.Shape" }
  field { name: "string_val" number: 8 label: LABEL_REPEATED type: TYPE_BYTES }
}
message_type {
  name: "ModelSpec"
  field { name: "name" number: 1 type: TYPE_STRING }
  field { name: "signature_name" number: 3 type: TYPE_STRING }
}
message_type {
  name: "PredictRequest"
  field { name: "model_spec" number: 1 type_name: ".warmup.ModelSpec" }
  field { name: "inputs" number: 2 label: LABEL_REPEATED type_name: ".warmup.PredictRequest.InputsEntry" }
  nested_type {
    name: "InputsEntry"
    options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".warmup.Tensor" }
  }
}
message_type { name: "PredictLog" field { name: "request" number: 1 type_name: ".warmup.PredictRequest" } }
message_type { name: "PredictionLog" field { name: "predict_log" number: 6 type_name: ".warmup.PredictLog" } }
"""

_PredictionLog = message_classes(_SCHEMA)["PredictionLog"]
_DT_STRING = 7  # TensorFlow's number of the type


def warmup_requests(model_name: str, batch_sizes: Sequence[int], image_size: int) -> bytes:
    """A TFRecord file of serialised PredictionLogs: for each batch size eight requests of one random JPEG repeated."""
    rng = np.random.default_rng(0)
    records: list[bytes] = []
    for size in batch_sizes:
        for _ in range(_PER_SIZE):
            _, jpeg = cv2.imencode(".jpg", rng.integers(0, 256, (image_size, image_size, 3), np.uint8))
            records += framed(_prediction_log(model_name, [jpeg.tobytes()] * size))
    return b"".join(records)


def _prediction_log(model_name: str, images: Sequence[bytes]) -> bytes:
    log = _PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = model_name, "serving_default"
    tensor = request.inputs["input"]
    tensor.dtype = _DT_STRING
    tensor.tensor_shape.dim.add(size=len(images))
    tensor.string_val.extend(images)
    return log.SerializeToString()
