"""From the bytes of an image file to the pixels the network sees.

The pixels are those of the original program (TensorFlow's decoder and its kernels for resizing) with these differences:

* The original crops for evaluation inside the JPEG decoder, which has no neighbour to interpolate colour with at the
  window's right edge: with subsampled colour, that column differs by a few levels. Here both training and evaluation
  crop the decoded image, as the original does for training.
* Results are rounded and clipped to uint8; the original keeps the fractions, and the overshoot of the bicubic filter.
  Where it augments, it clips too and cuts the fractions off: there, half of the levels are one lower than here.
* A greyscale image whose random window is the whole image gets the centre crop, as colour images do.
* JPEG files with stray bytes in the header go through OpenCV, whose inverse transform differs by a level or two.
* PNG, BMP, GIF (first frame), WebP and TIFF are accepted too; transparency is dropped.
"""

import io
import struct
from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from resnet_tpu.data.pixels import jpeg, native
from resnet_tpu.data.pixels.crop import CROP_PCT, MIN_AREA, Window, eval_window, train_window
from resnet_tpu.data.pixels.exif import UPRIGHT, orientation_of, turn
from resnet_tpu.data.pixels.resize import Method, resize_to_uint8
from resnet_tpu.errors import UserError

_FORMATS = "a whole JPEG, PNG, BMP, GIF, WebP or TIFF image"
_PNG = b"\x89PNG\r\n\x1a\n"

PILLOW_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
"""What Pillow may be given. Of the others, some start programs (EPS) or read what else lies around."""


class DecodeError(UserError):
    """An image that cannot be decoded."""

    @classmethod
    def because(cls, got: str) -> "DecodeError":
        """The error for bytes that are `got` instead of an image."""
        return cls("Image", got, _FORMATS, "Replace or remove it, or pass --skip_bad_records to go on without it.")

    def at(self, place: str) -> "DecodeError":
        """The same error, naming where the image is."""
        return DecodeError(f"Image {place}", self.got, self.expected, self.do)


def decode(encoded: bytes, *, honour_exif: bool = False) -> np.ndarray:
    """The image as uint8 [h, w, 3] RGB; turned upright by its EXIF orientation when `honour_exif`.

    Raises DecodeError.
    """
    header = jpeg.read_header(encoded)
    image = _decode_jpeg(encoded, header, None) if header else _decode_other(encoded)
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
    with `crop_padding` is as `_shift` places it; it is mirrored half of the time, if `random_flip`. Raises DecodeError.
    """
    mirrored = bool(rng.random() < 0.5) and random_flip

    def choose(height: int, width: int) -> Window:
        if crop_padding is not None:
            return eval_window(height, width, image_size, crop_pct=1)
        return train_window(rng, height, width, image_size, min_crop_area)

    _fill(encoded, choose, out, honour_exif=honour_exif, mirrored=mirrored, method=resize_method)
    if crop_padding is not None:
        _shift(out, rng, crop_padding)


def _shift(image: np.ndarray, rng: np.random.Generator, padding: int) -> None:
    """Puts a random window of its own size, out of `image` [s, s, 3] with a black border of `padding`, in its place.

    Every offset from 0 to 2 `padding`, in either direction, is as likely. Source: arXiv:1512.03385, section 4.2.
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
) -> None:
    """Fills `out` uint8 [image_size, image_size, 3] with the centre of the image: see `eval_window`.

    encoded: a file, or its pixels as `decode` returns them. Raises DecodeError.
    """

    def choose(height: int, width: int) -> Window:
        return eval_window(height, width, image_size, crop_pct)

    _fill(encoded, choose, out, honour_exif=honour_exif, mirrored=False, method=resize_method)


def _fill(
    encoded: bytes | np.ndarray,
    choose: Callable[[int, int], Window],
    out: np.ndarray,
    *,
    honour_exif: bool,
    mirrored: bool,
    method: Method,
) -> None:
    """Fills `out` with the window that `choose` picks from height and width, resized."""
    if isinstance(encoded, np.ndarray):
        image = _crop(encoded, choose(*encoded.shape[:2]))
    else:
        library = native.load()
        facts = library.read_facts(encoded) if library else None
        if library and facts and not (honour_exif and facts.may_be_turned and _orientation(encoded) != UPRIGHT):
            window = choose(facts.height, facts.width)
            if library.resize_jpeg(encoded, window, out, mirrored=mirrored, method=method):
                return

            def choose_again(height: int, width: int) -> Window:  # without drawing random numbers anew
                return window if (height, width) == (facts.height, facts.width) else choose(height, width)

            image = _decode_window(encoded, honour_exif, choose_again)
        else:
            image = _decode_window(encoded, honour_exif, choose)
    resize_to_uint8(image, out, mirrored=mirrored, method=method)


def _decode_window(encoded: bytes, honour_exif: bool, choose: Callable[[int, int], Window]) -> np.ndarray:
    """The window of the decoded image that `choose` picks from height and width."""
    header = jpeg.read_header(encoded)
    orientation = _orientation(encoded) if honour_exif else UPRIGHT
    if header and header.height and header.width and orientation == UPRIGHT:
        window = choose(header.height, header.width)
        return _crop(_decode_jpeg(encoded, header, window.y + window.h), window)
    image = turn(decode(encoded), orientation)
    return _crop(image, choose(*image.shape[:2]))


def _crop(image: np.ndarray, window: Window) -> np.ndarray:
    y, x, h, w = window
    return image[y : y + h, x : x + w]


def _decode_jpeg(encoded: bytes, header: jpeg.Header, rows: int | None) -> np.ndarray:
    if not header.is_whole:
        raise DecodeError.because(f"a JPEG that breaks off after {len(encoded)} bytes")
    try:
        return jpeg.decode(encoded, header, rows)
    except ValueError:
        return _decode_other(encoded)


def _decode_other(encoded: bytes) -> np.ndarray:
    if not encoded:
        raise DecodeError.because("no bytes")
    try:
        if not _is_overdrawn_png(encoded):
            found = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
            if found is not None:
                return cv2.cvtColor(found, cv2.COLOR_BGR2RGB)
        with Image.open(io.BytesIO(encoded), formats=PILLOW_FORMATS) as image:
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise DecodeError.because(f"{len(encoded)} bytes that cannot be decoded") from None
    except (OSError, ValueError, SyntaxError, cv2.error, Image.DecompressionBombError) as error:
        raise DecodeError.because(f"{len(encoded)} bytes that cannot be decoded ({error})") from None


def _is_overdrawn_png(encoded: bytes) -> bool:
    """Whether a chunk claims to be longer than the rest of the file: OpenCV takes that much memory, up to 2 GB."""
    at = len(_PNG)
    while encoded.startswith(_PNG) and at + 8 <= len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, at)
        if at + 8 + length > len(encoded):
            return True
        if kind == b"IEND":
            break
        at += 12 + length
    return False


def _orientation(encoded: bytes) -> int:
    """As `orientation_of`, of an image file."""
    try:
        with Image.open(io.BytesIO(encoded), formats=PILLOW_FORMATS) as image:
            return orientation_of(image)
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError):
        return UPRIGHT  # decoding will say what is wrong
