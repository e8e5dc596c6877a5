"""The 16 operations on pixels that AutoAugment and RandAugment choose from, by name.

Each is a function of an image uint8 [h, w, 3] and of its arguments. None changes its input; the result is a new array,
or the image itself if there is nothing to do. Pixels that come from outside the image become 128.

There are two flavours. `tf` computes bit for bit what the original computes in TensorFlow, with its quirks:

* Contrast blends with (number of pixels / 256) instead of the mean grey: with 196 at 224 px, with white from 256 px.
* The threshold of Solarize wraps around at 256, so level 10 inverts every pixel and level 15 uses 128.
* Posterize removes more bits at a lower level, and keeps one bit where none is asked for.
* Color, Contrast, Brightness and Sharpness change nothing at level 5 and weaken below it.
* Fractions are cut off, not rounded, so a smoothed pixel can be one level too low.

`corrected` differs in two operations: Contrast blends with the mean grey, and a Solarize threshold above 255 leaves the
image as it is.

Float arithmetic is done in float32, in the order of TensorFlow's kernels without fused multiply-add. The C library, if
it is available, computes what is slow in NumPy, with the same result. Neither it nor OpenCV holds the GIL.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import cv2
import numpy as np

from resnet_tpu.data.pixels import native

Flavor = Literal["tf", "corrected"]
"""How operations compute: as the original, or without its mistakes."""

Operation = Callable[..., np.ndarray]
"""(image uint8 [h, w, 3], arguments) -> uint8 [h, w, 3]."""

FILL = 128
"""The level of pixels that come from outside the image, and of those cut out."""

_PART = 1 << 14
_LEVELS = np.arange(256, dtype=np.uint8)
_GRAY_WEIGHTS = (np.float32(0.2989), np.float32(0.5870), np.float32(0.1140))
_Row = tuple[float | np.floating, float | np.floating, float | np.floating]
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


# ---------------------------------------------------------------------------------------------------- one pixel's level


def invert(image: np.ndarray) -> np.ndarray:
    """The negative."""
    return ~image


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
    """The highest `bits` bits of every level, at least 1."""
    return image if bits >= 8 else image & np.uint8(256 - (1 << (8 - max(bits, 1))))


def solarize(image: np.ndarray, threshold: int) -> np.ndarray:
    """Levels from `threshold` up are inverted."""
    table = _LEVELS.copy()
    table[threshold:] = ~table[threshold:]
    return cv2.LUT(image, table)


def solarize_wrapping(image: np.ndarray, threshold: int) -> np.ndarray:
    """`solarize` with the original's threshold: modulo 256."""
    return solarize(image, threshold % 256)


