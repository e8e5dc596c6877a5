"""Trained models in a program: whatever they are loaded from and given, they predict what the command line predicts."""

import io
import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

import resnet_tpu as rt
from resnet_tpu import api
from resnet_tpu.api import images


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of PNG files, which all decoders read alike."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, level in (("bright", 170), ("dark", 30)):
        (folder / name).mkdir()
        for number in range(20):
            cv2.imwrite(str(folder / name / f"{number}.png"), rng.integers(level, level + 50, (24, 32, 3), np.uint8))
    return folder


@pytest.fixture(scope="module")
def run(
    photos: Path, tmp_path_factory: pytest.TempPathFactory, blank_curves: None
) -> tuple[rt.Config, list[tuple[int, dict[str, float]]]]:
    """A small finished training, and what it reported for each step."""
    said: list[tuple[int, dict[str, float]]] = []
    folder = tmp_path_factory.mktemp("run")
    config = rt.find_recipe("flowers_cpu").replace(
        data_dir=str(photos), model_dir=str(folder / "model"), export_dir=str(folder / "exported"), resnet_depth=8,
        resnet_width=4, image_size=32, train_batch_size=16, train_steps=4, export_forms="stablehlo", num_cores=1,
    )  # fmt: skip
    rt.train(config, on_step=lambda step, metrics: said.append((step, metrics)))
    return config, said


def test_importing_is_light_and_the_program_configures_its_own_log(run: tuple[rt.Config, list]) -> None:
    code = (
        "import logging, sys, resnet_tpu\nassert not {'jax', 'numpy', 'cv2'} & set(sys.modules)\n"
        "import resnet_tpu.training.loop\nassert resnet_tpu.training.loop.Summary\n"
        "assert callable(resnet_tpu.train)\n"
        "resnet_tpu.load_model(sys.argv[1])\nassert not logging.root.handlers\n"
        "logging.basicConfig(format='own: %(message)s')\nlogging.warning('said')"
    )
    command = [sys.executable, "-c", code, run[0].run.model_dir]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stderr == "own: said\n"


def test_the_names_are_those_of_the_api() -> None:
    assert all(callable(getattr(rt, name)) for name in api.__all__)
    assert set(api.__all__) <= set(dir(rt))
    names: dict[str, object] = {}
    exec("from resnet_tpu import *", names)
    assert {name: names.get(name) for name in api.__all__} == {name: getattr(api, name) for name in api.__all__}
    with pytest.raises(AttributeError, match="no attribute 'load_modle'"):
        _ = rt.load_modle  # pyright: ignore[reportAttributeAccessIssue]


def test_one_prediction_whatever_the_image_comes_in(photos: Path, run: tuple[rt.Config, list], tmp_path: Path) -> None:
    model = rt.load_model(run[0].run.model_dir)
    path = photos / "dark" / "0.png"
    pixels = np.asarray(Image.open(path))
    found = model.predict(path)
    best = model.class_names[found.probabilities.argmax()]
    assert (model.class_names, found.names, found.classes) == (["bright", "dark"], [str(path)], [best])
    for image in (str(path), [path], Image.open(path), pixels, pixels[None], [Image.open(path)]):
        np.testing.assert_array_equal(model.predict(image).probabilities, found.probabilities)
    several = model.predict([path, pixels, Image.open(photos / "bright" / "1.png")])
    np.testing.assert_allclose(several.probabilities[:2], found.probabilities.repeat(2, 0), atol=1e-6)
    np.save(tmp_path / "two.npy", np.stack([pixels] * 2))
    mapped = np.load(tmp_path / "two.npy", mmap_mode="r")
    assert (model.predict(mapped).names, model.predict(mapped[0]).names) == (["image 0", "image 1"], ["image 0"])
    grey = np.asarray(Image.open(path).convert("L"))
    np.testing.assert_array_equal(model.logits(grey), model.logits(np.stack([grey] * 3, -1)))
    for paths in ([str(path)], [[str(path)]], str(path)):
        for kind in (object, str):
            np.testing.assert_array_equal(model.logits(np.array(paths, kind)), model.logits(path))
    whole = model.predict(photos)
    assert len(whole) == 40 and whole.labels is not None and set(whole.labels) == {0, 1}


