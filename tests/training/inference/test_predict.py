"""Predicting files, folders and splits, given a single path to a model."""

import csv
import io
import json
import logging
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from resnet_tpu import cli, resnet_main
from resnet_tpu.checkpoints import reading
from resnet_tpu.data.folders import find_photos
from resnet_tpu.data.photos import split_at_random
from resnet_tpu.data.sources.image_files import FileSource, FolderSource
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.options.run_file import read_run
from resnet_tpu.training.inference.evaluate_run import evaluate_run
from resnet_tpu.training.inference.predict import names_of, predict
from resnet_tpu.training.loop import train


@pytest.fixture
def asked(trained_dir: Path) -> Config:
    return Config().replace(model_dir=str(trained_dir), num_cores=1, eval_batch_size=16)


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures are drawn of what is predicted."""
    monkeypatch.setattr("resnet_tpu.training.inference.predict.write_report", Mock())


def test_the_test_split_is_predicted_right_and_reported(asked: Config, trained_dir: Path) -> None:
    predictions = predict(asked, None)  # as without an argument: a split of the data
    score = predictions.accuracy
    assert score is not None
    assert (score.num_images, score.top_1) == (9, 1.0)  # int(0.8 * 30) + int(0.1 * 30) of 30 leave 3 of each class
    np.testing.assert_allclose(predictions.probabilities.sum(1), 1, rtol=1e-5)
    report = trained_dir / "report" / "test"
    assert {path.name for path in report.iterdir()} == {
        "predictions.csv", "predictions.json", "classes.csv", "confusion_matrix.png", "mistakes.png"
    }  # fmt: skip
    assert json.loads((report / "predictions.json").read_text())["accuracy"]["top_1"] == 1.0


def test_other_data_are_counted_anew(
    unreported: None, trained_dir: Path, coloured_photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = shutil.copytree(coloured_photos, tmp_path / "more")
    for photo in sorted(raw.glob("*/*")):
        shutil.copy(photo, photo.with_stem(f"{photo.stem}_again"))
    images = sum(len(names) for names in split_at_random(find_photos(str(raw)).photos).values())
    assert cli.main(["predict", str(trained_dir), f"--data_dir={raw}", "--split=train", "--num_cores=1"]) == 0
    assert f"{round(0.8 * images)} labelled images: top-1" in capsys.readouterr().out
    own = read_run(str(trained_dir))
    assert own
    added = Config().replace(**own.values).replace(data_dir=str(raw), model_dir=str(trained_dir), num_cores=1)
    assert added.data.num_train_images  # of the training, for the length of its epochs
    assert len(predict(added, split="train").names) == round(0.8 * images)
    assert len(predict(added.replace(num_train_images=5), split="train").names) == 5


def test_the_report_of_a_run_is_on_its_own_images(
    asked: Config, trained_dir: Path, coloured_photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model_dir, other = shutil.copytree(trained_dir, tmp_path / "run"), shutil.copytree(coloured_photos, tmp_path / "b")
    asked = asked.replace(model_dir=str(model_dir))
    predict(asked, split="validation")
    report = model_dir / "report" / "validation" / "predictions.json"
    own = report.read_text()
    assert predict(asked.replace(data_dir=str(other)), split="validation").names
    assert report.read_text() == own
    assert f"No report is written: {other} are not the images of the run. For a report, name a" in caplog.text
    predict(asked.replace(data_dir=str(other)), split="validation", output_dir=tmp_path / "found")
    assert (tmp_path / "found" / "predictions.json").exists()


def test_the_pruning_fork_asks_for_a_pickle_of_the_validation_images(
    trained_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"--lth_prediction_result_dir={tmp_path}"
    own = ["--mode=predict", f"--model_dir={trained_dir}", "--num_cores=1", where]
    assert resnet_main.main(own) == 0
    images = pickle.loads((tmp_path / "predictions").read_bytes())
    assert len(images) == 9  # int(0.1 * 30) of each of three classes
    assert all(image["label"] == image["classes"] for image in images)
    assert "labelled images: top-1" in capsys.readouterr().out


@pytest.mark.parametrize("batch_size", [*(pytest.param(size, marks=pytest.mark.long) for size in (1, 64)), 7])
def test_the_batch_size_does_not_matter(unreported: None, asked: Config, tmp_path: Path, batch_size: int) -> None:
    whole = predict(asked, output_dir=str(tmp_path))
    other = predict(asked.replace(predict_batch_size=batch_size), output_dir=str(tmp_path))
    assert other.names == whole.names
    # another batch size changes the order of float32 sums
    np.testing.assert_allclose(other.probabilities, whole.probabilities, rtol=0, atol=1e-5)


@pytest.mark.long
def test_a_network_of_more_classes_than_the_data_name_is_evaluated_and_predicts(
    tiny: Callable[..., Config], coloured_photos: Path, tmp_path: Path
) -> None:
    config = tiny(tmp_path, data_dir=str(coloured_photos), num_label_classes=5, train_steps=1, mode="train")
    train(config)
    assert 0 <= evaluate_run(config)["top_1_accuracy"] <= 1
    predictions = predict(config, coloured_photos / "red" / "00.jpg")
    assert predictions.class_names == ["blue", "green", "red", "3", "4"]


def test_fewer_test_images_are_of_all_classes_as_those_of_an_evaluation(
    unreported: None, asked: Config, tmp_path: Path
) -> None:
    whole = predict(asked, output_dir=str(tmp_path))
    fewer = predict(asked.replace(num_test_images=3), output_dir=str(tmp_path))
    assert fewer.names == whole.names[::3]
    assert fewer.labels is not None
    assert sorted(fewer.labels) == [0, 1, 2]


def test_files_and_folders_need_one_path_only(
    asked: Config, trained_dir: Path, coloured_photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"  # contains nothing but the checkpoint
    shutil.copytree(reading.find(str(trained_dir)), moved / Path(reading.find(str(trained_dir))).name)
    unlabelled = tmp_path / "holiday" / "x.png"
    unlabelled.parent.mkdir()
    cv2.imwrite(str(unlabelled), np.full((40, 30, 3), (50, 50, 210), np.uint8))
    images = [str(coloured_photos / "blue"), str(unlabelled)]
    predictions = predict(asked.replace(model_dir=str(moved)), images, output_format="csv", top_k=2)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 31
    assert {row["class_1"] for row in rows[:30]} == {"blue"}
    assert (rows[30]["label"], rows[30]["class_1"]) == ("", "red")
    assert predictions.labels is not None
    assert predictions.labels.tolist() == [0] * 30 + [-1]
    assert not (moved / "report").exists()


def test_a_folder_names_a_class_in_any_form(asked: Config, coloured_photos: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "gru\u0308n" / "1.jpg", tmp_path / "blue" / "a\\green\\2.jpg"]
    for path in paths:
        path.parent.mkdir()
        shutil.copy(coloured_photos / "green" / "00.jpg", path)
    source = FileSource([str(path) for path in paths], ["blue", "gr\u00fcn", "green"])
    assert [source[i].label for i in range(2)] == [1, 0]


def test_a_checkpoint_alone_is_read_with_the_options_of_its_run(
    trained_dir: Path, coloured_photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_dir, run)
    newest = reading.find(str(run))
    for place in (run / "config.json", Path(newest) / "meta" / "data.json"):  # as if it had been trained with them
        place.write_text(place.read_text().replace('"resize_method": "bicubic"', '"resize_method": "bilinear"'))
    (Path(newest) / "checksums.json").unlink(missing_ok=True)  # which would reveal the change
    of_run, alone = read_run(str(run)), read_run(newest)
    assert of_run is not None
    assert alone is not None
    assert alone.values == of_run.values
    assert alone.values["resize_method"] == "bilinear"

    def shown(path: str, *options: str) -> str:
        arguments = ["predict", path, str(coloured_photos / "red"), "--format=csv", "--num_cores=1", *options]
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    assert shown(newest) == shown(str(run))
    assert shown(newest) != shown(newest, "--resize_method=bicubic")
    assert shown(newest) != shown(newest, "--crop_pct=0.5")


def test_predictions_as_json_and_as_a_table(
    asked: Config, coloured_photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = str(coloured_photos / "green" / "00.jpg")
    predict(asked, [photo], output_format="json", top_k=1)
    assert json.loads(capsys.readouterr().out)["images"][0]["predictions"][0]["class"] == "green"
    predict(asked, [photo])
    assert "green" in capsys.readouterr().out


def test_rotated_photos_are_turned_upright(asked: Config, coloured_photos: Path, tmp_path: Path) -> None:
    from PIL import Image

    with Image.open(coloured_photos / "red" / "03.jpg") as file:
        photo = file.copy()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated clockwise by 90 degrees for display
    photo.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    photo.save(tmp_path / "upright.png")
    turned, upright = (predict(asked, [str(tmp_path / name)]) for name in ("turned.png", "upright.png"))
    np.testing.assert_array_equal(turned.probabilities, upright.probabilities)


def test_an_image_that_cannot_be_decoded_is_named_or_left_out(
    asked: Config,
    coloured_photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes((coloured_photos / "red" / "00.jpg").read_bytes()[:200])
    images = [str(broken), str(coloured_photos / "red" / "01.jpg")]
    with pytest.raises(UserError, match=r"broken\.jpg"):
        predict(asked, images)
    lenient = asked.replace(skip_bad_records=True)
    predictions = predict(lenient, images)
    assert [Path(name).name for name in predictions.names] == ["01.jpg"]
    assert "01.jpg" in capsys.readouterr().out  # the output says which of the two images it is
    named, total = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert named.startswith(f"Left out: Image {broken}: got 200 bytes that cannot be decoded")
    assert total == "Damaged images left out: 1"
    predict(lenient, images, output_dir=str(tmp_path / "found"))
    assert json.loads((tmp_path / "found" / "predictions.json").read_text())["left_out"] == [str(broken)]
    with pytest.raises(UserError, match=r"^Images: got only damaged ones, expected at least one that can be read\."):
        predict(lenient, images[0], output_dir=str(tmp_path / "report"))
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["nowhere.jpg"], r"Image: got nowhere\.jpg, expected an existing file or folder\."),
        (["{empty}"], r"Folder: got .*, expected images in it"),
        (["{empty}/list.csv"], r"Image: got .*list\.csv, expected an image or a folder of images\. Give the images"),
        ([], r"Images: got none, expected at least one\. To predict a split of the data, leave them out\."),
    ],
)
def test_predict_names_missing_inputs(asked: Config, tmp_path: Path, images: list[str], message: str) -> None:
    (tmp_path / "list.csv").touch()
    with pytest.raises(UserError, match=message):
        predict(asked, [image.format(empty=tmp_path) for image in images])


def test_unwritable_report_is_refused_before_predicting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config().replace(model_dir=tmp_path, data_dir="synthetic")
    trained = Mock(
        path=f"{tmp_path}/checkpoints/7", class_names=["a", "b"], config=config, **{"belongs_to.return_value": True}
    )
    monkeypatch.setattr("resnet_tpu.training.inference.predict.load_newest", lambda _: trained)
    monkeypatch.setattr(
        "resnet_tpu.training.inference.predict.predict_source", lambda *_, **__: pytest.fail("it has predicted")
    )
    monkeypatch.setattr("os.access", lambda *_, **__: False)  # whatever the permissions, root may write
    with pytest.raises(
        UserError, match=r"Writing to .*/report/test: got permission denied, .*another folder as output"
    ):
        predict(config)


def test_a_model_dir_without_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a model_dir or a checkpoint in it"):
        predict(Config().replace(model_dir=str(tmp_path)))


def test_names_of_photos_are_known_without_reading_them(coloured_photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FolderSource(DataConfig(data_dir=str(coloured_photos)), "validation")
    names = [source[i].name for i in range(len(source))]
    monkeypatch.setattr(Path, "read_bytes", None)
    assert names_of(source, [1, 0]) == [names[1], names[0]]


def test_names_of_remote_images_are_asked_for_together() -> None:
    source, asked = Mock(), []

    def fetch(numbers: Sequence[int]) -> list[Sample]:
        asked.append(len(numbers))
        return [Sample(b"", 0, f"{i}.jpg") for i in numbers]

    source.fetch = fetch
    assert names_of(source, list(range(130))) == [f"{i}.jpg" for i in range(130)]
    assert asked == [64, 64, 2]
