"""Prediction reports: tables, CSV and JSON have the same contents, and pictures in the folder can be read."""

import csv
import dataclasses
import functools
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from rich.table import Table

from resnet_tpu.reports.prediction_report import (
    accuracy_text,
    class_csv,
    class_table,
    prediction_text,
    predictions_csv,
    predictions_json,
    predictions_table,
    write_pickle,
    write_report,
)
from resnet_tpu.reports.predictions import Predictions, class_scores, top_k

NAMES = ["daisy", 'dandelion, "wild"', "[red]roses", "花", "tulips", "sunflowers"]


@pytest.fixture
def predictions() -> Predictions:
    rng = np.random.default_rng(5)
    labels = rng.integers(-1, 6, 60).astype(np.int32)
    logits = rng.normal(size=(60, 6)) + 2 * np.eye(6)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Predictions([f"photos/[x]/{i}.jpg" for i in range(60)], probabilities.astype(np.float32), labels, NAMES)


def _text(table: Table) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def test_csv_and_json_hold_the_most_probable_classes(predictions: Predictions):
    rows = list(csv.DictReader(io.StringIO(predictions_csv(predictions, k=4))))
    document = json.loads(predictions_json(predictions, k=4))
    for i, (row, image, classes) in enumerate(zip(rows, document["images"], top_k(predictions, 4), strict=True)):
        expected = [(NAMES[c], pytest.approx(predictions.probabilities[i, c], rel=1e-5)) for c in classes]
        assert [(p["class"], p["probability"]) for p in image["predictions"]] == expected
        assert [(row[f"class_{r}"], float(row[f"probability_{r}"])) for r in range(1, 5)] == expected
        assert row["name"] == image["name"] == predictions.names[i]
        assert image["label"] == (row["label"] or None) == predictions.true_name(i)
        right = {"": None, "true": True, "false": False}[row["correct"]]
        assert right == (None if image["label"] is None else image["label"] == NAMES[classes[0]])
    score = predictions.accuracy
    assert score is not None
    assert document["accuracy"] == score._asdict()


def test_fewer_classes_than_asked_for(predictions: Predictions):
    two = Predictions(["a"], np.array([[0.25, 0.75]], np.float32), None, ["cat", "dog"])
    assert predictions_csv(two, k=5).splitlines() == [
        "name,label,correct,class_1,probability_1,class_2,probability_2",
        "a,,,dog,0.75,cat,0.25",
    ]
    assert json.loads(predictions_json(two, k=5))["accuracy"] is None


def test_control_characters_of_names_are_shown_not_obeyed():
    probabilities = np.array([[0.75, 0.25]], np.float32)
    predictions = Predictions(["\x1b[8m.jpg"], probabilities, None, ["\x1b]0;A\x07", "b\r"])
    assert "\x1b" not in (text := _text(predictions_table(predictions, k=2)))
    assert "\\x1b[8m.jpg" in text
    assert "\\x1b]0;A\\x07" in _text(class_table(dataclasses.replace(predictions, labels=np.array([0]))))
    assert prediction_text(predictions, k=2) == "\\x1b]0;A\\x07   75.0%\nb\\x0d          25.0%\n"


def test_the_probabilities_of_one_photo_stand_below_each_other():
    one = Predictions(["a"], np.array([[0.75, 0.25]], np.float32), None, ["漢字", "latin"])
    assert prediction_text(one, k=5) == "漢字    75.0%\nlatin   25.0%\n"


def test_table_shows_names_as_they_are(predictions: Predictions):
    text = _text(predictions_table(predictions, k=3))
    for i in range(10):
        (line,) = (line for line in text.splitlines() if f"photos/[x]/{i}.jpg" in line)
        assert (predictions.true_name(i) or " ? ") in line
        assert NAMES[predictions.predicted[i]] in line
    unlabelled = dataclasses.replace(predictions, labels=None)
    assert "true class" not in _text(predictions_table(unlabelled, k=3))
    assert accuracy_text(unlabelled) == ""
    assert "labelled images: top-1" in accuracy_text(predictions)


