"""Makes one photo fit for training: decodes it to check it, and converts it if the original could not read it."""

import io
import warnings
from typing import Literal, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image, ImageOps

from resnet_tpu.data.findings import Kind
from resnet_tpu.data.pixels import jpeg
from resnet_tpu.data.pixels.exif import UPRIGHT, orientation_of, turn
from resnet_tpu.data.pixels.pillow import SUFFIXES, open_image, to_rgb

Subsampling = Literal["4:4:4", "4:2:2", "4:2:0"]
"""How much colour a JPEG keeps: all of it, half of the columns, half of the columns and rows."""

_CONVERTED_QUALITY = 100  # as in the original, for images that cannot be stored as they are
_CHANGED_QUALITY = 95  # for photos turned, made smaller or recompressed: at 100 they would grow
_LONGEST_SIDE = 65_500  # px, libjpeg's limit
_SMALL_PX = 128  # below this side, halved colour resolution would be visible


class BadImageError(Exception):
    """An image that cannot be used: the kind of finding and a detail."""

    def __init__(self, kind: Kind, detail: str = "") -> None:
        self.kind, self.detail = kind, detail
        super().__init__(kind, detail)


class Limits(NamedTuple):
    """How large images may be, and how they are re-encoded."""

    max_side: int | None = None  # px: a longer side above this is shrunk to it; nothing is enlarged
    short_side: int | None = None  # the same for the shorter side
    quality: int | None = None  # of re-encoded JPEGs; None: 100 for mere conversions, else 95
    subsampling: Subsampling | None = None  # of re-encoded JPEGs; None: 4:2:0, or 4:4:4 for small ones
    recompress: bool = False  # also re-encode JPEGs that could be kept as they are, if that saves bytes

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) to which an image of this size is scaled."""
        scale = min(
            (self.max_side or max(width, height)) / max(width, height),
            (self.short_side or min(width, height)) / min(width, height),
            1.0,
        )
        return max(1, round(width * scale)), max(1, round(height * scale))


class CleanImage(NamedTuple):
    """A JPEG that decodes to RGB or grey."""

    encoded: bytes
    height: int
    width: int
    notes: list[tuple[Kind, str]]  # what was found and fixed, with a detail


def clean_image(data: bytes, name: str, limits: Limits = Limits()) -> CleanImage:  # noqa: B008  # immutable
    """The image file `data` as a JPEG: unchanged if it already is one, upright, RGB or grey, and within the limits.

    With `limits.recompress`, such a file is encoded again, and replaced if the result is smaller.
    Raises BadImageError when the image cannot be decoded completely.
    """
    if not data:
        raise BadImageError(Kind.EMPTY_FILE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's warnings about odd metadata and large sizes
        try:
            return _clean(data, name, limits)
        except (BadImageError, MemoryError):
            raise
        except Image.UnidentifiedImageError:
            raise BadImageError(Kind.UNREADABLE, f"not {', '.join(SUFFIXES)}") from None
        except Image.DecompressionBombError:
            raise BadImageError(Kind.UNSUPPORTED, f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels") from None
        except Exception as error:  # noqa: BLE001  # decoders raise all kinds of errors on damaged files
            text = str(error) or type(error).__name__
            is_cut = "truncated" in text.lower() or "premature" in text.lower()
            raise BadImageError(Kind.TRUNCATED if is_cut else Kind.UNREADABLE, text) from None


def shrink(image: np.ndarray, limits: Limits) -> np.ndarray:
    """`image` uint8 [h, w, 3] shrunk to the limits with the filter used for stored images; itself if within them."""
    size = limits.size(image.shape[1], image.shape[0])
    if size == image.shape[1::-1]:
        return image
    # Plain averaging reduces to no less than twice the target size, as the JPEG decoder does; Lanczos does the rest.
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS, reducing_gap=2))


def _clean(data: bytes, name: str, limits: Limits) -> CleanImage:
    image = open_image(data)
    kind = "JPEG" if image.format == "MPO" else str(image.format)  # MPO: a JPEG followed by previews, from phones
    notes = [] if name.lower().endswith(SUFFIXES[kind]) else [(Kind.MISNAMED, f"is {kind}")]
    header = jpeg.read_header(data) if kind == "JPEG" else None
    if kind == "JPEG" and (scans := jpeg.too_many_scans(data, header)):
        raise BadImageError(Kind.UNSUPPORTED, f"{scans} scans")
    if image.mode in ("RGB", "L") and header:
        if (header.width, header.height) != image.size:
            raise BadImageError(Kind.UNREADABLE, "its header gives another size")
        return _clean_jpeg(data, header, image, notes, limits)
    if kind != "JPEG":
        if not notes:
            notes.append((Kind.CONVERTED, kind))
        if (frames := getattr(image, "n_frames", 1)) > 1:
            notes.append((Kind.ANIMATED, f"{frames} frames"))
    is_turned = kind == "TIFF" and orientation_of(image) != UPRIGHT  # by Pillow, when it loads the image
    image.load()
    orientation = orientation_of(image)
    if is_turned or orientation != UPRIGHT:
        notes.append((Kind.TURNED, ""))
    if image.mode == "CMYK":
        notes.append((Kind.CMYK, ""))
    if image.mode == "F":
        raise BadImageError(Kind.UNSUPPORTED, "pixels are floats")
    if header and header.components == 4:  # some files have inverted inks; Pillow assumes that all do
        upright = Image.fromarray(turn(jpeg.decode(data, header), orientation))
    else:
        upright = to_rgb(ImageOps.exif_transpose(image) if orientation != UPRIGHT else image)
    quality = _CHANGED_QUALITY if limits.recompress else _CONVERTED_QUALITY
    return _encode(upright, upright.size, notes, limits, quality)


def _clean_jpeg(
    data: bytes, header: jpeg.Header, image: Image.Image, notes: list[tuple[Kind, str]], limits: Limits
) -> CleanImage:
    orientation = orientation_of(image)
    width, height = image.size
    full = (width, height) if orientation < 5 else (height, width)
    size = limits.size(*full)
    is_fit = orientation == UPRIGHT and size == full
    if is_fit and not header.is_whole:  # training refuses it, whether it decodes or not
        raise BadImageError(Kind.TRUNCATED, "no end marker")
    if is_fit and not limits.recompress:
        _decode_jpeg(data, notes, 1, 1)  # at 1/8: reads every byte, skips most of the arithmetic
        return CleanImage(data, full[1], full[0], notes)
    width, height = size if orientation < 5 else size[::-1]
    # The decoder, which averages, reduces to no less than twice the target size; Lanczos does the rest.
    pixels = _decode_jpeg(data, notes, 2 * height, 2 * width) if size != full else _decode_jpeg(data, notes, 0, 0)
    if orientation != UPRIGHT:
        notes.append((Kind.TURNED, f"orientation {orientation}"))
    again = _encode(Image.fromarray(turn(pixels, orientation)), full, notes, limits, _CHANGED_QUALITY)
    if not is_fit:
        return again
    if len(again.encoded) >= len(data):
        return again._replace(encoded=data)
    notes.append((Kind.RECOMPRESSED, ""))
    return again


def _decode_jpeg(data: bytes, notes: list[tuple[Kind, str]], min_height: int, min_width: int) -> np.ndarray:
    """The pixels, uint8 [h, w, 3], reduced by a factor of up to 8 to no less than the given sides (0: not reduced)."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", min_height=min_height, min_width=min_width)
    except ValueError as error:
        open_image(data).load()  # raises when the end is missing or nothing can be decoded
        notes.append((Kind.DAMAGED, str(error)))
    return simplejpeg.decode_jpeg(data, "RGB", min_height=min_height, min_width=min_width, strict=False)


def _encode(
    image: Image.Image, full: tuple[int, int], notes: list[tuple[Kind, str]], limits: Limits, quality: int
) -> CleanImage:
    """Encodes `image` as a JPEG within the limits. `full`: the (width, height) of the photo itself, upright."""
    size = limits.size(*full)
    if max(size) > _LONGEST_SIDE:
        detail = f"{size[0]} x {size[1]} pixels; a JPEG has at most {_LONGEST_SIDE:,} a side: give max_side"
        raise BadImageError(Kind.UNSUPPORTED, detail)
    if size != full:
        notes.append((Kind.SCALED, ""))
        quality = _CHANGED_QUALITY
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    image.info.pop("comment", None)  # Pillow would never finish writing one that is too long for a JPEG
    file = io.BytesIO()
    subsampling = limits.subsampling or ("4:4:4" if min(size) < _SMALL_PX else "4:2:0")
    image.save(file, "JPEG", quality=limits.quality or quality, subsampling=subsampling)
    return CleanImage(file.getvalue(), size[1], size[0], notes)
