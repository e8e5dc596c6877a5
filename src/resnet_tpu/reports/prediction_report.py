"""Writes predictions for people and programs: tables, CSV, JSON, and a folder with pictures."""

import itertools
import json
import math
import pickle
from collections.abc import Callable, Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.markup import escape
from rich.table import Table

from resnet_tpu import storage
from resnet_tpu.errors import visible
from resnet_tpu.reports.csv_text import to_csv
from resnet_tpu.reports.predictions import (
    UNKNOWN,
    Predictions,
    class_scores,
    confusion_matrix,
    top_k,
    worst_mistakes,
)

_WITH_LABELS = frozenset({"classes.csv", "confusion_matrix.png", "mistakes.png"})
_LABELLED = b'{\n  "accuracy": {'
"""The beginning of the result of `predictions_json` if labels are known."""


def predictions_table(predictions: Predictions, *, k: int) -> Table:
    """The `k` most probable classes of each image for a terminal; wrong ones are marked."""
    table = Table(title="Predictions")
    table.add_column("image", overflow="fold")
    has_labels = bool(predictions.labelled.size)
    if has_labels:
        table.add_column("true class", overflow="fold")
    table.add_column("predicted", overflow="fold")
    table.add_column("probability", justify="right")
    table.add_column("next", overflow="fold")
    for i, ranked in enumerate(_rank(predictions, k)):
        first, *others = ((escape(visible(name)), f"{probability:.1%}") for name, probability in ranked)
        truth = [escape(visible(predictions.true_name(i) or "?"))] if has_labels else []
        following = ", ".join(f"{name} {probability}" for name, probability in others)
        style = "red" if predictions.is_right(i) is False else None
        table.add_row(escape(visible(predictions.names[i])), *truth, *first, following, style=style)
    return table


def prediction_text(predictions: Predictions, *, k: int) -> str:
    """The `k` most probable classes of the first image with their probabilities, one per line."""
    ranked = [(visible(name), probability) for name, probability in _rank(predictions, k)[0]]
    width = max(cell_len(name) for name, _ in ranked)  # in terminal columns
    return "".join(f"{set_cell_size(name, width)}  {probability:6.1%}\n" for name, probability in ranked)


def predictions_csv(predictions: Predictions, *, k: int) -> str:
    """One line per image: `name`, `label`, `correct` (true, false, empty when unknown), then class and probability."""
    header = ["name", "label", "correct"]
    for rank in range(1, min(k, len(predictions.class_names)) + 1):
        header += [f"class_{rank}", f"probability_{rank}"]
    correct = {True: "true", False: "false", None: ""}
    rows = (
        (name, predictions.true_name(i) or "", correct[predictions.is_right(i)], *itertools.chain(*ranked))
        for i, (name, ranked) in enumerate(zip(predictions.names, _rank(predictions, k), strict=True))
    )
    return to_csv(header, rows)


def predictions_json(predictions: Predictions, *, k: int, left_out: Sequence[str] = ()) -> str:
    """A JSON object with `accuracy` (`top_1`, `top_5`, `num_images`; null without labels) and `images`.

    Each image: `name`, `label` (null when unknown) and `predictions`, the `k` most probable as `class`, `probability`.
    left_out: damaged images; if there are any, the object has a list of this name.
    """
    images = [
        {
            "name": name,
            "label": predictions.true_name(i),
            "predictions": [{"class": name, "probability": probability} for name, probability in ranked],
        }
        for i, (name, ranked) in enumerate(zip(predictions.names, _rank(predictions, k), strict=True))
    ]
    score = predictions.accuracy
    found = {"accuracy": score and score._asdict(), "images": images} | ({"left_out": left_out} if left_out else {})
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def write_pickle(folder: str, predictions: Predictions) -> str:
    """Writes `predictions` into `folder` as the original's pruning fork does, and returns its path.

    A pickle of a list: for each image `label` int32 [] (-1 if unknown), `classes` int64 [], the most probable, and
    `probabilities` float32 [classes].
    """
    labels = np.full(len(predictions.names), UNKNOWN) if predictions.labels is None else predictions.labels
    images = [
        {"label": label, "classes": predicted, "probabilities": row}
        for label, predicted, row in zip(
            labels.astype(np.int32), predictions.predicted, predictions.probabilities, strict=True
        )
    ]
    storage.make_dir(folder)
    path = storage.join(folder, "predictions")
    with storage.write_whole(path) as file:
        pickle.dump(images, file)
    return path