def test_class_table_and_csv_hold_the_scores(predictions: Predictions):
    rows = list(csv.DictReader(io.StringIO(class_csv(predictions))))
    text = _text(class_table(predictions))
    for row, score in zip(rows, class_scores(predictions), strict=True):
        assert (row["class"], int(row["support"]), float(row["f1"])) == (score.name, score.support, score.f1)
        (line,) = (line for line in text.splitlines() if score.name in line)
        assert f"{score.recall:.1%}" in line
    weakest = min(class_scores(predictions), key=lambda score: score.f1).name
    few = _text(class_table(predictions, limit=2))
    assert weakest in few
    assert "The 2 weakest of 6 classes" in few


def test_a_class_without_images_has_no_scores_and_is_none_of_the_weakest():
    probabilities = np.eye(3, dtype=np.float32)[[0, 0, 2]]
    found = Predictions(["1", "2", "3"], probabilities, np.array([0, 0, 2], np.int32), ["cat", "dog", "fox"])
    assert class_csv(found).splitlines()[1:] == ["cat,2,2,1.0,1.0,1.0", "dog,0,0,,,", "fox,1,1,1.0,1.0,1.0"]
    text = _text(class_table(found, limit=2))
    assert "The 2 weakest of 3 classes" in text
    assert "dog" not in text


def test_only_wrong_predictions_are_marked_in_the_table(predictions: Predictions):
    styles = [row.style for row in predictions_table(predictions, k=3).rows]
    assert styles == ["red" if predictions.is_right(i) is False else None for i in range(60)]
    assert "red" in styles
    assert None in styles


def test_report_folder(predictions: Predictions, tmp_path: Path):
    def image(i: int) -> bytes:
        encoded = io.BytesIO()
        Image.new("RGB", (40 + i, 30), (4 * i, 255 - 4 * i, 128)).save(encoded, "JPEG")
        return encoded.getvalue()

    paths = write_report(str(tmp_path / "report"), predictions, left_out=[], image=image, honour_exif=True, k=5)
    written = ["predictions.csv", "predictions.json", "classes.csv", "confusion_matrix.png", "mistakes.png"]
    assert paths == [str(tmp_path / "report" / name) for name in written]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(written)
    assert (tmp_path / "report" / "predictions.csv").read_text() == predictions_csv(predictions, k=5)
    for name in written[-2:]:
        with Image.open(tmp_path / "report" / name) as picture:
            assert min(picture.size) > 400


def test_pickle_of_the_pruning_fork(predictions: Predictions, tmp_path: Path):
    for found, labels in ((predictions, predictions.labels), (dataclasses.replace(predictions, labels=None), None)):
        path = write_pickle(str(tmp_path / "new" / "folder"), found)
        assert path == str(tmp_path / "new" / "folder" / "predictions")
        with Path(path).open("rb") as file:
            images = pickle.load(file)
        assert [image["label"].dtype for image in images] == [np.int32] * 60
        assert [image["label"] for image in images] == ([-1] * 60 if labels is None else labels.tolist())
        assert [image["classes"] for image in images] == predictions.predicted.tolist()
        np.testing.assert_array_equal([image["probabilities"] for image in images], predictions.probabilities)


def test_report_without_labels_has_no_figures(predictions: Predictions, tmp_path: Path):
    (tmp_path / "mine.txt").touch()
    write = functools.partial(
        write_report, str(tmp_path), left_out=[], image=lambda _: np.zeros((9, 9, 3), np.uint8), honour_exif=False, k=5
    )
    unlabelled = dataclasses.replace(predictions, labels=None)
    for name in ("classes.csv", "confusion_matrix.png", "mistakes.png"):
        (tmp_path / name).touch()
        for _ in range(2):
            paths = write(unlabelled)
            assert [Path(path).name for path in paths] == ["predictions.csv", "predictions.json"]
        (tmp_path / name).unlink()  # it was somebody's, not of an earlier report
    write(predictions)
    write(unlabelled)
    assert {path.name for path in tmp_path.iterdir()} == {"predictions.csv", "predictions.json", "mine.txt"}