def test_stages_agree_with_each_other_and_with_the_bundle(photos: Path, run: tuple[rt.Config, list]) -> None:
    model, bundle = rt.load_model(run[0].run.model_dir), rt.load_model(rt.export(run[0]))
    images = [photos / "dark" / "0.png", photos / "bright" / "0.png", photos / "bright" / "1.png"]
    group = model.features(images, model.stages[-3])
    np.testing.assert_allclose(group.mean((1, 2)), model.features(images), rtol=1e-5, atol=1e-6)
    logits = model.logits(images)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(softmax, model.predict(images).probabilities, atol=1e-6)
    np.testing.assert_allclose(bundle.logits(images), logits, atol=1e-5)
    with pytest.raises(rt.UserError, match="stage: got pooled, expected one of logits"):
        bundle.features(images)


def test_a_bundle_is_loaded_whole_at_once(
    photos: Path, run: tuple[rt.Config, list], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(rt.export(run[0].replace(export_dir=str(tmp_path / "exported"))))
    expected = rt.load_classifier(rt.open_bundle(bundle))
    monkeypatch.chdir(tmp_path)
    model = rt.load_model("exported")
    monkeypatch.chdir(photos)
    shutil.rmtree(bundle)
    black = np.zeros((32, 32, 3), np.uint8)
    np.testing.assert_allclose(model.predict(black).probabilities, expected(black[None]), atol=1e-6)


def test_the_config_names_what_was_loaded(run: tuple[rt.Config, list], tmp_path: Path) -> None:
    """The run may have been moved since; a bundle may be older than its run."""
    moved = tmp_path / "moved"
    moved.symlink_to(run[0].run.model_dir)
    for source in (moved, moved / "checkpoints" / "4"):
        assert rt.load_model(source).config.run == run[0].replace(model_dir=str(source)).run
    config = rt.load_model(rt.export(run[0])).config
    with pytest.raises(rt.UserError, match="expected a model_dir or a checkpoint in it"):
        rt.evaluate(config)


def test_a_picture_is_read_as_its_file_is(tmp_path: Path, photos: Path, run: tuple[rt.Config, list]) -> None:
    model = rt.load_model(run[0].run.model_dir)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    for number, orientation in enumerate([*range(1, 9), None]):  # the last one has no EXIF at all
        exif = Image.Exif() if orientation else b"Exif\0\0garbage-not-tiff"
        if isinstance(exif, Image.Exif):
            exif[0x0112] = orientation
        path = tmp_path / f"{number}.png"
        noise.save(path, exif=exif)
        np.testing.assert_array_equal(model.logits(Image.open(path)), model.logits(path))
    whole = (photos / "dark" / "0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    expected = r"Image .*cut.png: got .*, expected a whole picture"
    with Image.open(tmp_path / "cut.png") as cut, pytest.raises(rt.UserError, match=expected):
        model.predict(cut)
    with Image.open(photos / "dark" / "0.png") as closed:
        pass
    with pytest.raises(rt.UserError, match=r"0\.png: got a picture whose file was closed .* Call its load\(\) before"):
        model.predict(closed)
    Image.new("F", (3, 3)).save(tmp_path / "floats.tiff")
    with Image.open(tmp_path / "floats.tiff") as floats, pytest.raises(rt.UserError, match="pixels are floats"):
        model.predict(floats)


def test_a_picture_that_occurs_more_than_once_is_read_by_one_thread(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8))
    noise.save(tmp_path / "noise.png")
    alone = bytes(images.ImageSource([noise], [])[0].encoded)
    for _ in range(5):
        with Image.open(tmp_path / "noise.png") as picture, ThreadPoolExecutor(4) as threads:
            source = images.ImageSource([picture] * 16, [])
            assert {bytes(sample.encoded) for sample in threads.map(source.__getitem__, range(16))} == {alone}


def test_images_of_an_iterator_that_reuses_their_place_are_told_apart(
    run: tuple[rt.Config, list], tmp_path: Path
) -> None:
    model = rt.load_model(run[0].run.model_dir)
    greys = [np.full((20, 30, 3), value, np.uint8) for value in (0, 128, 255)]
    frames = [Image.fromarray(grey) for grey in greys]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    buffer = np.empty_like(greys[0])

    def filled() -> Iterator[np.ndarray]:
        for grey in greys:
            buffer[:] = grey
            yield buffer

    expected = model.logits(greys)
    np.testing.assert_array_equal(model.logits(filled()), expected)
    np.testing.assert_array_equal(model.logits(ImageSequence.Iterator(Image.open(file))), expected)
    path = tmp_path / "frames.gif"
    path.write_bytes(file.getvalue())
    with Image.open(path) as one, Image.open(path) as other:
        assert model.predict(each for each in (one, other)).names == [str(path)] * 2
    with Image.open(path) as closed:
        pass
    with pytest.raises(rt.UserError, match=r"frames\.gif: got .*, expected a whole picture"):
        model.predict(each for each in (closed,))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("nowhere.png", "Image: got nowhere.png, expected an existing file"),
        (np.zeros((3, 3)), r"got an array of float64 \[3, 3\], expected a path"),
        (np.zeros((0, 3, 3), np.uint8), r"got an array of uint8 \[0, 3, 3\]"),
        (np.zeros((3, 3), int), r"int64 \[3, 3\].* x.astype\(np.uint8\) of 0 to 255, \(255 \* x\).* of 0 to 1\."),
        (Image.new("F", (3, 3)), "Image image 0: got ValueError: pixels are floats, expected a whole picture"),
        (3, "Image: got int, expected a path"),
        (b"\xff\xd8\xff", r"Image: got bytes, .* Open the bytes of a file first, with PIL.Image.open"),
        (jnp.zeros((3, 3), jnp.uint8), r"Image: got \w+, .* with numpy.asarray\(x\)\."),
        (rt.Example(np.zeros((3, 3, 3), np.uint8), 0, "a", "a.png"), "Image: got Example, .* Give its `image`; of a"),
        ([rt.Example(np.zeros((3, 3, 3), np.uint8), 0, "a", "a.png")], "Image: got Example, .* Give its `image`; of a"),
        (Image.new("RGB", (0, 5)), "Image image 0: got ValueError: .*, expected a whole picture"),
        ([], "Images: got none, expected at least one"),
    ],
)
def test_predict_refuses_inputs_that_are_no_images(image: object, message: str, run: tuple[rt.Config, list]) -> None:
    with pytest.raises(rt.UserError, match=message):
        rt.load_model(run[0].run.model_dir).predict(image)  # pyright: ignore[reportArgumentType]


