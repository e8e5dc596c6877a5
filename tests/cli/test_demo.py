"""The demo: from scanned digits to a table, with the data at hand."""

import csv
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet_tpu import cli
from resnet_tpu.cli.demo import _show
from resnet_tpu.data.prepare.digits import write_digits
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.lengths import lengths_of

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="the demo's digits come with the extra [demo]")


@pytest.mark.long
def test_digits_are_read_with_at_least_97_percent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "resnet_tpu", "demo", f"--output_dir={tmp_path}"]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}  # as outside of tests: eight devices take twice as long
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"test accuracy .* (\S+)%", done.stdout)
    assert float(accuracy) >= 97
    assert "train PHOTOS\n" in done.stdout
    report = tmp_path / "model" / "report"
    for path in (report / "curves.png", report / "test" / "confusion_matrix.png"):
        with Image.open(path) as picture:
            assert min(picture.size) > 200
    assert (report / "test" / "mistakes.png").exists()  # of any size, as there may be no mistakes
    with (report / "test" / "predictions.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + 188  # the test share of 1797 scans in ten classes


def test_few_photos_get_a_small_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        _write_photos(tmp_path / "photos" / name, 12)
    configs: list[Config] = []

    def stop(config: Config) -> None:
        configs.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("resnet_tpu.training.loop.train", stop)
    assert cli.main(["demo", f"--data_dir={tmp_path / 'photos'}", f"--output_dir={tmp_path / 'out'}"]) == 130
    assert lengths_of(configs[0].replace(num_train_images=18)).per_eval == 1


def test_commands_to_copy_are_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/my env/bin/resnet-tpu"])
    monkeypatch.setattr("shutil.which", lambda _: None)
    _show(str(tmp_path), str(tmp_path), 0.5)
    assert "  '/my env/bin/resnet-tpu' train PHOTOS\n" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "missing"), [(1, "train, validation"), (2, "validation")])
def test_too_few_photos_are_refused_before_training(
    count: int, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        _write_photos(tmp_path / "photos" / name, count)
    assert cli.main(["demo", f"--data_dir={tmp_path / 'photos'}", f"--output_dir={tmp_path / 'out'}"]) == 2
    assert f"got none for {missing}, expected some for each split. Give more photos" in capsys.readouterr().err
    assert not (tmp_path / "out" / "model").exists()


def _write_photos(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.random.default_rng((number, *folder.name.encode())).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{folder.name}{number}.jpg")


def test_digits_are_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # a demo that is killed leaves none half written
        patch.setattr(Path, "replace", lambda self, to: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_digits(str(tmp_path))
    assert not list(tmp_path.rglob("*.jpg"))
    write_digits(str(tmp_path))
    files = sorted(tmp_path.rglob("*.jpg"))
    assert len(files) == 1797
    assert not list(tmp_path.rglob("*.partial"))
    assert {path.parent.name for path in files} == set("0123456789")
    times = [path.stat().st_mtime_ns for path in files]
    write_digits(str(tmp_path))
    assert [path.stat().st_mtime_ns for path in files] == times


def test_digits_do_not_go_into_a_folder_called_gs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--output_dir=gs://bucket/demo"]) == 2
    assert "Folder of digits: got gs://bucket/demo/photos, expected a folder on this" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_digits_are_not_mixed_with_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    (photos / "mine").mkdir(parents=True)
    assert cli.main(["demo", f"--output_dir={tmp_path}"]) == 2
    assert f"Folder {photos}: got mine in it, expected a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "mine"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--data_dir=nowhere", f"--output_dir={tmp_path}"]) == 2
    assert "nowhere" in capsys.readouterr().err
