"""From an image to what the network sees of it: a window, resized, for training or evaluation.

The pixels are those of the original program (TensorFlow's decoder and its kernels for resizing) with these differences:

* The original crops for evaluation inside the JPEG decoder, which has no neighbour to interpolate colour with at the
  window's right edge: with subsampled colour, that column differs by a few levels. Here both training and evaluation
  crop the decoded image, as the original does for training.
* Results are rounded and clipped to uint8; the original keeps the fractions, and the overshoot of the bicubic filter.
  Where it augments, it also clips, and truncates the fractions, so half of its levels are one lower than here.
* A greyscale image whose random window is the whole image gets the centre crop, as colour images do.
* Evaluation as in timm and torchvision gives Pillow's pixels instead, to the last bit.
* Files that the original cannot read, or reads otherwise: see `decode`.
"""

import functools
from collections.abc import Callable

import numpy as np

from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.crop import CROP_PCT, MIN_AREA, Window, eval_window, train_window
from resnet_tpu.data.pixels.decode import (
    MAX_PIXELS,
    Preprocessing,
    check_pixels,
    decode,
    decode_window,
    stored_orientation,
)
from resnet_tpu.data.pixels.exif import UPRIGHT
from resnet_tpu.data.pixels.pillow import resized_center, resized_size
from resnet_tpu.data.pixels.resize import Method, resize_to_uint8


def train_image(
    encoded: bytes | np.ndarray,
    image_size: int,
    rng: np.random.Generator,
    out: np.ndarray,
    *,
    honour_exif: bool = False,
    min_crop_area: float = MIN_AREA,
    crop_padding: int | None = None,
    random_flip: bool = True,
    resize_method: Method = "bicubic",
) -> None:
    """Fills `out` uint8 [image_size, image_size, 3] with a random window of the image.

    encoded: a file, or its pixels as `decode` returns them. The window covers at least `min_crop_area` of the image, or
    with `crop_padding` is placed by `_shift`; with `random_flip`, it is mirrored half of the time. Raises DecodeError.
    """
    mirrored = bool(rng.random() < 0.5) and random_flip

    def choose(height: int, width: int) -> Window:
        if crop_padding is not None:
            return eval_window(height, width, image_size, crop_pct=1)
        return train_window(rng, height, width, image_size, min_crop_area)

    _fill(encoded, choose, out, honour_exif=honour_exif, mirrored=mirrored, method=resize_method)
    if crop_padding is not None:
        _shift(out, rng, crop_padding)


TrainImage = Callable[..., None]
"""A function with the parameters of `train_image`."""


def eval_image(
    encoded: bytes | np.ndarray,
    image_size: int,
    out: np.ndarray,
    *,
    honour_exif: bool = False,
    resize_method: Method = "bicubic",
    crop_pct: float = CROP_PCT,
    preprocessing: Preprocessing = "tf",
    max_pixels: int = MAX_PIXELS,
) -> None:
    """Fills `out` uint8 [image_size, image_size, 3] with the centre of the image: `eval_window`, or `resized_center`.

    encoded: a file, or its pixels as `decode` returns them. Raises DecodeError; TooLargeError for a file of more than
    `max_pixels`, or one so elongated that it would have more when Pillow resizes it.
    """
    if preprocessing == "pil":
        image = encoded
        if isinstance(image, bytes):
            image = decode(image, honour_exif=honour_exif, preprocessing=preprocessing, max_pixels=max_pixels)
        rows, columns, _ = image.shape
        height, width = resized_size(rows, columns, image_size, crop_pct)
        check_pixels(height, width, max_pixels, " when resized")
        out[...] = resized_center(image, image_size, crop_pct, resize_method)
        return

    def choose(height: int, width: int) -> Window:
        return eval_window(height, width, image_size, crop_pct)

    _fill(encoded, choose, out, honour_exif=honour_exif, mirrored=False, method=resize_method, max_pixels=max_pixels)


def _fill(
    encoded: bytes | np.ndarray,
    choose: Callable[[int, int], Window],
    out: np.ndarray,
    *,
    honour_exif: bool,
    mirrored: bool,
    method: Method,
    max_pixels: int = MAX_PIXELS,
) -> None:
    """Fills `out` with the window that `choose` picks from height and width, resized."""
    if isinstance(encoded, np.ndarray):
        image = choose(*encoded.shape[:2]).cut(encoded)
    else:
        library = native.load()
        facts = library.read_facts(encoded) if library else None
        choose = functools.cache(choose)  # asked again for the same size, it must not draw new random numbers
        if library and facts and not (honour_exif and facts.may_be_turned and stored_orientation(encoded) != UPRIGHT):
            check_pixels(facts.height, facts.width, max_pixels)
            window = choose(facts.height, facts.width)
            if library.resize_jpeg(encoded, window, out, mirrored=mirrored, method=method):
                return
        image = decode_window(encoded, choose, honour_exif=honour_exif, max_pixels=max_pixels)
    resize_to_uint8(image, out, mirrored=mirrored, method=method)


def _shift(image: np.ndarray, rng: np.random.Generator, padding: int) -> None:
    """Replaces `image` [s, s, 3] by a random window of the same size, cut from it after adding a black `padding`.

    All offsets from 0 to 2 `padding`, along either axis, are equally likely. Source: arXiv:1512.03385, section 4.2.
    """
    size = len(image)
    y, x = rng.integers(2 * padding + 1, size=2)
    image[...] = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])[y : y + size, x : x + size]
