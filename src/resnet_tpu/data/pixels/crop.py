"""Which part of an image the network sees: the original's random window for training, its centre for evaluation."""

import math
from typing import NamedTuple

import numpy as np

_ATTEMPTS = 10
_ASPECT_RATIOS = (3 / 4, 4 / 3)
MIN_AREA = 0.1
"""The smallest fraction of an image that the original's window covers. It asks its sampler for 0.08, and rejects
windows that cover less than 0.1; other bounds keep this proportion."""


class Window(NamedTuple):
    """A part of an image, in pixels."""

    y: int
    x: int
    h: int
    w: int

    def cut(self, image: np.ndarray) -> np.ndarray:
        """This part of `image` [height, width, ...]; it shares the image's memory."""
        return image[self.y : self.y + self.h, self.x : self.x + self.w]


CROP_PCT = 0.875
"""The fraction of the shorter side that evaluation sees, in the original."""


def eval_window(height: int, width: int, image_size: int, crop_pct: float = CROP_PCT) -> Window:
    """The central square whose side is `image_size / (image_size + pad)` of the shorter side, about `crop_pct` of it.

    pad = round(image_size / crop_pct - image_size): 32 for 224. The product is taken in float32, as the original does.
    """
    pad = round(image_size * (1 / crop_pct - 1))
    fraction = np.float32(image_size / (image_size + pad))
    side = max(1, int(fraction * np.float32(min(height, width))))
    return Window((height - side + 1) // 2, (width - side + 1) // 2, side, side)


def train_window(
    rng: np.random.Generator, height: int, width: int, image_size: int, min_area: float = MIN_AREA
) -> Window:
    """A random window. Evaluation's centre crop replaces one that is the whole image, as in the original.

    With a `min_area` other than the original's, `largest_window` replaces it: the centre crop might cover less than
    that. The original never falls back for a greyscale JPEG, because it compares channel counts as well; here all
    images are treated alike.
    """
    window = sample_crop_window(rng, height, width, min_area)
    if window != Window(0, 0, height, width):
        return window
    return eval_window(height, width, image_size) if min_area == MIN_AREA else largest_window(height, width)


def largest_window(height: int, width: int) -> Window:
    """The largest central window whose aspect ratio is within the sampler's bounds: torchvision's fallback."""
    lowest, highest = _ASPECT_RATIOS
    h = min(height, round(width / lowest))
    w = min(width, round(height * highest))
    return Window((height - h) // 2, (width - w) // 2, h, w)


def sample_crop_window(rng: np.random.Generator, height: int, width: int, min_area: float = MIN_AREA) -> Window:
    """A random window as `tf.image.sample_distorted_bounding_box` draws it; the whole image after 10 misses.

    The aspect ratio (width / height) is uniform in [3/4, 4/3); the height is then uniform between the heights for 4/5
    of `min_area` and for the whole area; windows under `min_area` of the area are drawn again.
    """
    for _ in range(_ATTEMPTS):
        if window := _attempt(rng.random(4).tolist(), height, width, min_area):
            return window
    return Window(0, 0, height, width)


def _attempt(draws: list[float], height: int, width: int, min_area: float) -> Window | None:
    """One try at a window from four numbers in [0, 1); None when it does not fit."""
    shape_draw, h_draw, y_draw, x_draw = draws
    lowest, highest = _ASPECT_RATIOS
    aspect = lowest + shape_draw * (highest - lowest)
    area = height * width
    least_area = min_area * 4 / 5 * area
    tallest = round(math.sqrt(area / aspect))
    if round(tallest * aspect) > width:
        tallest = int((width + 0.5 - 1e-7) / aspect)
        tallest -= round(tallest * aspect) > width
    tallest = min(tallest, height)
    lowest_h = min(round(math.sqrt(least_area / aspect)), tallest)
    h = lowest_h + int(h_draw * (tallest - lowest_h + 1))
    w = round(h * aspect)
    if w * h < least_area:
        h += 1
        w = round(h * aspect)
    if w * h > area:
        h -= 1
        w = round(h * aspect)
    if not (0 < h <= height and 0 < w <= width) or w * h / area < min_area:
        return None
    return Window(int(y_draw * (height - h)), int(x_draw * (width - w)), h, w)
