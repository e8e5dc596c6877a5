"""Decodes the bytes that a client sent into the network's input."""

import io

import numpy as np
from PIL import Image

from resnet_tpu.data.pixels.decode import DecodeError, TooLargeError
from resnet_tpu.data.pixels.preprocess import eval_image
from resnet_tpu.options.config import DataConfig
from resnet_tpu.serving.server.refusal import Refusal


def network_input(encoded: bytes, data: DataConfig, max_pixels: int) -> np.ndarray:
    """The centre of the image, uint8 [image_size, image_size, 3], exactly as `resnet-tpu predict` crops a file.

    data: the options with which the network is evaluated. Raises Refusal: 400 for anything but an image, 413 for an
    image of more than `max_pixels`.
    """
    out = np.empty((data.image_size, data.image_size, 3), np.uint8)
    try:
        eval_image(encoded, data.image_size, out, honour_exif=True, max_pixels=max_pixels, **data.eval_crop)
    except DecodeError as error:
        status = 413 if isinstance(error, TooLargeError) else 400
        raise Refusal(status, f"Image: got {error.got}, expected {error.expected}.") from None
    return out


def warm_up_decoders() -> None:
    """Loads the decoders, so that the first request does not wait for them."""
    for kind in ("JPEG", "PNG"):
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, kind)
        network_input(file.getvalue(), DataConfig(image_size=8), 256)
