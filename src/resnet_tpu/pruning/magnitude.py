"""Methods that score individual weights and remove those below a threshold.

The threshold is a percentile, interpolated between neighbouring scores. A weight that equals it stays: of n distinct
scores, percentile q removes ceil(q / 100 * (n - 1)).
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from resnet_tpu.errors import UserError
from resnet_tpu.pruning.masks import LayerKernels, Masks

Score = Callable[[np.ndarray], np.ndarray]


def absolute(kernel: np.ndarray) -> np.ndarray:
    """|w|."""
    return np.abs(kernel)


def standardized(kernel: np.ndarray) -> np.ndarray:
    """The distance of |w| from its mean, in standard deviations; both are over the outputs of a tap and input channel.

    For a matrix they are over all of it. Where |w| is constant the result is NaN, as in the original.
    """
    values = np.abs(kernel)
    axis = -1 if kernel.ndim == 4 else None
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs((values - values.mean(axis, keepdims=True)) / values.std(axis, keepdims=True))


def prune_remaining(kernels: LayerKernels, masks: Masks, percent: float, score: Score, parts: Collection[str]) -> Masks:
    """Removes `percent` of the remaining weights of the layers whose names contain one of `parts`.

    Raises UserError if one of these weights has no score.
    """
    scores = _scores(kernels, masks, score, parts)
    threshold = _percentile((scores[name][masks[name]] for name in scores), percent)
    return _cut(masks, scores, threshold)


def prune_to_sparsity(
    kernels: LayerKernels, masks: Masks, percent: float, score: Score, parts: Collection[str]
) -> Masks:
    """Prunes the layers whose names contain one of `parts`, taken together, to a sparsity of `percent`.

    Masked weights count as 0. Raises UserError if one of the others has no score.
    """
    scores = _scores(kernels, masks, score, parts)
    threshold = _percentile((np.where(masks[name], scores[name], 0) for name in scores), percent)
    return _cut(masks, scores, threshold)


def keep_largest(kernels: LayerKernels, masks: Masks, fractions: Mapping[str, float]) -> Masks:
    """Keeps the given fraction of each layer: its largest weights."""
    scores = {name: absolute(kernels[name]) * mask for name, mask in masks.items()}
    return {
        name: mask & (scores[name] >= _percentile([scores[name]], (1 - fractions[name]) * 100))
        for name, mask in masks.items()
    }


def _scores(kernels: LayerKernels, masks: Masks, score: Score, parts: Collection[str]) -> dict[str, np.ndarray]:
    """The scores of the layers whose names contain one of `parts`. Raises UserError if a kept weight has none."""
    scores = {name: score(kernels[name]) for name in kernels if any(part in name for part in parts)}
    for name, values in scores.items():
        if not np.isfinite(values[masks[name]]).all():  # the threshold would be NaN: nothing would be removed
            got = f"0 somewhere in {name}"
            do = "Choose a method that ranks weights by |w|, such as prune_all_to_global."
            raise UserError("Standard deviation of |w|", got, "more than 0", do)
    return scores


def _percentile(arrays: Iterable[np.ndarray], percent: float) -> np.floating:
    scores = np.concatenate([array.ravel() for array in arrays])
    # float64, because NumPy would count the weights in the type of the scores, float32
    return np.percentile(scores, np.float64(percent))


def _cut(masks: Masks, scores: Mapping[str, np.ndarray], threshold: np.floating) -> Masks:
    """`masks` without the weights that score below the threshold; layers without scores are unchanged."""
    return masks | {name: masks[name] & ~(values < threshold) for name, values in scores.items()}
