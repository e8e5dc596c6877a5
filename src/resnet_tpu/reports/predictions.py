"""Predictions for a list of images, and their scores if labels are known."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resnet_tpu.errors import UserError
from resnet_tpu.reports import columns

if TYPE_CHECKING:
    from resnet_tpu.reports.style import Picture

UNKNOWN = -1
"""The label of an image whose class is unknown; it does not count in any accuracy."""

_OWN_COLUMNS = ("image", "label", "predicted", "probability")


class Accuracy(NamedTuple):
    """Fractions of the labelled images, 0..1."""

    top_1: float
    top_5: float
    num_images: int


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Probabilities for images, with or without labels.

    names: one per image. probabilities: float32 [n, classes]. labels: int [n], -1 if unknown, or None. class_names: in
    the order of the probabilities. Raises UserError when the lengths differ.
    """

    names: list[str]
    probabilities: np.ndarray
    labels: np.ndarray | None
    class_names: list[str]

    def __post_init__(self) -> None:
        shape = (len(self.names), len(self.class_names))
        if self.probabilities.shape != shape:
            got = f"probabilities of shape {list(self.probabilities.shape)}"
            raise UserError(
                "Predictions", got, f"{list(shape)} for the images and class names", "Give all from one run."
            )
        labels = self.labels
        if labels is None:
            return
        if labels.shape != shape[:1]:
            got = f"labels of shape {list(labels.shape)}"
            raise UserError("Predictions", got, f"[{shape[0]}], one per image", "Give all from one run.")
        if labels.size and (labels.min() < UNKNOWN or labels.max() >= shape[1]):
            got = f"labels from {labels.min()} to {labels.max()}"
            raise UserError(
                "Predictions", got, f"-1 to {shape[1] - 1}", "Use the classes that the model was trained on."
            )

    def __len__(self) -> int:
        return len(self.names)

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """int64 [n]: the most probable class of each image; the lowest if several are equal."""
        return self.probabilities.argmax(1)

    @property
    def classes(self) -> list[str]:
        """The most probable class of each image, by name."""
        return [self.class_names[i] for i in self.predicted]

    @functools.cached_property
    def labelled(self) -> np.ndarray:
        """int64: the indices of the images whose label is known."""
        return np.flatnonzero(self.labels >= 0) if self.labels is not None else np.zeros(0, np.int64)

    @property
    def accuracy(self) -> Accuracy | None:
        """`top_1` and `top_5`, from 0 to 1, over `num_images` labelled images; None if there are none.

        The lowest class wins a tie for the first place; a tie for the fifth counts as a hit.
        """
        known = self.labelled
        if self.labels is None or not known.size:
            return None
        labels, scores = self.labels[known], self.probabilities[known]
        top_1 = (self.predicted[known] == labels).mean()
        # probabilities that underflow float32 lose their order, and would all be hits: the lower index counts first
        is_lost = scores[np.arange(known.size), labels] == 0
        listed = (top_k(self, 5)[known] == labels[:, None]).any(1)
        top_5 = np.where(is_lost, listed, top_k_hits(scores, labels, 5)).mean()
        return Accuracy(float(top_1), float(top_5), known.size)

    def true_name(self, i: int) -> str | None:
        """The class name of image `i`'s label; None if unknown."""
        return None if self.labels is None or self.labels[i] < 0 else self.class_names[self.labels[i]]

    def is_right(self, i: int) -> bool | None:
        """Whether image `i` is classified correctly; None if its label is unknown."""
        return None if self.labels is None or self.labels[i] < 0 else bool(self.labels[i] == self.predicted[i])

    def to_dataframe(self) -> Any:
        """A `pandas.DataFrame`: `image`, `label` if any is known, `predicted`, `probability`, and every class.

        The column of a class has its name, or `class NAME` if that is taken, and holds its probabilities. Raises
        UserError if pandas is not installed.
        """
        every: dict[str, np.ndarray] = {}
        for i, name in enumerate(self.class_names):
            while name in _OWN_COLUMNS or name in every:  # ImageNet has two classes called crane
                name = f"class {name}"
            every[name] = self.probabilities[:, i]
        return columns.to_dataframe({**self._columns(), **every})

    def draw_confusion(self) -> "Picture":
        """Draws the number of labelled images of each class predicted as each class, as a Matplotlib figure."""
        from resnet_tpu.reports.pictures import draw_confusion  # matplotlib takes a while to load

        return draw_confusion(confusion_matrix(self), self.class_names)

    def __repr__(self) -> str:
        return columns.to_text(self._columns(percent=True))

    def _repr_html_(self) -> str:
        return columns.to_html(self._columns(percent=True))

    def _columns(self, *, percent: bool = False) -> dict[str, list[Any]]:
        probabilities = self.probabilities.max(1, initial=0).tolist()
        labels = {"label": [self.true_name(i) for i in range(len(self))]} if self.labelled.size else {}
        shown = [f"{value:.1%}" for value in probabilities] if percent else probabilities
        return {"image": self.names, **labels, "predicted": self.classes, "probability": shown}


