"""Augmentation of training images after crop and flip."""

import math

import numpy as np

from resnet_tpu.data.pixels.policies import autoaugment, randaugment
from resnet_tpu.options.config import DataConfig

_LEAST_AREA, _MOST_AREA = 0.02, 0.33
_LEAST_ASPECT_RATIO, _MOST_ASPECT_RATIO = 0.3, 3.3
_ATTEMPTS = 10


def augment(image: np.ndarray, rng: np.random.Generator, data: DataConfig) -> np.ndarray:
    """`image` uint8 [h, w, 3] after the policy named by `data.augment_name` and random erasing, each if asked for.

    The image itself is never changed; it is returned as it is when nothing is done.
    """
    if data.augment_name == "autoaugment":
        image = autoaugment(image, rng, flavor=data.augment_flavor)
    elif data.augment_name == "randaugment":
        asked = {"num_layers": data.randaug_num_layers, "magnitude": data.randaug_magnitude}
        given = {name: number for name, number in asked.items() if number is not None}
        image = randaugment(image, rng, **given, flavor=data.augment_flavor)
    return random_erasing(image, rng, data.random_erasing) if data.random_erasing else image


def random_erasing(image: np.ndarray, rng: np.random.Generator, probability: float) -> np.ndarray:
    """`image` uint8 [h, w, 3] with a random rectangle replaced by noise, with `probability`.

    The rectangle covers 2 to 33 % of the image, its sides are rounded to pixels, and height / width lies in 0.3 to 3.3:
    here its logarithm is uniform, so that flat and tall ones are equally likely. One that does not fit is drawn again;
    after 10 misses, or when nothing is to be erased, the result is the image itself, which is never changed.
    Source: arXiv:1708.04896, with random values (RE-R).
    """
    if rng.random() >= probability:
        return image
    height, width, _ = image.shape
    for _ in range(_ATTEMPTS):
        area = rng.uniform(_LEAST_AREA, _MOST_AREA) * height * width
        aspect = math.exp(rng.uniform(math.log(_LEAST_ASPECT_RATIO), math.log(_MOST_ASPECT_RATIO)))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < h <= height and 0 < w <= width:
            y, x = rng.integers(height - h + 1), rng.integers(width - w + 1)
            erased = image.copy()
            erased[y : y + h, x : x + w] = rng.integers(256, size=(h, w, 3), dtype=np.uint8)
            return erased
    return image
