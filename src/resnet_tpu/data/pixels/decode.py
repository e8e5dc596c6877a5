"""From the bytes of an image file to the pixels the network sees.

The pixels are those of the original program (TensorFlow's decoder and its kernels for resizing) with these differences:

* The original crops for evaluation inside the JPEG decoder, which has no neighbour to interpolate colour with at the
  window's right edge: with subsampled colour, that column differs by a few levels. Here both training and evaluation
  crop the decoded image, as the original does for training.
* Results are rounded and clipped to uint8; the original keeps the fractions, and the overshoot of the bicubic filter.
  Where it augments, it clips too, and truncates the fractions: there, half of the levels are one lower than here.
* A greyscale image whose random window is the whole image gets the centre crop, as colour images do.
* JPEG files with stray bytes in the header or unusual colour sampling go through Pillow, whose inverse transform
  differs by a level or two.
* Evaluation in the way of timm and torchvision gives Pillow's pixels instead, to the last bit.
* PNG, BMP, GIF (first frame), WebP and TIFF are accepted too; transparency is dropped.

Colour profiles inside the files are ignored, as in the original.
"""

import functools
from collections.abc import Callable
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from resnet_tpu.data.pixels import jpeg, native
from resnet_tpu.data.pixels.crop import CROP_PCT, MIN_AREA, Window, eval_window, train_window
from resnet_tpu.data.pixels.exif import UPRIGHT, orientation_of, turn
from resnet_tpu.data.pixels.pillow import open_image, resized_center, resized_size, to_rgb
from resnet_tpu.data.pixels.resize import Method, resize_to_uint8
from resnet_tpu.errors import UserError, first_line

_FORMATS = "a whole JPEG, PNG, BMP, GIF, WebP or TIFF image"
OR_SKIP = "or pass --skip_bad_records to go on without it"
"""The end of the advice on an image that cannot be read. It names an option of commands."""

_DO = f"Replace or remove it, {OR_SKIP}."

MAX_PIXELS = 178_956_970
"""The most pixels that an image may have, unless another limit is given: 0.5 GB. It is Pillow's own limit."""

_MOST_ROWS = 1_000_000  # decoders keep some 30 bytes for each row beside its pixels

Preprocessing = Literal["tf", "pil"]
"""Whose pixels to compute: the original program's, or Pillow's, on which PyTorch's networks were trained."""


class DecodeError(UserError):
    """An image that cannot be decoded."""

    @classmethod
    def because(cls, got: str) -> "DecodeError":
        """The error for bytes that are `got` instead of an image."""
        return cls("Image", got, _FORMATS, _DO)


class TooLargeError(DecodeError):
    """An image that, by its header, would take too much memory or time; it has not been decoded."""


def decode(
    encoded: bytes, *, honour_exif: bool = False, preprocessing: Preprocessing = "tf", max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """The image as uint8 [h, w, 3] RGB; turned upright by its EXIF orientation when `honour_exif`.

    Raises DecodeError; TooLargeError for one of more than `max_pixels` or 1,000,000 rows.
    """
    header = jpeg.read_header(encoded) if preprocessing == "tf" else None
    if not header:
        return _decode_other(encoded, honour_exif=honour_exif, max_pixels=max_pixels)
    _check_work(encoded, header, max_pixels)
    image = _decode_jpeg(encoded, header)
    return turn(image, _orientation(encoded)) if honour_exif else image


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


def _shift(image: np.ndarray, rng: np.random.Generator, padding: int) -> None:
    """Replaces `image` [s, s, 3] by a random window of the same size, cut from it after adding a black `padding`.

    All offsets from 0 to 2 `padding`, along either axis, are equally likely. Source: arXiv:1512.03385, section 4.2.
    """
    size = len(image)
    y, x = rng.integers(2 * padding + 1, size=2)
    image[...] = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])[y : y + size, x : x + size]


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
        _check_pixels(height, width, max_pixels, " when resized")
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
        image = _crop(encoded, choose(*encoded.shape[:2]))
    else:
        library = native.load()
        facts = library.read_facts(encoded) if library else None
        choose = functools.cache(choose)  # asked again for the same size, it must not draw new random numbers
        if library and facts and not (honour_exif and facts.may_be_turned and _orientation(encoded) != UPRIGHT):
            _check_pixels(facts.height, facts.width, max_pixels)
            window = choose(facts.height, facts.width)
            if library.resize_jpeg(encoded, window, out, mirrored=mirrored, method=method):
                return
        image = _decode_window(encoded, choose, honour_exif, max_pixels)
    resize_to_uint8(image, out, mirrored=mirrored, method=method)


