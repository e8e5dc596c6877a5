"""Parses arrays of pixels in JSON, one image at a time.

A body of the largest size holds ten million numbers. Parsing them into Python objects all at once would take a
gigabyte and hold the interpreter's lock for seconds, while no request is answered.
"""

import itertools
import json
import re

import numpy as np

from resnet_tpu.serving.server.refusal import Refusal

_RUN = re.compile(rb"\[[\d\s,\[\].eE+-]*+")
_DEEP = re.compile(rb"\[\s*\[\s*\[")
_BETWEEN_IMAGES = re.compile(rb"\]\s*\]\s*\](\s*,\s*)\[\s*\[\s*\[")
_NOT_BRACKETS = b"0123456789 \t\r\n"
_OF_OTHER_NUMBERS = b"+-.eE"


def take_arrays(body: bytes, max_lists: int) -> tuple[bytes, dict[str, bytes]]:
    """The body with a name in place of each array of three or more dimensions, and the text of the arrays by name.

    Arrays beyond the first `max_lists` stay in the body.
    """
    arrays: dict[str, bytes] = {}
    rest, at = [], 0
    for run in itertools.islice(_RUN.finditer(body), max_lists):
        end = body.rfind(b"]", *run.span()) + 1  # the rest belongs to the text around the array
        if end and _DEEP.match(body, run.start(), end):
            name = f"array {len(arrays)}"
            arrays[name] = body[run.start() : end]
            rest += [body[at : run.start()], f'"{name}"'.encode()]
            at = end
    return b"".join([*rest, body[at:]]), arrays


def holds_arrays(body: bytes) -> bool:
    """Whether the body contains an array of three or more dimensions."""
    return bool(_DEEP.search(body))


def parse_images(array: bytes, image_size: int, max_images: int) -> list[np.ndarray]:
    """The images, uint8 [s, s, 3] each, in the text of an array [n, s, s, 3]. Raises Refusal (400)."""
    gaps = [gap.span(1) for gap in itertools.islice(_BETWEEN_IMAGES.finditer(array), max_images)]
    if len(gaps) == max_images:
        raise Refusal(400, f"Request: got more than {max_images} images, expected at most {max_images}.")
    begins = (1, *(end for _, end in gaps))
    ends = (*(begin for begin, _ in gaps), len(array) - 1)
    spans = enumerate(zip(begins, ends, strict=True))
    return [parse_image(array[begin:end], image_size, index) for index, (begin, end) in spans]


def parse_image(text: bytes, image_size: int, index: int) -> np.ndarray:
    """The image, uint8 [s, s, 3], in the text of an array. index: its number in messages. Raises Refusal (400)."""
    # the brackets alone determine the shape of the array
    if text.translate(None, _NOT_BRACKETS) == _brackets(image_size):
        try:
            image = np.array(json.loads(text))
        except ValueError:
            image = np.array([])
        if image.dtype.kind in "iu" and image.min() >= 0 and image.max() <= 255:
            return image.astype(np.uint8)
    is_shaped = text.translate(None, _NOT_BRACKETS + _OF_OTHER_NUMBERS) == _brackets(image_size)
    got = "other values" if is_shaped else "another shape"
    expected = f"[{image_size}, {image_size}, 3] whole numbers from 0 to 255"
    raise Refusal(400, f"Image {index}: got {got}, expected an array of {expected}.")


def _brackets(image_size: int) -> bytes:
    """The text of an image without its numbers."""
    row = b"[" + b",".join([b"[,,]"] * image_size) + b"]"
    return b"[" + b",".join([row] * image_size) + b"]"
