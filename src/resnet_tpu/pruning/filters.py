"""Structured pruning: removes whole output filters, those with the smallest L1 norm (arXiv:1608.08710).

Only the filter's own kernel is masked, not the weights of the next layer that read its output, so the density of the
masks overstates the remaining work.
"""

import random
from collections.abc import Iterable, Mapping

import numpy as np

from resnet_tpu.pruning.masks import LayerKernels, Masks

Fractions = Mapping[int, float]
"""Fraction of the filters to remove from convolution J, by J."""


def remove_filters(kernels: LayerKernels, masks: Masks, fractions: Fractions, rounds: int) -> Masks:
    """Removes 1 - (1 - fraction)^rounds of the live filters of each convolution in `fractions`.

    A fractional number of filters is rounded up with a probability equal to its fraction. Each call seeds a new
    generator and draws once for each convolution, in the order of the layers, so the masks are the same each time, and
    the same as the original's.
    """
    rng = random.Random(0)
    found = dict(masks)
    for name in kernels:
        number = name.removeprefix("conv_")
        if not number.isdecimal() or int(number) not in fractions:
            continue
        kept = masks[name]
        norms = np.abs(kernels[name] * kept).sum((0, 1, 2))
        num_live = int(kept.any((0, 1, 2)).sum())
        wanted = num_live * (1 - (1 - fractions[int(number)]) ** rounds)
        count = int(wanted) + (rng.random() < wanted - int(wanted))
        smallest = norms.argsort()[len(norms) - num_live :][:count]
        found[name] = kept.copy()
        found[name][..., smallest] = False
    return found


def _each(numbers: Iterable[int], fraction: float, without: tuple[int, ...] = ()) -> dict[int, float]:
    return {number: fraction for number in numbers if number not in without}


_VGG16_A = _each(range(2, 8), 0.0) | _each((1, *range(8, 14)), 0.5)

TABLES: Mapping[str, Fractions] = {
    "vgg16_A": _VGG16_A,
    "vgg16_nofc_A": _VGG16_A,
    "resnet56_A": _each(range(2, 55, 2), 0.1, without=(16, 20, 38, 54)),
    "resnet56_B": _each(range(2, 15, 2), 0.6)
    | _each(range(22, 37, 2), 0.3, without=(34,))
    | _each(range(40, 53, 2), 0.1),
    "resnet110_A": _each(range(2, 35, 2), 0.5),
    "resnet110_B": _each(range(2, 35, 2), 0.5) | _each(range(40, 73, 2), 0.4) | _each(range(76, 109, 2), 0.3),
    "resnet34_A": _each((4, 6, 10, 12, 18, 20, 22, 24), 0.3),
    "resnet34_B": _each((4, 6), 0.5) | _each((10, 12), 0.6) | _each((18, 20, 22, 24), 0.4),
}
"""The levels A and B of the rewinding paper (arXiv:2003.02389) by network."""
