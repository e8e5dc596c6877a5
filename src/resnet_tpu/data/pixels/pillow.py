"""Images of the formats besides JPEG, as Pillow reads them."""

import io

import numpy as np
from PIL import Image

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
"""What Pillow may be given. Of the others, some start programs (EPS) or read what else lies around."""


def open_image(encoded: bytes) -> Image.Image:
    """The first picture in a file, of which only the header has been read.

    Its size is that of the pixels which `load` will make. Raises Image.DecompressionBombError above Pillow's bound, and
    whatever else damage makes Pillow stumble over.
    """
    return Image.open(io.BytesIO(encoded), formats=FORMATS)


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` in mode RGB. Transparency is dropped, and 16 bits are scaled to 8."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits: Pillow's own conversion clips instead of scaling
        pixels = np.asarray(image).astype(np.int64)
        image = Image.fromarray(np.clip(pixels >> 8 if pixels.max() > 255 else pixels, 0, 255).astype(np.uint8))
    image.info.pop("transparency", None)  # Pillow would warn of it
    return image.convert("RGB")
