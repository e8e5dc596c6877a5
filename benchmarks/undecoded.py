"""`train_image` without its decoder, to measure the rest of the input pipeline.

A module of its own, because worker processes import it.
"""

import numpy as np

from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.crop import MIN_AREA, train_window


def undecoded(
    encoded: bytes,
    image_size: int,
    rng: np.random.Generator,
    out: np.ndarray,
    *,
    min_crop_area: float = MIN_AREA,
    resize_method: str = "bicubic",
    **_: object,
) -> None:
    """Does everything that `train_image` does for an ordinary JPEG except decode and resize; `out` stays as it was.

    The library in C reads the size of the image; without it, no window is drawn.
    """
    library = native.load()
    mirrored = bool(rng.random() < 0.5)
    facts = library.read_facts(encoded) if library else None
    if library and facts:
        window = train_window(rng, facts.height, facts.width, image_size, min_crop_area)
        library.resize_jpeg(b"", window, out, mirrored=mirrored, method=resize_method)  # refuses an empty file