class ClassScore(NamedTuple):
    """The scores of one class. support: images of the class; predicted: images that were predicted as it.

    precision: the fraction of the predicted images that are of the class; recall: the fraction of the images of the
    class that are predicted; f1: their harmonic mean. nan for a fraction of no images.
    """

    name: str
    support: int
    predicted: int
    precision: float
    recall: float
    f1: float


class Mistake(NamedTuple):
    """Image number `image`, called `name`, of class `true`, was predicted as `predicted` with `probability`."""

    image: int
    name: str
    true: str
    predicted: str
    probability: float


def top_k(predictions: Predictions, k: int) -> np.ndarray:
    """int64 [n, min(k, classes)]: the most probable classes first; among equals, the lower first."""
    rest = predictions.probabilities.copy()
    ranks = np.empty((len(rest), min(k, len(predictions.class_names))), np.int64)
    for rank in ranks.T:  # several times faster than sorting, for a few of many classes
        rank[:] = rest.argmax(1)
        np.put_along_axis(rest, rank[:, None], -np.inf, axis=1)
    return ranks


def top_k_hits(scores: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """bool [n]: whether fewer than `k` of `scores` [n, classes] are above the label's. A tie at the boundary counts."""
    own = np.take_along_axis(scores, labels[:, None].astype(np.int64), axis=1)
    return (scores > own).sum(1) < k


def confusion_matrix(predictions: Predictions) -> np.ndarray:
    """int64 [classes, classes]: the number of labelled images of a class (row) predicted as a class (column)."""
    classes, known = len(predictions.class_names), predictions.labelled
    if predictions.labels is None:
        return np.zeros((classes, classes), np.int64)
    cells = predictions.labels[known].astype(np.int64) * classes + predictions.predicted[known]
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_scores(predictions: Predictions) -> list[ClassScore]:
    """The score of every class over the labelled images, in label order."""
    matrix = confusion_matrix(predictions)
    right, support, predicted = np.diagonal(matrix), matrix.sum(1), matrix.sum(0)
    with np.errstate(invalid="ignore"):  # 0/0 is nan: there are no such images
        columns = (right / predicted, right / support, 2 * right / (support + predicted))
    numbers = zip(support.tolist(), predicted.tolist(), *(column.tolist() for column in columns), strict=True)
    return [ClassScore(name, *row) for name, row in zip(predictions.class_names, numbers, strict=True)]


def worst_mistakes(predictions: Predictions, count: int = 25) -> list[Mistake]:
    """At most `count` mistakes: those with the highest probability of the predicted class, the highest first."""
    known = predictions.labelled
    if predictions.labels is None:
        return []
    wrong = known[predictions.predicted[known] != predictions.labels[known]]
    sure = predictions.probabilities[wrong, predictions.predicted[wrong]]
    worst = wrong[np.argsort(-sure, kind="stable")[:count]].tolist()
    return [
        Mistake(
            i,
            predictions.names[i],
            predictions.class_names[predictions.labels[i]],
            predictions.class_names[predictions.predicted[i]],
            float(predictions.probabilities[i, predictions.predicted[i]]),
        )
        for i in worst
    ]
