"""From the bytes that a client sent to what the network sees, within bounds that are checked before decoding."""

import io
import struct
import warnings

import cv2
import numpy as np
from PIL import Image

from resnet_tpu.data.pixels import jpeg
from resnet_tpu.data.pixels.crop import CROP_PCT
from resnet_tpu.data.pixels.decode import PILLOW_FORMATS, DecodeError, eval_image
from resnet_tpu.data.pixels.resize import Method
from resnet_tpu.serve.refusal import Refusal

MAX_SCANS = 200
"""Passes over a progressive JPEG. Real ones have about ten; each takes the time of all pixels."""

_JPEG, _SCAN = b"\xff\xd8", b"\xff\xda"


def decode(
    encoded: bytes, image_size: int, resize_method: Method, max_pixels: int, crop_pct: float = CROP_PCT
) -> np.ndarray:
    """The centre of the image as uint8 [image_size, image_size, 3], exactly as `resnet-tpu predict` sees a file.

    Raises Refusal: 400 for what is no image, 413 for one of more than `max_pixels`.
    """
    _check_size(encoded, max_pixels)
    out = np.empty((image_size, image_size, 3), np.uint8)
    try:
        eval_image(encoded, image_size, out, honour_exif=True, resize_method=resize_method, crop_pct=crop_pct)
    except DecodeError as error:
        raise _refusal(error) from None
    return out


def prepare() -> None:
    """Loads what decoding needs, so that the first request does not wait for it, and keeps it off stderr.

    Libraries warn of strange files. What a client is told is enough; it is not to fill the server's log.
    """
    warnings.filterwarnings("ignore", module="PIL")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    for suffix in (".jpg", ".png"):
        _, encoded = cv2.imencode(suffix, np.zeros((16, 16, 3), np.uint8))
        decode(encoded.tobytes(), 8, "bicubic", 256)


def _check_size(encoded: bytes, max_pixels: int) -> None:
    """Raises Refusal for an image that would take too much memory or time, by its header."""
    header = jpeg.read_header(encoded)
    height, width = (header.height, header.width) if header else (0, 0)
    if not (height and width):
        try:
            with Image.open(io.BytesIO(encoded), formats=PILLOW_FORMATS) as image:
                height, width = image.height, image.width
        except Image.DecompressionBombError:
            raise Refusal(413, f"Image: got far too many pixels, expected at most {max_pixels}.") from None
        except (OSError, ValueError, SyntaxError, struct.error):
            raise _refusal(DecodeError.because(f"{len(encoded)} bytes that are no known image")) from None
    if height * width > max_pixels:
        raise Refusal(413, f"Image: got {width} x {height} pixels, expected at most {max_pixels} pixels.")
    if encoded.startswith(_JPEG) and (scans := encoded.count(_SCAN)) > MAX_SCANS:
        raise Refusal(413, f"Image: got a JPEG of {scans} scans, expected at most {MAX_SCANS}.")


def _refusal(error: DecodeError) -> Refusal:
    return Refusal(400, f"Image: got {error.got}, expected {error.expected}.")
