"""TensorFlow Serving's REST bodies: images out of a `:predict` request, its answer, model status and metadata.

After https://www.tensorflow.org/tfx/serving/api_rest. The signature is that of the original's SavedModel: `input`, the
bytes of image files; `classes`, the number of the most probable class; `probabilities`.
"""

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resnet_tpu.serve.refusal import Refusal

INPUT = "input"
SIGNATURES = ("serving_default", "classify")


@dataclass(frozen=True)
class PredictRequest:
    """The image files of a request, and whether its answer goes by rows (`instances`) or by columns (`inputs`)."""

    images: list[bytes]
    by_rows: bool


def parse_request(body: bytes, max_images: int) -> PredictRequest:
    """Reads the body of a `:predict` request. Raises Refusal (400)."""
    # Each image takes at most two of these, and base64 has none of them. A body of millions of empty lists would
    # become twenty times its size in memory.
    if sum(map(body.count, (b"[", b"{", b","))) > 8 * max_images + 64:
        raise Refusal(400, f"Request: got too many values, expected at most {max_images} images.")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"Request: got a body that is no JSON ({error}), expected an object.") from None
    if not isinstance(found, dict):
        raise Refusal(400, "Request: got JSON that is no object, expected one with 'instances' or 'inputs'.")
    signature = found.get("signature_name", "")
    if signature not in ("", *SIGNATURES):
        raise Refusal(400, f"signature_name: got {signature!r:.100}, expected one of {', '.join(SIGNATURES)}.")
    if ("instances" in found) == ("inputs" in found):
        both = "both" if "instances" in found else "neither"
        raise Refusal(400, f"Request: got {both} of the keys 'instances' and 'inputs', expected one.")
    by_rows = "instances" in found
    values = found["instances"] if by_rows else _column(found["inputs"])
    if not isinstance(values, list) or not values:
        raise Refusal(400, f"{'instances' if by_rows else 'inputs'}: got no list of images, expected one or more.")
    if len(values) > max_images:
        raise Refusal(400, f"Request: got {len(values)} images, expected at most {max_images}.")
    return PredictRequest([_image(value, index) for index, value in enumerate(values)], by_rows)


def _column(value: Any) -> Any:
    """The list of images in what is given as `inputs`."""
    return value[INPUT] if isinstance(value, dict) and value.keys() == {INPUT} else value


def _image(value: Any, index: int) -> bytes:
    if isinstance(value, dict) and value.keys() == {INPUT}:
        value = value[INPUT]
    if not (isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)):
        expected = '{"b64": "..."}' + f' or {{"{INPUT}": {{"b64": "..."}}}}'
        raise Refusal(400, f"Image {index}: got something else, expected {expected}, an image file in base64.")
    try:
        return binascii.a2b_base64(value["b64"] + "==")  # white space and missing padding do no harm
    except ValueError as error:
        raise Refusal(400, f"Image {index}: got text that is no base64 ({error}), expected an image file.") from None


def predict_answer(probabilities: Sequence[np.ndarray], *, by_rows: bool) -> bytes:
    """The body of the answer to a `:predict` request. probabilities: [classes] of each image."""
    classes = [int(row.argmax()) for row in probabilities]
    values = [row.tolist() for row in probabilities]
    if by_rows:
        rows = [{"classes": number, "probabilities": row} for number, row in zip(classes, values, strict=True)]
        return to_json({"predictions": rows})
    return to_json({"outputs": {"classes": classes, "probabilities": values}})


def to_json(value: Any) -> bytes:
    """JSON in UTF-8, without spaces. Half a surrogate pair, which UTF-8 has not, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def model_status(version: int) -> dict[str, Any]:
    """The answer to `GET /v1/models/NAME`: this version is served."""
    fine = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": fine}]}


def model_metadata(name: str, version: int, num_classes: int) -> dict[str, Any]:
    """The answer to `GET /v1/models/NAME/metadata`: the signatures."""
    signature = {
        "inputs": {INPUT: _tensor(INPUT, "DT_STRING", -1)},
        "outputs": {
            "classes": _tensor("classes", "DT_INT64", -1),
            "probabilities": _tensor("probabilities", "DT_FLOAT", -1, num_classes),
        },
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {
            "signature_def": {
                "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                "signature_def": dict.fromkeys(SIGNATURES, signature),
            }
        },
    }


def _tensor(name: str, dtype: str, *sizes: int) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in sizes]
    return {"dtype": dtype, "tensor_shape": {"dim": dimensions, "unknown_rank": False}, "name": f"{name}:0"}