def class_table(predictions: Predictions, *, limit: int = 50) -> Table:
    """Support, precision, recall and F1 of the classes, for a terminal. Beyond `limit` classes, those of lowest F1."""
    scores = class_scores(predictions)
    shown = scores
    if len(scores) > limit:
        shown = sorted((score for score in scores if score.support), key=lambda score: score.f1)[:limit]
    title = "Classes" if len(scores) <= limit else f"The {len(shown)} weakest of {len(scores)} classes"
    table = Table(title=title)
    table.add_column("class", overflow="fold")
    for name in ("images", "precision", "recall", "F1"):
        table.add_column(name, justify="right")
    for score in shown:
        fractions = (score.precision, score.recall, score.f1)
        cells = ("-" if math.isnan(fraction) else f"{fraction:.1%}" for fraction in fractions)
        table.add_row(escape(visible(score.name)), str(score.support), *cells)
    return table


def accuracy_text(predictions: Predictions) -> str:
    """A line with the number of labelled images classified correctly; empty if no label is known."""
    score = predictions.accuracy
    if score is None:
        return ""
    noun = "image" if score.num_images == 1 else "images"
    return f"{score.num_images} labelled {noun}: top-1 {score.top_1:.2%}, top-5 {score.top_5:.2%}"


def class_csv(predictions: Predictions) -> str:
    """One line per class: `class,support,predicted,precision,recall,f1`; empty where a fraction is undefined."""
    rows = (["" if value != value else value for value in score] for score in class_scores(predictions))
    return to_csv(["class", "support", "predicted", "precision", "recall", "f1"], rows)


def write_report(
    folder: str,
    predictions: Predictions,
    *,
    left_out: Sequence[str],
    image: Callable[[int], bytes | np.ndarray],
    honour_exif: bool,
    k: int,
) -> list[str]:
    """Writes the report into `folder`, which is created if it does not exist. Returns the paths of its files.

    Always `predictions.csv` and `predictions.json`; with labels also `classes.csv`, `confusion_matrix.png` and
    `mistakes.png`. left_out: damaged images, which the JSON lists. image: returns image i as uint8 [h, w, 3], or
    encoded, which is rotated by its EXIF orientation if `honour_exif`.
    """
    from resnet_tpu.reports import pictures, style  # matplotlib takes a while to load

    texts = {
        "predictions.csv": predictions_csv(predictions, k=k),
        "predictions.json": predictions_json(predictions, k=k, left_out=left_out),
    }
    figures = {}
    if predictions.labelled.size:
        texts["classes.csv"] = class_csv(predictions)
        matrix = confusion_matrix(predictions)
        figures["confusion_matrix.png"] = pictures.draw_confusion(matrix, predictions.class_names)
        mistakes = worst_mistakes(predictions)
        images = [image(mistake.image) for mistake in mistakes]
        num_wrong = int(matrix.sum() - np.trace(matrix))
        figures["mistakes.png"] = pictures.draw_mistakes(mistakes, images, num_wrong=num_wrong, honour_exif=honour_exif)
    storage.make_dir(folder)
    if _has_report_with_labels(folder):  # from a report on other images
        for name in _WITH_LABELS - texts.keys() - figures.keys():
            storage.remove(storage.join(folder, name))
    for name, text in texts.items():
        storage.write_text(storage.join(folder, name), text)
    for name, figure in figures.items():
        style.write_png(figure, storage.join(folder, name))
    return [storage.join(folder, name) for name in (*texts, *figures)]


def _has_report_with_labels(folder: str) -> bool:
    """Whether the folder has an earlier report of `write_report`. Otherwise, files of these names are not ours."""
    path = storage.join(folder, "predictions.json")
    return storage.exists(path) and storage.read_range(path, 0, len(_LABELLED)) == _LABELLED


def _rank(predictions: Predictions, k: int) -> list[list[tuple[str, float]]]:
    """The name and probability, to six digits, of the `k` most probable classes of each image."""
    classes = top_k(predictions, k)
    probabilities = np.take_along_axis(predictions.probabilities, classes, axis=1)
    return [
        [(predictions.class_names[c], float(f"{probability:.6g}")) for c, probability in zip(*pair, strict=True)]
        for pair in zip(classes.tolist(), probabilities.tolist(), strict=True)
    ]