def _decode_window(
    encoded: bytes, choose: Callable[[int, int], Window], honour_exif: bool, max_pixels: int
) -> np.ndarray:
    """The window of the decoded image that `choose` picks from height and width."""
    header = jpeg.read_header(encoded)
    if header and not (honour_exif and _orientation(encoded) != UPRIGHT):
        _check_work(encoded, header, max_pixels)
        window = choose(header.height, header.width)
        return _crop(_decode_jpeg(encoded, header, window.y + window.h), window)
    image = decode(encoded, honour_exif=honour_exif, max_pixels=max_pixels)
    return _crop(image, choose(*image.shape[:2]))


def _crop(image: np.ndarray, window: Window) -> np.ndarray:
    y, x, h, w = window
    return image[y : y + h, x : x + w]


def _check_work(encoded: bytes, header: jpeg.Header | None, max_pixels: int) -> None:
    """Raises TooLargeError for a JPEG of too many pixels or scans."""
    if header:
        _check_pixels(header.height, header.width, max_pixels)
    if scans := jpeg.too_many_scans(encoded, header):
        raise TooLargeError("Image", f"a JPEG of {scans} scans", f"at most {jpeg.MAX_SCANS}", _DO)


def _check_pixels(height: int, width: int, max_pixels: int, when: str = "") -> None:
    if height * width > max_pixels:
        raise TooLargeError("Image", f"{width} x {height} pixels{when}", f"at most {max_pixels} pixels", _DO)
    if height > _MOST_ROWS:
        raise TooLargeError("Image", f"{height} rows{when}", f"at most {_MOST_ROWS}", _DO)


def _decode_jpeg(encoded: bytes, header: jpeg.Header, rows: int | None = None) -> np.ndarray:
    """All pixels of a JPEG, or at least `rows` rows from the top."""
    if not header.is_whole:
        raise DecodeError.because(f"a JPEG that breaks off after {len(encoded)} bytes")
    try:
        return jpeg.decode(encoded, header, rows)
    except ValueError:
        size = header.height, header.width
        return _decode_other(encoded, honour_exif=False, max_pixels=MAX_PIXELS, size=size)


def _decode_other(
    encoded: bytes, *, honour_exif: bool, max_pixels: int, size: tuple[int, int] | None = None
) -> np.ndarray:
    """The image as Pillow decodes it; it must be of `size`, (height, width), if that is known."""
    try:
        if encoded.startswith(jpeg.START):
            _check_work(encoded, None, max_pixels)
        with open_image(encoded) as image:
            size = size or (image.height, image.width)
            _check_pixels(image.height, image.width, max_pixels)
            image.load()  # turns TIFF files upright, and no others
            pixels = np.asarray(to_rgb(image))
            if pixels.shape[:2] != size:
                raise ValueError("a size other than the one in the header")
            return turn(pixels, orientation_of(image)) if honour_exif else pixels
    except (DecodeError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise TooLargeError("Image", "far too many pixels", f"at most {max_pixels} pixels", _DO) from None
    except UnidentifiedImageError:
        raise DecodeError.because(f"{len(encoded)} bytes that are not a known image format") from None
    except Exception as error:  # noqa: BLE001  # decoders raise all kinds of errors on damaged files
        raise DecodeError.because(f"{len(encoded)} bytes that cannot be decoded ({first_line(error)})") from None


def _orientation(encoded: bytes) -> int:
    """`orientation_of` for an image file; upright when it cannot be read."""
    try:
        with open_image(encoded) as image:
            return orientation_of(image)
    except Exception:  # noqa: BLE001  # decoding will say what is wrong
        return UPRIGHT