def solarize_add(image: np.ndarray, addition: int) -> np.ndarray:
    """Levels below 128 are raised by `addition`, to 255 at most."""
    table = _LEVELS.copy()
    table[:128] = np.minimum(table[:128].astype(np.int64) + addition, 255)
    return cv2.LUT(image, table)


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """The image blended with black."""
    return _blend_with_level(0, image, factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """The image blended with the mean of its grey levels."""
    return _blend_with_level(int(_gray(image).mean() + 0.5), image, factor)


def contrast_by_size(image: np.ndarray, factor: float) -> np.ndarray:
    """The original's `contrast`, which mistakes the mean count of the histogram for the mean grey level."""
    height, width, _ = image.shape
    return _blend_with_level(min(height * width // 256, 255), image, factor)


def autocontrast(image: np.ndarray) -> np.ndarray:
    """Each channel stretched to 0 ... 255."""
    are_there = _count_levels(image) > 0
    low = are_there.argmax(1).astype(np.float32)
    high = (255 - are_there[:, ::-1].argmax(1)).astype(np.float32)
    is_flat = low == high
    scale = np.float32(255) / np.where(is_flat, np.float32(1), high - low)
    tables = _to_uint8(_LEVELS * scale[:, None] + (-low * scale)[:, None])
    return _look_up(image, np.where(is_flat[:, None], _LEVELS, tables))


def equalize(image: np.ndarray) -> np.ndarray:
    """Each channel with a flat histogram."""
    counts = _count_levels(image)
    brightest = 255 - (counts[:, ::-1] > 0).argmax(1)
    step = (counts.sum(1) - counts[range(3), brightest])[:, None] // 255
    darker = np.cumsum(counts, axis=1) - counts
    tables = np.minimum((darker + step // 2) // np.maximum(step, 1), 255).astype(np.uint8)
    return _look_up(image, np.where(step == 0, _LEVELS, tables))


def _count_levels(image: np.ndarray) -> np.ndarray:
    """How often each level occurs in each channel, int64 [3, 256]."""
    counts = [cv2.calcHist([image], [channel], None, [256], [0, 256]).ravel() for channel in range(3)]
    return np.stack(counts).astype(np.int64)


def _look_up(image: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """The image with the levels of each channel looked up in its table. tables: uint8 [3, 256]."""
    return cv2.LUT(image, np.ascontiguousarray(tables.T)[None])


def _blend_with_level(level: int, image: np.ndarray, factor: float) -> np.ndarray:
    return cv2.LUT(image, _blend(np.full(256, level, np.uint8), _LEVELS, factor))


# ------------------------------------------------------------------------------------------- several pixels or channels


def color(image: np.ndarray, factor: float) -> np.ndarray:
    """The image blended with its grey version."""
    if library := _library_for(image):
        return library.color(image, factor)
    return _blend(cv2.cvtColor(_gray(image), cv2.COLOR_GRAY2RGB), image, factor)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """The image blended with its smoothed version."""
    if library := _library_for(image):
        return library.sharpness(image, factor)
    return _blend(_smooth(image), image, factor)


def _blend(a: np.ndarray, b: np.ndarray, factor: float) -> np.ndarray:
    """a at factor 0, b at 1; between them, or beyond b, by float32 arithmetic. All uint8, of one shape."""
    result = np.empty(b.shape, np.uint8)
    flat_a, flat_b, flat_result = (array.reshape(-1) for array in (a, b, result))
    for part in _parts(result.size):
        start = flat_a[part].astype(np.float32)
        blended = flat_b[part].astype(np.float32)
        blended -= start
        blended *= np.float32(factor)
        blended += start
        flat_result[part] = _to_uint8(blended)
    return result


def _to_uint8(values: np.ndarray) -> np.ndarray:
    """The values clipped to 0 ... 255 and truncated. Overwrites them."""
    return values.clip(0, 255, out=values).astype(np.uint8)


def _gray(image: np.ndarray) -> np.ndarray:
    """uint8 [h, w], equal to `tf.image.rgb_to_grayscale` for every colour."""
    gray = np.empty(image.shape[:2], np.uint8)
    flat_gray, channels = gray.reshape(-1), [channel.reshape(-1) for channel in cv2.split(image)]
    for part in _parts(gray.size):
        red, green, blue = (
            channel[part] * np.float32(1 / 255) * weight
            for channel, weight in zip(channels, _GRAY_WEIGHTS, strict=True)
        )
        flat_gray[part] = (red + green + blue) * np.float32(255.5)
    return gray


def _smooth(image: np.ndarray) -> np.ndarray:
    """Each pixel averaged with its 8 neighbours, its own weight 5 times theirs; the border as it is.

    In exact arithmetic some results are whole numbers; the order of additions decides which come out just below.
    """
    height, width, _ = image.shape
    if min(height, width) < 3:
        return image
    # Flat, so that a neighbour is at a fixed offset. Pixels at the ends of rows get wrong neighbours, and are restored.
    smoothed, row = image.copy(), 3 * width
    flat, flat_smoothed = image.reshape(-1), smoothed.reshape(-1)
    first = row + 3  # the offset of pixel (1, 1), and how far after a pixel its last neighbour lies
    for part in _parts(flat.size - 2 * first):
        near = flat[part.start : part.stop + 2 * first].astype(np.float32)
        count = part.stop - part.start
        own = near[first : first + count] * np.float32(5 / 13)
        near *= np.float32(1 / 13)
        total = np.zeros(count, np.float32)
        for offset in (y * row + 3 * x for y in range(3) for x in range(3)):
            total += own if offset == first else near[offset : offset + count]
        flat_smoothed[part.start + first : part.stop + first] = total.astype(np.uint8)
    smoothed[:, [0, -1]] = image[:, [0, -1]]
    return smoothed


def _parts(length: int) -> Iterator[slice]:
    """Consecutive slices of `length` values.

    Float arrays as short as a slice stay in the processor's cache, and the allocator reuses their memory. For arrays as
    large as the image, it asks the system each time, and page faults take longer than the arithmetic.
    """
    for start in range(0, length, _PART):
        yield slice(start, min(start + _PART, length))


# ------------------------------------------------------------------------------------------------------------- geometry


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Turned about the centre, counter-clockwise on the screen."""
    height, width, _ = image.shape
    bottom, right, two = np.float32(height - 1), np.float32(width - 1), np.float32(2)
    angle = np.float32(degrees) * np.float32(math.pi / 180)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    x_offset = (right - (cos * right - sin * bottom)) / two
    y_offset = (bottom - (sin * right + cos * bottom)) / two
    return _warp(image, (cos, -sin, x_offset), (sin, cos, y_offset))


def shear_x(image: np.ndarray, level: float) -> np.ndarray:
    """out(x, y) = in(x + level * y, y)."""
    return _warp(image, (1, level, 0), (0, 1, 0))


def shear_y(image: np.ndarray, level: float) -> np.ndarray:
    """out(x, y) = in(x, y + level * x)."""
    return _warp(image, (1, 0, 0), (level, 1, 0))


def translate_x(image: np.ndarray, pixels: float) -> np.ndarray:
    """Moved to the left by a whole number of pixels."""
    return _shift(image, pixels, axis=1)


def translate_y(image: np.ndarray, pixels: float) -> np.ndarray:
    """Moved up by a whole number of pixels."""
    return _shift(image, pixels, axis=0)


def cutout(image: np.ndarray, pad: int, y: int, x: int) -> np.ndarray:
    """A square of side 2 * pad around (y, x), as far as it lies in the image, becomes grey."""
    image = image.copy()
    image[max(y - pad, 0) : y + pad, max(x - pad, 0) : x + pad] = FILL
    return image


def _shift(image: np.ndarray, pixels: float, axis: int) -> np.ndarray:
    length = image.shape[axis]
    offset = min(max(round(pixels), -length), length)
    shifted = np.full_like(image, FILL)
    source, target = np.swapaxes(image, 0, axis), np.swapaxes(shifted, 0, axis)
    target[max(-offset, 0) : length - max(offset, 0)] = source[max(offset, 0) : length + min(offset, 0)]
    return shifted


def _warp(image: np.ndarray, x_row: _Row, y_row: _Row) -> np.ndarray:
    """out(x, y) = in(x_row . (x, y, 1), y_row . (x, y, 1)), the nearest pixel."""
    if library := _library_for(image):
        return library.warp(image, [float(one) for one in (*x_row, *y_row)], float(_BELOW_HALF), FILL)
    height, width, _ = image.shape
    x_factors, y_factors, offsets = np.array([x_row, y_row], np.float32).T[..., None, None]
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    fill, warped, num_rows = (FILL, FILL, FILL), np.empty_like(image), -(-_PART // width)
    for top in range(0, height, num_rows):
        source = x_factors * x + y_factors * y[top : top + num_rows]
        source += offsets
        # Halves round up, but -0.5 is outside; adding 0.5 itself would also round the number just below 0.5 up to 1.
        source += _BELOW_HALF
        np.floor(source, out=source)
        # OpenCV's own warpAffine rounds coordinates to a fraction of a pixel first.
        warped[top : top + num_rows] = cv2.remap(
            image, source[0], source[1], cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=fill
        )
    return warped


def _library_for(image: np.ndarray) -> native.Library | None:
    """The C library; None if it is missing, or cannot handle the image's memory layout."""
    return native.load() if image.flags.c_contiguous and image.size else None


# --------------------------------------------------------------------------------------------------------------- tables

_TF: dict[str, Operation] = {
    "AutoContrast": autocontrast,
    "Equalize": equalize,
    "Invert": invert,
    "Rotate": rotate,
    "Posterize": posterize,
    "Solarize": solarize_wrapping,
    "Color": color,
    "Contrast": contrast_by_size,
    "Brightness": brightness,
    "Sharpness": sharpness,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Cutout": cutout,
    "SolarizeAdd": solarize_add,
}

OPERATIONS: Mapping[Flavor, Mapping[str, Operation]] = MappingProxyType(
    {"tf": _TF, "corrected": _TF | {"Solarize": solarize, "Contrast": contrast}}
)
"""The operations of each flavour, by the original's names."""