def test_a_prediction_encodes_each_image_once(run: tuple[rt.Config, list], monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Mock(wraps=images._encode)
    monkeypatch.setattr(images, "_encode", encode)
    found = rt.load_model(run[0].run.model_dir).predict([np.zeros((20, 20, 3), np.uint8), Image.new("RGB", (30, 20))])
    assert found.names == ["image 0", "image 1"]
    assert encode.call_count == 2


def test_predict_refuses_damaged_image_even_if_training_skipped_such(
    photos: Path, run: tuple[rt.Config, list], tmp_path: Path
) -> None:
    model = rt.load_model(run[0].run.model_dir)
    model.config = model.config.replace(skip_bad_records=True)
    (tmp_path / "bad.png").write_bytes((photos / "dark" / "0.png").read_bytes()[:100])
    for ask in (model.predict, model.logits, model.features):
        with pytest.raises(
            rt.DecodeError, match=r"bad\.png: got 100 bytes .*\. Replace or remove it, or leave it out\."
        ):
            ask([tmp_path / "bad.png", photos / "dark" / "0.png"])


def test_callback_and_history_have_every_step(run: tuple[rt.Config, list[tuple[int, dict[str, float]]]]) -> None:
    config, said = run
    history = rt.history(config.run.model_dir, "train")
    assert history["step"].tolist() == [step for step, _ in said] == [0, 1, 2, 3]
    np.testing.assert_allclose(history["loss"], [metrics["loss"] for _, metrics in said], rtol=1e-6)
    assert set(rt.history(config.run.model_dir)["split"]) == {"train", "eval"}
    assert "<th>loss</th>" in history._repr_html_() and "loss" in repr(history)
    assert history.draw()._repr_png_().startswith(b"\x89PNG")  # without pyplot
    with pytest.raises(rt.UserError, match="Did you mean loss"):
        history["los"]


def test_paths_may_be_objects_and_splits_have_names(photos: Path, run: tuple[rt.Config, list], tmp_path: Path) -> None:
    config = run[0].replace(export_dir=str(tmp_path / "exported"))
    bundle = Path(rt.export(config))
    assert rt.open_bundle(bundle.parent).path == str(bundle)
    image = photos / "dark" / "0.png"
    assert rt.predict(config, image, output_dir=tmp_path / "out").names == [str(image)]
    assert rt.predict(config, str(image)).names == rt.predict(config, [image]).names == [str(image)]
    assert rt.prepare(photos, tmp_path / "data").class_names == ["bright", "dark"]
    split: Any = "val"
    for wrong in (lambda: rt.open_dataset(photos, split), lambda: rt.predict(config, split=split)):
        with pytest.raises(rt.UserError, match="split: got 'val', expected one of train, validation, test"):
            wrong()
    top_k: Any
    for top_k, expected in ((0, "0, expected at least 1"), (1.5, "1.5, expected a whole"), (None, "None, expected a")):
        with pytest.raises(rt.UserError, match=f"top_k: got {expected}"):
            rt.predict(config, image, top_k=top_k)
    output_format: Any = "xml"
    with pytest.raises(rt.UserError, match="output_format: got 'xml', expected one of table, csv, json"):
        rt.predict(config, image, output_format=output_format)
    with pytest.raises(rt.UserError, match="split: got 'val', expected one of train, eval"):
        rt.history(config.run.model_dir, split)
    with pytest.raises(rt.UserError, match="export_dir: got nothing"):
        rt.export(config.replace(export_dir=""))


def test_a_data_set_is_its_examples(photos: Path) -> None:
    splits = {split: rt.open_dataset(photos, split) for split in ("train", "validation", "test")}
    assert [len(dataset) for dataset in splits.values()] == [32, 4, 4]
    for example in splits["test"]:
        assert example.class_name is not None
        np.testing.assert_array_equal(example.image, np.asarray(Image.open(photos / example.name)))
        assert example.class_name == splits["test"].class_names[example.label] == Path(example.name).parent.name
    with splits["test"].batches(3) as batches:
        assert [batch["weight"].sum() for batch in batches] == [3, 1]
    size: Any
    for dataset, size in itertools.product(splits.values(), (0, -1, 2.5, "many", None)):
        with pytest.raises(rt.UserError, match=rf"^batch_size: got '?{size}"):
            dataset.batches(size)


def test_predictions_are_a_table(photos: Path, run: tuple[rt.Config, list], monkeypatch: pytest.MonkeyPatch) -> None:
    found = rt.load_model(run[0].run.model_dir).predict(photos / "dark" / "0.png")
    assert f"<td>{found.classes[0]}</td>" in found._repr_html_() and found.classes[0] in repr(found)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(rt.UserError, match=r"no package 'pandas', .* pip install pandas\."):
        found.to_dataframe()


@pytest.mark.peer("pandas")
def test_pandas_has_what_predictions_and_histories_have(photos: Path, run: tuple[rt.Config, list]) -> None:
    model_dir = run[0].run.model_dir
    found, history = rt.load_model(model_dir).predict(photos), rt.history(model_dir)
    frame = found.to_dataframe()
    assert frame.columns.tolist() == ["image", "label", "predicted", "probability", "bright", "dark"]
    assert frame["image"].tolist() == found.names and frame["predicted"].tolist() == found.classes
    np.testing.assert_array_equal(frame[["bright", "dark"]].to_numpy(), found.probabilities)
    np.testing.assert_allclose(frame["probability"], frame[["bright", "dark"]].max(axis=1), rtol=1e-7)
    right = frame["label"] == frame["predicted"]
    assert right.tolist() == [found.is_right(i) for i in range(len(found))]
    assert frame.groupby("label").size().to_dict() == {"bright": 20, "dark": 20}
    unlabelled = rt.load_model(model_dir).predict(np.zeros((2, 8, 8, 3), np.uint8)).to_dataframe()
    assert "label" not in unlabelled and len(unlabelled) == 2
    shares = np.array([[0.75, 0.25]], np.float32)
    alike = rt.Predictions(["a.png"], shares, np.array([1]), ["image", "label"]).to_dataframe()
    assert alike.iloc[0].to_dict() == {
        "image": "a.png", "label": "label", "predicted": "image", "probability": 0.75, "class image": 0.75,
        "class label": 0.25,
    }  # fmt: skip
    table = history.to_dataframe()
    assert table.columns.tolist() == history.columns and len(table) == len(history)
    train = table[table["split"] == "train"]
    np.testing.assert_allclose(train["loss"], [metrics["loss"] for _, metrics in run[1]], rtol=1e-6)
    assert table["step"].dtype == np.int64 and table["top_5_accuracy"].isna().sum() == len(train)


def test_a_config_is_shown_as_what_makes_it() -> None:
    config = rt.find_recipe("cifar").replace(data_dir="it's", mean_rgb=(0.1, 0.2, 0.3))
    assert eval(repr(config), {"Config": rt.Config}) == config
    assert repr(rt.Config()) == "Config()"
