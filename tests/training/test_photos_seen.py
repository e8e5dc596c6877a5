"""Photos that were trained on are found again when they turn up in another split."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import reading
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.split import split_files
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.training.loop import train
from resnet_tpu.training.photos_seen import inherit_photos, remember_photos, warn_of_training_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 100 files, which nobody opens."""
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(100):
            (tmp_path / "photos" / name / f"{number:03}.jpg").touch()
    return tmp_path / "photos"


def test_photos_of_another_split_that_were_trained_on_are_counted(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, model_dir = DataConfig(data_dir=str(photos)), str(tmp_path)
    remember_photos(model_dir, open_source(data, "train"))
    for split in ("validation", "test"):
        warn_of_training_photos(model_dir, open_source(data, split), split)
    assert not caplog.records
    before = [f"{number:03}.jpg" for number in range(100)]
    (photos / "b" / "0.jpg").touch()  # one more, and all of class b are split anew
    moved = {*split_files([*before, "0.jpg"])[2]} & {*split_files(before)[0]}
    warn_of_training_photos(model_dir, open_source(data, "test"), "test")
    (record,) = caplog.records
    assert f"was trained on {len(moved)} of these 21 test photos" in record.getMessage()
    remember_photos(model_dir, open_source(data, "train"))  # trained on both, as a run that was resumed
    warn_of_training_photos(model_dir, open_source(data, "test"), "test")
    assert caplog.records[1].getMessage() == record.getMessage()
    (tmp_path / "link").symlink_to(photos)
    warn_of_training_photos(model_dir, open_source(DataConfig(data_dir=str(tmp_path / "link")), "test"), "test")
    assert len(caplog.records) == 3
    kept = tmp_path / "training_photos.json"
    kept.write_text(kept.read_text().replace(str(photos), str(tmp_path / "link")))  # as it was written before
    warn_of_training_photos(model_dir, open_source(DataConfig(data_dir=str(tmp_path / "link")), "test"), "test")
    assert len(caplog.records) == 4
    photos.rename(tmp_path / "others")  # photos of the same names elsewhere are others
    warn_of_training_photos(model_dir, open_source(DataConfig(data_dir=str(tmp_path / "others")), "test"), "test")
    assert len(caplog.records) == 4


def test_a_run_that_goes_on_with_more_photos_has_seen_the_earlier_ones_too(photos: Path, tmp_path: Path) -> None:
    data, seen = DataConfig(data_dir=str(photos)), []
    for _ in range(2):
        remember_photos(str(tmp_path), open_source(data, "train"))
        seen.append({*json.loads((tmp_path / "training_photos.json").read_text())[str(photos)]})
        for number in range(50):  # all of class b are split anew
            (photos / "b" / f"{number}.jpg").touch()
    assert seen[0] < seen[1]


def test_weights_take_along_what_they_were_trained_on(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    data = DataConfig(data_dir=str(photos))
    remember_photos(str(first), open_source(data, "train"))
    inherit_photos(str(second), "no/run")
    assert not list(second.iterdir())
    inherit_photos(str(second), str(first / "checkpoints" / "7"))
    (photos / "b" / "0.jpg").touch()
    warn_of_training_photos(str(second), open_source(data, "validation"), "validation")
    assert "The run was trained on" in caplog.text


def test_a_training_from_weights_has_seen_their_photos(
    tiny: Callable[..., Config], trained_dir: Path, coloured_photos: Path, tmp_path: Path
) -> None:
    others = str(shutil.copytree(coloured_photos, tmp_path / "others"))
    data: dict[str, Any] = {"data_dir": others, "num_label_classes": None, "num_train_images": None}
    train(tiny(tmp_path / "run", **data, num_eval_images=None, train_steps=1, resnet_checkpoint=str(trained_dir)))
    seen = json.loads((tmp_path / "run" / "training_photos.json").read_text())
    assert seen.keys() == {str(coloured_photos), others}


def test_an_attempt_without_a_checkpoint_has_seen_nothing(
    tiny: Callable[..., Config], coloured_photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos, run = Path(shutil.copytree(coloured_photos, tmp_path / "photos")), tmp_path / "run"
    run.mkdir()
    remember_photos(str(run), open_source(DataConfig(data_dir=str(photos)), "train"))  # and killed
    for folder in photos.iterdir():
        shutil.copy(folder / "00.jpg", folder / "0.jpg")
    data: dict[str, Any] = {"data_dir": str(photos), "num_label_classes": None, "num_train_images": None}
    config = tiny(run, **data, num_eval_images=None, train_steps=1)
    train(config)
    assert "was trained on" not in caplog.text
    before = (run / "training_photos.json").read_text()
    shutil.copy(next(photos.iterdir()) / "00.jpg", next(photos.iterdir()) / "1.jpg")
    train(config)  # nothing to train
    assert (run / "training_photos.json").read_text() == before


def test_splits_that_folders_give_are_not_remembered(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "split" / "train")
    remember_photos(str(tmp_path), open_source(DataConfig(data_dir=str(tmp_path / "split")), "train"))
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("content", ["[", "7", "[7]", '{"a": [7]}'])
def test_a_damaged_list_of_photos_is_as_none(
    content: str, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "training_photos.json").write_text(content)
    data = DataConfig(data_dir=str(photos))
    warn_of_training_photos(str(tmp_path), open_source(data, "test"), "test")
    remember_photos(str(tmp_path), open_source(data, "train"))
    warn_of_training_photos(str(tmp_path), open_source(data, "train"), "validation")
    (record,) = caplog.records
    assert "was trained on 160 of these 160" in record.getMessage()


def test_eval_and_predict_warn(
    trained_dir: Path, coloured_photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, more = str(tmp_path / "run"), tmp_path / "more"
    shutil.copytree(trained_dir, run)
    shutil.copytree(coloured_photos, more)
    for folder in more.iterdir():
        shutil.copy(folder / "00.jpg", folder / "000.jpg")
    seen = Path(run, "training_photos.json")
    seen.write_text(seen.read_text().replace(str(coloured_photos), str(more)))  # as if it had been trained on these
    assert cli.main(["eval", run, f"--data_dir={more}", "--num_cores=1"]) == 0
    assert "validation photos, so the accuracy will be too high" in capsys.readouterr().err
    assert cli.main(["predict", reading.find(run), f"--data_dir={more}", "--split=test", "--num_cores=1"]) == 0
    assert "test photos, so the accuracy will be too high" in capsys.readouterr().err
