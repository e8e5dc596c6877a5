"""Images as Pillow reads and resizes them."""

import io
import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:  # it brings OpenCV, which `prepare` does without
    from resnet_tpu.data.pixels.resize import Method

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
"""What Pillow may be given. Of the others, some start programs (EPS) or read what else lies around."""


def open_image(encoded: bytes) -> Image.Image:
    """The first picture in a file, of which only the header has been read.

    Its size is that of the pixels which `load` will make. Raises Image.DecompressionBombError above Pillow's bound, and
    whatever else damage makes Pillow stumble over.
    """
    return Image.open(io.BytesIO(encoded), formats=FORMATS)


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` in mode RGB. Transparency is dropped, and 16 bits are scaled to 8.

    Raises ValueError for pixels that are floats or have more than 16 bits: nothing says what is white.
    """
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        raise ValueError("pixels are floats")
    if image.mode.startswith("I"):  # 16 bits: Pillow's own conversion clips instead of scaling
        pixels = np.asarray(image).astype(np.int64)
        if pixels.max() > 0xFFFF:
            raise ValueError("pixels have more than 16 bits")
        image = Image.fromarray(np.clip(pixels >> 8 if pixels.max() > 255 else pixels, 0, 255).astype(np.uint8))
    image.info.pop("transparency", None)  # Pillow would warn of it
    return image.convert("RGB")


def resized_size(height: int, width: int, image_size: int, crop_pct: float) -> tuple[int, int]:
    """The (height, width) that `resized_center` makes of an image; its shorter side is `image_size / crop_pct`."""
    shorter = math.floor(image_size / crop_pct)
    if width <= height:
        return int(shorter * height / width), shorter
    return shorter, int(shorter * width / height)


def resized_center(image: np.ndarray, image_size: int, crop_pct: float, method: "Method") -> np.ndarray:
    """What timm and torchvision evaluate of `image` uint8 [h, w, 3]: uint8 [image_size, image_size, 3], the same bits.

    The whole image is resized, antialiased, and then its centre cut out. Sizes and offsets are rounded as by
    torchvision's `Resize` and `CenterCrop`, of which timm's evaluation is made (`crop_mode` center).
    """
    rows, columns, _ = image.shape
    height, width = resized_size(rows, columns, image_size, crop_pct)
    left, top = round((width - image_size) / 2), round((height - image_size) / 2)
    resized = Image.fromarray(image).resize((width, height), Image.Resampling[method.upper()])
    return np.asarray(resized.crop((left, top, left + image_size, top + image_size)))
