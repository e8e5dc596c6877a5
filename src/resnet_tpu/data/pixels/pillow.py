"""Images as Pillow reads and resizes them."""

import io
import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from resnet_tpu.data.pixels import jpeg

if TYPE_CHECKING:  # it imports OpenCV, which `prepare` does without
    from resnet_tpu.data.pixels.resize import Method

SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
}
"""The extensions of each format that Pillow may open. Some other formats start programs (EPS) or read other files."""

IMAGE_SUFFIXES = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
"""The extensions of image files, in lower case."""


def open_image(encoded: bytes) -> Image.Image:
    """The first picture in a file, of which only the header has been read.

    Its size is that of the pixels that `load` will give. Raises Image.DecompressionBombError above Pillow's limit,
    ValueError for a JPEG with far too many EXIF segments, and whatever else Pillow raises on damaged files.
    """
    if (segments := jpeg.count_exif(encoded)) > jpeg.MAX_EXIF:
        raise ValueError(f"{segments} segments of EXIF data, more than {jpeg.MAX_EXIF}")
    return Image.open(io.BytesIO(encoded), formats=tuple(SUFFIXES))


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` in mode RGB. Transparency is dropped, and 16 bits are scaled to 8.

    Raises ValueError for pixels that are floats or have more than 16 bits, as nothing says which value is white.
    """
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        raise ValueError("pixels are floats")
    if image.mode.startswith("I"):  # 16 bits: Pillow's own conversion clips instead of scaling
        pixels = np.asarray(image)
        if (largest := pixels.max()) > 0xFFFF:
            raise ValueError("pixels have more than 16 bits")
        scaled = np.empty(pixels.shape, np.uint8)
        for y, row in enumerate(pixels):  # the whole image in a wider type would take a gigabyte
            scaled[y] = np.clip(row >> 8 if largest > 255 else row, 0, 255)
        image = Image.fromarray(scaled)
    image.info.pop("transparency", None)  # Pillow would warn about it
    return image.convert("RGB")


def resized_size(height: int, width: int, image_size: int, crop_pct: float) -> tuple[int, int]:
    """The (height, width) to which `resized_center` resizes an image; the shorter side is `image_size / crop_pct`."""
    shorter = math.floor(image_size / crop_pct)
    if width <= height:
        return int(shorter * height / width), shorter
    return shorter, int(shorter * width / height)


def resized_center(image: np.ndarray, image_size: int, crop_pct: float, method: "Method") -> np.ndarray:
    """`image` uint8 [h, w, 3] as timm and torchvision evaluate it, bit for bit: uint8 [image_size, image_size, 3].

    The whole image is resized with antialiasing, and then its centre is cut out. Sizes and offsets are rounded as in
    torchvision's `Resize` and `CenterCrop`, which timm's evaluation uses (`crop_mode` center).
    """
    rows, columns, _ = image.shape
    height, width = resized_size(rows, columns, image_size, crop_pct)
    left, top = round((width - image_size) / 2), round((height - image_size) / 2)
    resized = Image.fromarray(image).resize((width, height), Image.Resampling[method.upper()])
    return np.asarray(resized.crop((left, top, left + image_size, top + image_size)))
