"""Accuracy, confusion and mistakes agree with their definitions and with each other."""

import dataclasses
import math

import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.reports import columns
from resnet_tpu.reports.predictions import (
    Predictions,
    class_scores,
    confusion_matrix,
    top_k,
    top_k_hits,
    worst_mistakes,
)


def _predictions(num_images: int = 200, classes: int = 7, *, unknown: float = 0.2, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    scores = rng.integers(1, 30, (num_images, classes)).astype(np.float32)  # ties are common
    labels = rng.integers(0, classes, num_images).astype(np.int32)
    labels[rng.random(num_images) < unknown] = -1
    names = [f"image {i}" for i in range(num_images)]
    probabilities = scores / scores.sum(1, keepdims=True)
    return Predictions(names, probabilities, labels, [f"class {c}" for c in range(classes)])


def _labels(predictions: Predictions) -> np.ndarray:
    assert predictions.labels is not None
    return predictions.labels


def test_each_class_has_a_column_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "to_dataframe", dict)
    names = ["crane", "image", "crane", "class image", "crane"]
    shares = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]], np.float32)
    found = Predictions(["a.png"], shares, None, names).to_dataframe()
    every = {"crane": 0.1, "class image": 0.2, "class crane": 0.3, "class class image": 0.15, "class class crane": 0.25}
    assert list(found) == ["image", "predicted", "probability", *every]
    assert [found[name] for name in every] == [np.float32(share) for share in every.values()]


def test_accuracy_is_the_share_of_known_labels_among_the_most_probable():
    predictions = _predictions()
    labels = _labels(predictions)
    known = [i for i in range(200) if labels[i] >= 0]
    rows = {i: predictions.probabilities[i].tolist() for i in known}
    right = [rows[i].index(max(rows[i])) == labels[i] for i in known]
    near = [sum(p > rows[i][labels[i]] for p in rows[i]) < 5 for i in known]
    score = predictions.accuracy
    assert score == pytest.approx((np.mean(right), np.mean(near), len(known)))
    assert 0 < np.mean(right) < np.mean(near) < 1


def test_tie_at_the_boundary_is_in():
    scores = np.array([[5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 0.0]])
    hits = [bool(top_k_hits(scores, np.array([label]), 5)[0]) for label in range(7)]
    assert hits == [True] * 6 + [False]
    assert top_k_hits(np.array([[1.0, 2.0]]), np.array([0]), 5).all()


def test_a_probability_too_small_for_float32_is_no_tie():
    names = ["0", "1"]
    probabilities = np.eye(12, dtype=np.float32)[[0, 0]]  # one class has all, as where a network has diverged
    predictions = Predictions(names, probabilities, np.array([4, 5]), [*map(str, range(12))])
    score = predictions.accuracy
    assert score is not None
    assert (score.top_1, score.top_5) == (0.0, 0.5)


def test_top_k_is_descending_and_prefers_the_first_of_equals():
    predictions = _predictions()
    order = top_k(predictions, 5)
    for row, classes in zip(predictions.probabilities, order.tolist(), strict=True):
        assert classes == sorted(range(7), key=lambda c, row=row: (-row[c], c))[:5]
    assert np.array_equal(order[:, 0], predictions.predicted)
    assert top_k(predictions, 99).shape == (200, 7)


def test_confusion_matrix_counts_every_labelled_image_once():
    predictions = _predictions()
    matrix = confusion_matrix(predictions)
    counts = np.zeros((7, 7), np.int64)
    for label, predicted in zip(_labels(predictions), predictions.predicted, strict=True):
        if label >= 0:
            counts[label, predicted] += 1
    assert np.array_equal(matrix, counts)
    score = predictions.accuracy
    assert score is not None
    assert matrix.sum() == score.num_images
    assert np.trace(matrix) / matrix.sum() == pytest.approx(score.top_1)


def test_unknown_labels_change_no_figure():
    predictions = _predictions()
    known = predictions.labelled
    alone = Predictions(
        [predictions.names[i] for i in known],
        predictions.probabilities[known],
        _labels(predictions)[known],
        predictions.class_names,
    )
    assert predictions.accuracy == alone.accuracy
    assert class_scores(predictions) == class_scores(alone)
    assert [m[1:] for m in worst_mistakes(predictions)] == [m[1:] for m in worst_mistakes(alone)]


@pytest.mark.parametrize("labels", [None, np.full(200, -1, np.int32)])
def test_nothing_is_scored_without_labels(labels: np.ndarray | None):
    predictions = dataclasses.replace(_predictions(), labels=labels)
    assert predictions.accuracy is None
    assert confusion_matrix(predictions).sum() == 0
    assert worst_mistakes(predictions) == []
    assert predictions.true_name(0) is None
    assert predictions.is_right(0) is None


def test_class_scores_are_their_definitions():
    predictions = _predictions()
    labels, called = _labels(predictions), predictions.predicted[_labels(predictions) >= 0]
    labels = labels[labels >= 0]
    for c, score in enumerate(class_scores(predictions)):
        hits = int(((labels == c) & (called == c)).sum())
        precision, recall = hits / (called == c).sum(), hits / (labels == c).sum()
        expected = ((labels == c).sum(), (called == c).sum(), precision, recall)
        assert score[1:5] == pytest.approx(expected)
        assert score.f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_class_without_images_has_no_recall():
    probabilities = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0]], np.float32)
    first, second, third = class_scores(Predictions(["x", "y"], probabilities, np.array([0, 1]), ["a", "b", "c"]))
    assert first[1:] == (1, 2, 0.5, 1.0, pytest.approx(2 / 3))
    assert math.isnan(second.precision)
    assert (second.recall, second.f1) == (0.0, 0.0)
    assert all(math.isnan(share) for share in third[3:])


def test_worst_mistakes_are_the_surest_wrong_ones():
    predictions = _predictions()
    labels = _labels(predictions)
    wrong = {i for i in range(200) if labels[i] not in (-1, predictions.predicted[i])}
    everything = worst_mistakes(predictions, 1000)
    assert {mistake.image for mistake in everything} == wrong
    assert [m.probability for m in everything] == sorted((m.probability for m in everything), reverse=True)
    assert worst_mistakes(predictions, 5) == everything[:5]
    for mistake in everything:
        assert mistake.name == predictions.names[mistake.image]
        assert mistake.true == predictions.true_name(mistake.image) != mistake.predicted
        assert mistake.probability == predictions.probabilities[mistake.image].max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_names": ["a"]}, r"probabilities of shape \[200, 7\], expected \[200, 1\]"),
        ({"labels": np.zeros(3, np.int32)}, r"labels of shape \[3\], expected \[200\]"),
        ({"labels": np.full(200, 7)}, r"labels from 7 to 7, expected -1 to 6"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(_predictions(), **changes)
