"""A refused command leaves nothing behind, and the command that its message suggests works."""

import re
import shlex
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.errors import UserError
from resnet_tpu.serving.export.bundle import newest_bundle, open_bundle

TRAIN = [
    "train", "--resnet_depth=8", "--resnet_width=4", "--image_size=16", "--precision=float32", "--train_steps=2",
    "--train_batch_size=8", "--eval_batch_size=8", "--steps_per_eval=2", "--save_checkpoints_steps=1", "--num_cores=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, blank_curves: None) -> Path:
    """A folder with `photos`, a training on them in `run`, and its weights in the original's format in `original`."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(10):
            photo = rng.integers(0, 256, (20, 20, 3), np.uint8)
            cv2.imwrite(str(folder / "photos" / name / f"{number}.jpg"), photo)
    assert cli.main([*TRAIN, f"--data_dir={folder}/photos", f"--model_dir={folder}/run"]) == 0
    assert cli.main(["convert", f"{folder}/run", f"{folder}/original", "--to=tf1"]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with copies of `run` and `original`, and a file called `file`."""
    for name in ("run", "original"):
        shutil.copytree(made / name, tmp_path / name)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data_dir={photos}", "--init_from=no.pth"], "Weights: got no.pth, which does not exist"),
        (["train", "--data_dir={photos}", "--freeze=no/*"], "freeze: got no/*, expected a pattern that matches"),
        (["train", "--data_dir={photos}", "--batch_norm_group_size=3"], "batch_norm_group_size: got 3"),
        (["train", "--data_dir={photos}", "--train_batch_size=3"], "train_batch_size: got 3, expected a multiple"),
        (["train", "--data_dir=no"], "data_dir: got 'no', expected an existing folder"),
        (["train", "--data_dir={photos}", "--model_dir=file/new"], "Writing to file/new: got a folder below the file"),
        (["prune", "run", "--density=20", "--output_dir=file"], "Writing to file"),
        (["prune", "lost", "--density=20"], "data_dir: got 'no', expected an existing folder"),
        (["prune", "run", "--density=20", "--num_cores=3"], "train_batch_size: got 8, expected a multiple of the 3"),
        (["export", "lost", "new", "--verify", "--forms=onnx"], "data_dir: got 'no', expected an existing folder"),
        (["export", "run", "new", "no.jpg", "--forms=onnx"], "Image: got no.jpg, expected an existing file"),
        (["export", "lost", "new/er", "{photos}", "--forms=int8"], "Calibration of int8: data_dir: got 'no', expected"),
        (["export", "run", "file/new", "--forms=onnx"], "Writing to file/new: got a folder below the file"),
        (["predict", "run", "{photos}", "--output_dir=file"], "Writing to file: got a file, expected a folder"),
        (["convert", "run", "new/a.safetensors"], "stem: got small, expected imagenet"),
        (["convert", "run", "file/new", "--to=tf1"], "Writing to {here}/file: got a file"),
        (["bench", "dawnbench", "--data_dir={photos}", "--train_batch_size=3"], "train_batch_size: got 3"),
        (["bench", "dawnbench"], "data_dir: got nothing, expected TFRecords"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nothing_is_created_before_the_checks_pass(
    arguments: list[str], message: str, made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "lost" in arguments:  # a training whose photos are gone
        Path("run").rename("lost")
        for file in (*Path("lost").glob("config.json"), *Path("lost").rglob("meta/data.json")):
            file.write_text(file.read_text().replace(f"{made}/photos", "no"))
        for file in Path("lost").rglob("checksums.json"):
            file.unlink()
    given = [argument.format(photos=made / "photos") for argument in arguments]
    if given[0] == "train":
        given = [*TRAIN, "--model_dir=new", *given[1:]]
    elif given[:2] == ["bench", "dawnbench"]:
        given = [*given[:2], *TRAIN[1:], "--mode=train", "--model_dir=new", *given[2:]]
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    assert cli.main(given) == 2
    assert message.format(here=here) in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


def test_a_bundle_that_fails_the_comparison_is_not_left(
    here: Path, made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnet_tpu.serving.export.verify.TOLERANCE", -1.0)
    assert cli.main(["export", "run", "new", f"{made}/photos", "--forms=onnx"]) == 2
    assert "logits that differ by" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("new").exists()


@pytest.mark.parametrize("verb", ["predict", "eval", "export", "prune", "compact"])
def test_a_checkpoint_of_the_original_is_to_be_converted(
    verb: str, here: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "original", *(["new"] if verb in ("export", "compact") else [])]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "Checkpoint: got original, a TF1 checkpoint, as written by the original program" in said
    command = re.search(r"Convert it: resnet-tpu (.*), then give (.*)\.$", said)
    assert command
    assert command[1] == "convert original original_converted"
    if verb == "predict":
        assert cli.main(shlex.split(command[1])) == 0
        assert cli.main(["predict", command[2], f"{made}/photos/a"]) == 0


def test_the_words_for_files_and_odd_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in {
        "model.ckpt-3.index": f"convert {tmp_path}/model.ckpt-3.index {tmp_path}/model.ckpt-3_converted",
        "two words.pth": f"convert '{tmp_path}/two words.pth' '{tmp_path}/two words.pth_converted'",
    }.items():
        (tmp_path / name).write_bytes(b"")
        assert cli.main(["eval", str(tmp_path / name)]) == 2
        assert f"Convert it: resnet-tpu {command}, then give " in capsys.readouterr().err


@pytest.mark.parametrize("path", ["run", "original", pytest.param("run/checkpoints/2", marks=pytest.mark.long)])
def test_what_was_not_exported_is_to_be_exported(path: str, here: Path) -> None:
    with pytest.raises(UserError, match=rf"Bundle: got {path}, a .*Run export first: .*; this makes (\S+)\.$") as error:
        open_bundle(path)
    found = re.search(r"Run export first: (.*); this makes (\S+)\.$", str(error.value))
    assert found
    for command in found[1].split(" && "):
        assert cli.main(shlex.split(command)[1:]) == 0
    assert newest_bundle(found[2])
