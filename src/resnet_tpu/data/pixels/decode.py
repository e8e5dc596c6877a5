"""From the bytes of an image file to its pixels: those of TensorFlow's decoder, which the original uses, except:

* With `preprocessing="pil"` they are Pillow's, to the last bit.
* JPEG files with stray bytes in the header or unusual colour sampling go through Pillow, whose inverse transform
  differs by a level or two.
* PNG, BMP, GIF (first frame), WebP and TIFF are accepted too; transparency is dropped.

Colour profiles inside the files are ignored, as in the original.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from resnet_tpu.data.pixels import jpeg
from resnet_tpu.data.pixels.crop import Window
from resnet_tpu.data.pixels.exif import UPRIGHT, orientation_of, turn
from resnet_tpu.data.pixels.pillow import open_image, to_rgb
from resnet_tpu.errors import UserError, first_line

_FORMATS = "a whole JPEG, PNG, BMP, GIF, WebP or TIFF image"
OR_SKIP = "or pass --skip_bad_records to continue without it"
"""The end of the advice on an image that cannot be read. It names a command-line option."""

_DO = f"Replace or remove it, {OR_SKIP}."

MAX_PIXELS = 178_956_970
"""The most pixels that an image may have, unless another limit is given: 0.5 GB. It is Pillow's own limit."""

_MOST_ROWS = 1_000_000  # decoders keep some 30 bytes for each row besides its pixels

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

    Raises DecodeError; TooLargeError for an image of more than `max_pixels` or 1,000,000 rows.
    """
    header = jpeg.read_header(encoded) if preprocessing == "tf" else None
    if not header:
        return _decode_other(encoded, honour_exif=honour_exif, max_pixels=max_pixels)
    _check_work(encoded, header, max_pixels)
    image = _decode_jpeg(encoded, header)
    return turn(image, stored_orientation(encoded)) if honour_exif else image


def decode_window(
    encoded: bytes, choose: Callable[[int, int], Window], *, honour_exif: bool = False, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """The window of the image that `choose` picks from height and width; no more of a JPEG is decoded than needed.

    Raises DecodeError; TooLargeError as `decode` does.
    """
    header = jpeg.read_header(encoded)
    if header and not (honour_exif and stored_orientation(encoded) != UPRIGHT):
        _check_work(encoded, header, max_pixels)
        window = choose(header.height, header.width)
        return window.cut(_decode_jpeg(encoded, header, window.y + window.h))
    image = decode(encoded, honour_exif=honour_exif, max_pixels=max_pixels)
    return choose(*image.shape[:2]).cut(image)


def _check_work(encoded: bytes, header: jpeg.Header | None, max_pixels: int) -> None:
    """Raises TooLargeError for a JPEG with too many pixels or scans."""
    if header:
        check_pixels(header.height, header.width, max_pixels)
    if scans := jpeg.too_many_scans(encoded, header):
        raise TooLargeError("Image", f"a JPEG of {scans} scans", f"at most {jpeg.MAX_SCANS}", _DO)


def check_pixels(height: int, width: int, max_pixels: int, when: str = "") -> None:
    """Raises TooLargeError for an image of more than `max_pixels` or too many rows."""
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
            check_pixels(image.height, image.width, max_pixels)
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


def stored_orientation(encoded: bytes) -> int:
    """`orientation_of` for an image file; upright when it cannot be read."""
    try:
        with open_image(encoded) as image:
            return orientation_of(image)
    except Exception:  # noqa: BLE001  # decoding will say what is wrong
        return UPRIGHT
