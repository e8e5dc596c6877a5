"""Turns photos upright, by the orientation in their EXIF metadata."""

import numpy as np
from PIL import Image

UPRIGHT = 1

_TAG = 0x0112


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation, 1 ... 8; 1, upright, if there is none or the metadata are broken."""
    try:
        value = image.getexif().get(_TAG, UPRIGHT)
    except Exception:  # noqa: BLE001  # an image with broken metadata is still usable
        return UPRIGHT
    return int(value) if value in range(1, 9) else UPRIGHT


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The upright form of `pixels`, uint8 [h, w, 3], stored with this orientation: for 5 ... 8, [w, h, 3]."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
