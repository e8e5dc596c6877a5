"""Bodies of TensorFlow Serving's REST API: `:predict` requests and their answers, model status and metadata.

Follows https://www.tensorflow.org/tfx/serving/api_rest. The signatures are those of the SavedModel. The original's
takes `input`, the bytes of image files, and returns `classes`, the number of the most probable class, and
`probabilities`. The signature `pixels` takes `images`, uint8 [s, s, 3], and returns `logits` and `probabilities`.
"""

import binascii
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import Response

from resnet_tpu.serving.export.classifier import softmax
from resnet_tpu.serving.server.json_answer import json_response
from resnet_tpu.serving.server.json_arrays import holds_arrays, parse_image, parse_images, take_arrays
from resnet_tpu.serving.server.refusal import Refusal

FILES, PIXELS = ("serving_default", "classify"), "pixels"
_INPUT, _IMAGES = "input", "images"

_BASE64 = f"{string.ascii_letters}{string.digits}+/={string.whitespace}".encode()


@dataclass(frozen=True)
class PredictRequest:
    """A parsed `:predict` request.

    images: files, or pixels uint8 [s, s, 3]. by_rows: whether the answer is in rows (for `instances`) or in columns
    (for `inputs`).
    """

    images: Sequence[bytes] | Sequence[np.ndarray]
    are_pixels: bool
    by_rows: bool


def parse_request(body: bytes, max_images: int, image_size: int) -> PredictRequest:
    """Reads the body of a `:predict` request. Raises Refusal (400)."""
    max_values = 8 * max_images + 64
    body, arrays = take_arrays(body, max_values) if PIXELS.encode() in body else (body, {})
    # An image needs at most two of these characters, and base64 contains none. A body of millions of empty lists would
    # take twenty times its size in memory.
    if sum(map(body.count, (b"[", b"{", b","))) > max_values:
        if not arrays and holds_arrays(body):
            expected = f'image files in base64; pixels need "signature_name": "{PIXELS}"'
            raise Refusal(400, f"Request: got arrays of numbers, expected {expected}.")
        raise Refusal(400, f"Request: got too many values, expected at most {max_images} images.")
    found = _parse_object(body)
    by_rows, are_pixels = "instances" in found, found.get("signature_name") == PIXELS
    name = _IMAGES if are_pixels else _INPUT
    values = found["instances"] if by_rows else _unnamed(found["inputs"], name)
    if are_pixels and isinstance(values, str):
        return PredictRequest(parse_images(_array(values, arrays), image_size, max_images), are_pixels, by_rows)
    if not isinstance(values, list) or not values:
        raise Refusal(400, f"{'instances' if by_rows else 'inputs'}: got no list of images, expected one or more.")
    if len(values) > max_images:
        raise Refusal(400, f"Request: got {len(values)} images, expected at most {max_images}.")
    given = [(_unnamed(value, name), index) for index, value in enumerate(values)]
    if are_pixels:
        pixels = [parse_image(_array(value, arrays), image_size, index) for value, index in given]
        return PredictRequest(pixels, are_pixels, by_rows)
    return PredictRequest([_file(value, index) for value, index in given], are_pixels, by_rows)


def _parse_object(body: bytes) -> dict[str, Any]:
    """Parses a body as an object, and checks that it has a known signature and one of the keys for images."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"Request: got a body that is not JSON ({error}), expected a JSON object.") from None
    if not isinstance(found, dict):
        raise Refusal(400, "Request: got JSON that is not an object, expected one with 'instances' or 'inputs'.")
    signature = found.get("signature_name")
    if signature not in (None, "", *FILES, PIXELS):
        expected = ", ".join((*FILES, PIXELS))
        raise Refusal(400, f"signature_name: got {signature!r:.100}, expected one of {expected}.")
    if ("instances" in found) == ("inputs" in found):
        both = "both" if "instances" in found else "neither"
        raise Refusal(400, f"Request: got {both} of the keys 'instances' and 'inputs', expected one.")
    return found


def _unnamed(value: Any, name: str) -> Any:
    """The value, which may be wrapped in an object under this name."""
    return value[name] if isinstance(value, dict) and value.keys() == {name} else value


def _array(value: Any, arrays: Mapping[str, bytes]) -> bytes:
    """The text of the array that `take_arrays` replaced by this name."""
    if not (isinstance(value, str) and value in arrays):
        raise Refusal(400, f"{_IMAGES}: got something else, expected arrays of pixels, for signature {PIXELS!r}.")
    return arrays[value]


def _file(value: Any, index: int) -> bytes:
    if not (isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)):
        expected = '{"b64": "..."}' + f' or {{"{_INPUT}": {{"b64": "..."}}}}'
        raise Refusal(400, f"Image {index}: got something else, expected {expected}, an image file in base64.")
    text = value["b64"].encode(errors="backslashreplace")
    if other := text.translate(None, _BASE64):  # `a2b_base64` would skip it
        got = f"text that is not base64 ({other[:4].decode(errors='replace')[0]!r} in it)"
        raise Refusal(400, f"Image {index}: got {got}, expected the standard alphabet, and no 'data:' before it.")
    try:
        return binascii.a2b_base64(text + b"==")  # missing padding does no harm
    except ValueError as error:
        raise Refusal(400, f"Image {index}: got text that is not base64 ({error}), expected an image file.") from None


def predict_answer(logits: np.ndarray, request: PredictRequest) -> Response:
    """The answer to a `:predict` request. logits: [n, classes] of its images."""
    first = {"logits": logits} if request.are_pixels else {"classes": logits.argmax(-1)}
    columns = {name: values.tolist() for name, values in {**first, "probabilities": softmax(logits)}.items()}
    if not request.by_rows:
        return json_response({"outputs": columns})
    return json_response(
        {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
    )


def model_status(version: int) -> dict[str, Any]:
    """The answer to `GET /v1/models/NAME`: that this version is served."""
    fine = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": fine}]}


def model_metadata(name: str, version: int, num_classes: int, image_size: int) -> dict[str, Any]:
    """The answer to `GET /v1/models/NAME/metadata`: the signatures."""
    probabilities = _tensor("probabilities", "DT_FLOAT", -1, num_classes)
    files = _signature(
        {_INPUT: _tensor(_INPUT, "DT_STRING", -1)},
        {"classes": _tensor("classes", "DT_INT64", -1), "probabilities": probabilities},
    )
    pixels = _signature(
        {_IMAGES: _tensor(_IMAGES, "DT_UINT8", -1, image_size, image_size, 3)},
        {"logits": _tensor("logits", "DT_FLOAT", -1, num_classes), "probabilities": probabilities},
    )
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {
            "signature_def": {
                "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                "signature_def": {**dict.fromkeys(FILES, files), PIXELS: pixels},
            }
        },
    }


def _signature(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict"}


def _tensor(name: str, dtype: str, *sizes: int) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in sizes]
    return {"dtype": dtype, "tensor_shape": {"dim": dimensions, "unknown_rank": False}, "name": f"{name}:0"}
