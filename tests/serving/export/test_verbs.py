"""`export` writes a bundle and compares it with the network; `predict` works with both."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordWriter
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.serving.export.bundle import Bundle, find_bundle, open_bundle
from resnet_tpu.serving.export.verify import Expected, open_expected, verify
from resnet_tpu.training.inference.predict import open_images
from resnet_tpu.training.inference.trained import Trained


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of pictures named after two of the classes, and one that is not a class."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name in ("1", "3", "other"):
        (folder / name).mkdir()
        for number in range(3):
            cv2.imwrite(str(folder / name / f"{number}.png"), rng.integers(0, 256, (20, 24, 3), np.uint8))
    return folder


@pytest.fixture(scope="module")
def exported(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    assert cli.main(["export", str(model_dir), str(folder), "--forms=onnx,stablehlo", "--name=noise"]) == 0
    return folder


def test_export_shows_files_and_how_the_forms_compare(
    model_dir: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my [bold] bundles"
    arguments = ["export", str(model_dir), str(folder), str(pictures), "--forms=onnx", "--num_cores=1"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "model.onnx" in shown
    assert "on 9 images" in shown
    assert "9 of 9" in shown
    path = open_bundle(folder).path
    assert f"{path}  holds onnx.\nPredict with it: resnet-tpu predict '{path}' IMAGE\n" in shown
    assert shown.endswith(f"Serve it: resnet-tpu serve '{path}'\n")
    assert open_bundle(folder).name == "resnet"


def test_uses_of_a_saved_model_alone_are_not_ours(
    model_dir: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = open_bundle(exported)
    told = dataclasses.replace(whole, forms=("savedmodel",))
    monkeypatch.setattr("resnet_tpu.serving.export.bundle.open_bundle", lambda _: told)
    monkeypatch.setattr("resnet_tpu.serving.export.export.export_run", lambda *_, **__: told.path)
    assert cli.main(["export", str(model_dir), str(tmp_path), "--forms=onnx", "--num_cores=1"]) == 0
    assert capsys.readouterr().out.endswith(f"{told.path}  holds savedmodel.\nServe it with TensorFlow Serving.\n")


@pytest.mark.parametrize("option", ["--split=validation", "--verify_images=40"])
def test_what_to_compare_on_requires_a_comparison(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", "run", str(tmp_path / "exported"), "--forms=stablehlo", option]) == 2
    assert "expected it only with --verify. Add --verify, or leave it out." in capsys.readouterr().err


def test_export_compares_on_a_split(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_newer(_: Config) -> None:
        pytest.fail("A training may have saved a newer checkpoint than that which the bundle is compared with.")

    monkeypatch.setattr("resnet_tpu.serving.export.export.load_newest", find_newer)
    arguments = ["export", str(model_dir), str(tmp_path), "--forms=int8,onnx", "--verify_images=40", "--num_cores=1"]
    assert cli.main(arguments) == 0  # int8 is always compared
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split("│")[1].strip(): line for line in lines if line.startswith("│")}
    assert "40 of 40" in rows["onnx"]
    assert "%" in rows["int8"]


def test_a_bundle_that_is_not_what_was_trained_never_appears(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def fail(bundle: Bundle, _: Expected) -> None:
        seen.append((bundle.forms, find_bundle(str(tmp_path))))
        raise UserError("Form onnx", "logits that differ", "the same", "Nothing was exported.")

    monkeypatch.setattr("resnet_tpu.serving.export.verify.verify", fail)
    arguments = ["export", str(model_dir), str(tmp_path), "--forms=onnx", "--verify", "--verify_images=4"]
    assert cli.main([*arguments, "--num_cores=1"]) == 2
    assert "Form onnx: got logits that differ" in capsys.readouterr().err
    assert seen == [(("onnx",), None)]
    assert list(tmp_path.iterdir()) == []


def test_a_form_that_computes_something_else_is_found(exported: Path, trained: Trained, pictures: Path) -> None:
    bundle = open_bundle(str(exported))
    source, _ = open_images(trained.config.data, [str(pictures)], "test", trained.class_names, trained.config.data)
    found = verify(bundle, Expected(trained, source, trained.config.data))
    assert [one.name for one in found] == ["trained network, float32", "stablehlo", "onnx"]
    assert all(one.same == one.num_images == 9 for one in found)
    assert found[0].top_1 is not None
    half = dataclasses.replace(trained, config=trained.config.replace(precision="bfloat16"))
    found = verify(bundle, Expected(half, source, trained.config.data))
    assert found[1].name == "trained network, bfloat16"
    assert found[1].logits > 10 * found[2].logits
    params = jax.tree.map(lambda leaf: leaf, trained.params)
    params["dense"]["bias"] = params["dense"]["bias"] + np.asarray([0, 0, 0, 1e-4], np.float32)
    shifted = dataclasses.replace(trained, params=params)
    with pytest.raises(UserError, match=r"Form stablehlo: got logits that differ by .*, expected at most 1e-05"):
        verify(bundle, Expected(shifted, source, trained.config.data))


def test_a_bundle_predicts_what_the_checkpoint_predicts(
    exported: Path, model_dir: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for path, how in (
        (model_dir, ["--num_cores=1"]), (exported, ["--form=onnx"]), (exported, ["--form=stablehlo"])
    ):  # fmt: skip
        report = tmp_path / how[0]
        arguments = ["predict", str(path), str(pictures), "--format=json", f"--output_dir={report}", *how]
        assert cli.main(arguments) == 0
        answers.append(json.loads(capsys.readouterr().out))
        assert {file.name for file in report.iterdir()} == {
            "predictions.csv", "predictions.json", "classes.csv", "confusion_matrix.png", "mistakes.png"
        }  # fmt: skip
    live, *forms = answers
    for own in forms:
        assert own["accuracy"] == live["accuracy"]
        for one, other in zip(own["images"], live["images"], strict=True):
            assert (one["name"], one["label"]) == (other["name"], other["label"])
            assert [ranked["class"] for ranked in one["predictions"]] == [
                ranked["class"] for ranked in other["predictions"]
            ]
            found, expected = ([ranked["probability"] for ranked in image["predictions"]] for image in (one, other))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_bundle_predicts_a_split(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", str(exported), "--split=validation", "--format=csv", "--predict_batch_size=3"]
    assert cli.main(arguments) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 8  # the num_eval_images of the training
    assert {row["label"] for row in rows} == {"0", "1", "2", "3"}


def test_damaged_images_are_left_out_when_asked(
    exported: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    images = [str(tmp_path / "broken.jpg"), str(pictures / "1" / "0.png")]
    assert cli.main(["predict", str(exported), *images, "--format=csv"]) == 2
    assert "broken.jpg" in capsys.readouterr().err
    assert cli.main(["predict", str(exported), *images, "--format=csv", "--skip_bad_records"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert cli.main(["predict", str(exported), images[0], "--skip_bad_records"]) == 2
    assert "Images: got only damaged ones" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "{model}", "--form=onnx"], "form: got onnx, expected no form for a checkpoint"),
        (["predict", "{model}", "a.jpg", "--split=train"], "split: got train, expected it only without images"),
        (["export", "{model}", "{nothing}/out", "a.jpg", "--split=test"], "split: got test, expected it only without"),
        (["predict", "{bundle}", "--form=int8"], "Form: got int8, expected one that"),
        (["predict", "{bundle}", "--no-export_moving_average"], "export_moving_average: got false, expected no choice"),
        (["predict", "{nothing}"], "expected a model_dir or a checkpoint in it"),
        (["predict", "{nothing}/model.onnx"], "expected a model_dir or a checkpoint in it. Train first"),
        (
            ["predict", "{version}/model.onnx"],
            "a file of an exported bundle, expected a model_dir or a checkpoint in it, or",
        ),
        (
            ["predict", "{version}/bundle.json"],
            "a file of an exported bundle, expected a model_dir or a checkpoint in it",
        ),
        (["export", "{nothing}", "{nothing}/out"], "expected a model_dir or a checkpoint in it"),
        (["export", "{model}", "{nothing}/out", "--forms=onyx"], "export_forms: got onyx"),
        (["export", "{model}", "{nothing}/out", "--name=a/b"], "model_name: got 'a/b', expected English letters,"),
        (["export", "{model}", "{nothing}/out", "--name=grün"], "model_name: got 'grün', expected English letters,"),
        (["export", "{model}"], "got no EXPORT_DIR"),
    ],
)
def test_what_does_not_fit_is_named(
    arguments: list[str], message: str, exported: Path, model_dir: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    places = {"model": model_dir, "bundle": exported, "version": next(exported.iterdir()), "nothing": tmp_path}
    assert cli.main([argument.format(**places) for argument in arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_form_gives_real_photos_the_same_class(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "--recipe=flowers_cpu", f"--data_dir={photos / 'flowers'}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main([*train, "--resnet_width=8", "--train_steps=2epochs", "--steps_per_eval=2epochs"]) == 0
    capsys.readouterr()
    export = ["export", str(tmp_path / "model"), str(tmp_path / "exported"), "--forms=stablehlo,onnx", "--verify"]
    assert cli.main(export) == 0
    assert capsys.readouterr().out.count("100 of 100") == 2


def test_a_bundle_is_compared_on_images_of_all_classes(trained: Trained, model_dir: Path) -> None:
    config = Config().replace(**{**trained.config.flat(), "model_dir": str(model_dir), "data_dir": "synthetic"})
    expected = open_expected(config, (), split="test", num_images=4)
    assert len(expected.source) == 4
    assert expected.source.where(1) != "noise 1"


def test_only_data_without_a_test_split_are_compared_on_validation(
    trained: Trained, model_dir: Path, tmp_path: Path
) -> None:
    config = Config().replace(**{**trained.config.flat(), "model_dir": str(model_dir), "data_dir": str(tmp_path)})
    with RecordWriter(str(tmp_path / "validation-00000-of-00001")) as writer:
        writer.write(encode_example({"image/encoded": [b"a photo"], "image/class/label": [1]}))
    expected = open_expected(config, (), split=None, num_images=4)
    assert "validation-00000" in expected.source.where(0)
    with pytest.raises(UserError, match=r"expected files named test-\*"):
        open_expected(config, (), split="test", num_images=4)
    (tmp_path / "test-00000-of-00001").write_bytes(b"damaged")
    with pytest.raises(UserError, match="test-00000"):
        open_expected(config, (), split=None, num_images=4)
