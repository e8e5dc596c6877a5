"""AutoAugment (arXiv:1805.09501) and RandAugment (arXiv:1909.13719), as the original applies them to ImageNet.

Both choose operations of `operations.py` at random. The level of an operation is its strength: 0 to 10, and more where
its arithmetic allows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from resnet_tpu.data.pixels.operations import OPERATIONS, Flavor


class Reach(NamedTuple):
    """The largest cutout and translation, in pixels: those at level 10."""

    cutout: int
    translate: int


RANDAUGMENT = Reach(cutout=40, translate=100)
AUTOAUGMENT = Reach(cutout=100, translate=250)


class Step(NamedTuple):
    """An operation of a policy."""

    operation: str
    probability: float
    level: int


AUTOAUGMENT_V0: tuple[tuple[Step, Step], ...] = (
    (Step("Equalize", 0.8, 1), Step("ShearY", 0.8, 4)),
    (Step("Color", 0.4, 9), Step("Equalize", 0.6, 3)),
    (Step("Color", 0.4, 1), Step("Rotate", 0.6, 8)),
    (Step("Solarize", 0.8, 3), Step("Equalize", 0.4, 7)),
    (Step("Solarize", 0.4, 2), Step("Solarize", 0.6, 2)),
    (Step("Color", 0.2, 0), Step("Equalize", 0.8, 8)),
    (Step("Equalize", 0.4, 8), Step("SolarizeAdd", 0.8, 3)),
    (Step("ShearX", 0.2, 9), Step("Rotate", 0.6, 8)),
    (Step("Color", 0.6, 1), Step("Equalize", 1.0, 2)),
    (Step("Invert", 0.4, 9), Step("Rotate", 0.6, 0)),
    (Step("Equalize", 1.0, 9), Step("ShearY", 0.6, 3)),
    (Step("Color", 0.4, 7), Step("Equalize", 0.6, 0)),
    (Step("Posterize", 0.4, 6), Step("AutoContrast", 0.4, 7)),
    (Step("Solarize", 0.6, 8), Step("Color", 0.6, 9)),
    (Step("Solarize", 0.2, 4), Step("Rotate", 0.8, 9)),
    (Step("Rotate", 1.0, 7), Step("TranslateY", 0.8, 9)),
    (Step("ShearX", 0.0, 0), Step("Solarize", 0.8, 4)),
    (Step("ShearY", 0.8, 0), Step("Color", 0.6, 4)),
    (Step("Color", 1.0, 0), Step("Rotate", 0.6, 2)),
    (Step("Equalize", 0.8, 4), Step("Equalize", 0.0, 8)),
    (Step("Equalize", 1.0, 4), Step("AutoContrast", 0.6, 2)),
    (Step("ShearY", 0.4, 7), Step("SolarizeAdd", 0.6, 7)),
    (Step("Posterize", 0.8, 2), Step("Solarize", 0.6, 10)),
    (Step("Solarize", 0.6, 8), Step("Equalize", 0.6, 1)),
    (Step("Color", 0.8, 6), Step("Rotate", 0.4, 5)),
)
"""The pairs that policy v0 chooses from. TranslateY at level 9 moves by 225 px: nothing is left of a shorter image."""

_NAMES = tuple(OPERATIONS["tf"])


def autoaugment(image: np.ndarray, rng: np.random.Generator, *, flavor: Flavor = "tf") -> np.ndarray:
    """`image` uint8 [h, w, 3] after one of the pairs of policy v0, each step with its own probability.

    The image itself is not changed; it is returned as it is when no step is taken.
    """
    for step in AUTOAUGMENT_V0[rng.integers(len(AUTOAUGMENT_V0))]:
        if rng.random() < step.probability:
            image = _apply(step.operation, image, step.level, AUTOAUGMENT, rng, flavor)
    return image


def randaugment(
    image: np.ndarray, rng: np.random.Generator, *, num_layers: int = 2, magnitude: int = 9, flavor: Flavor = "tf"
) -> np.ndarray:
    """`image` uint8 [h, w, 3] after `num_layers` operations, each any of the 16, at level `magnitude`.

    The image itself is not changed. The original draws a probability for each operation and never uses it; here none is
    drawn.
    """
    indices = [rng.integers(len(_NAMES)) for _ in range(num_layers)]  # drawing them as an array takes longer
    for index in indices:
        image = _apply(_NAMES[index], image, magnitude, RANDAUGMENT, rng, flavor)
    return image


def _apply(
    name: str, image: np.ndarray, level: int, reach: Reach, rng: np.random.Generator, flavor: Flavor
) -> np.ndarray:
    return OPERATIONS[flavor][name](image, *draw_arguments(name, level, reach, image.shape, rng))


def draw_arguments(
    name: str, level: int, reach: Reach, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[float, ...]:
    """The arguments of an operation at a level, for images of this shape, [h, w, ...].

    Rotate, Shear and Translate go either way with probability 1/2; Cutout's centre is anywhere in the image.
    """
    if name not in _STRENGTHS:
        return ()
    strength = _STRENGTHS[name](level / 10, reach)
    if name in _SIGNED and rng.random() < 0.5:
        strength = -strength
    if name == "Cutout":
        return strength, int(rng.integers(shape[0])), int(rng.integers(shape[1]))
    return (strength,)


def _factor(fraction: float, _: Reach) -> float:
    return fraction * 1.8 + 0.1


def _shear(fraction: float, _: Reach) -> float:
    return fraction * 0.3


def _translation(fraction: float, reach: Reach) -> int:
    return round(fraction * reach.translate)


_STRENGTHS: dict[str, Callable[[float, Reach], float]] = {
    "Rotate": lambda fraction, _: fraction * 30,
    "Posterize": lambda fraction, _: int(fraction * 4),
    "Solarize": lambda fraction, _: int(fraction * 256),
    "SolarizeAdd": lambda fraction, _: int(fraction * 110),
    "Color": _factor,
    "Contrast": _factor,
    "Brightness": _factor,
    "Sharpness": _factor,
    "ShearX": _shear,
    "ShearY": _shear,
    "TranslateX": _translation,
    "TranslateY": _translation,
    "Cutout": lambda fraction, reach: int(fraction * reach.cutout),
}
"""The argument of an operation for a level, given as a fraction of 10. Operations not listed here have none."""

_SIGNED = frozenset({"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"})
