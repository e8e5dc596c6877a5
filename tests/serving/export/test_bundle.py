"""A bundle is complete or does not exist, describes itself, and notices damage."""

import dataclasses
import hashlib
import importlib.util
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from resnet_tpu import storage
from resnet_tpu.data.manifest import SplitEntry
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.serving.export.bundle import Bundle, Form, find_bundle, newest_bundle, open_bundle, write_bundle
from resnet_tpu.serving.export.card import make_card
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.export.export import export_model, export_run
from resnet_tpu.serving.export.fold import fold
from resnet_tpu.storage import checked_json
from resnet_tpu.training.inference.trained import Trained
from tests.data.test_manifest import MANIFEST

PAGE = Path(__file__).resolve().parents[3] / "docs" / "export.md"
CARD = {
    "name": "tiny",
    "class_names": ["a", "b"],
    "image_size": 8,
    "resize_method": "bicubic",
    "package_version": "9.9",
}


def write(folder: Path) -> Path:
    """Writes a bundle with a single form of two files, which cannot be run."""
    contents = {"model.stablehlo": b"graph", "deep/er": b"weights"}
    return Path(write_bundle(str(folder), CARD, Config().replace(resnet_depth=34), [("stablehlo", lambda: contents)]))


@pytest.fixture(scope="session")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    config = Config().replace(
        export_dir=str(tmp_path_factory.mktemp("exports")), export_forms="onnx,stablehlo", model_name="noise",
        inference_batch_sizes="8,1",
    )  # fmt: skip
    return open_bundle(export_model(trained, config))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    before = int(time.time())
    path = write(tmp_path)
    bundle = open_bundle(str(tmp_path))
    assert bundle.path == str(path)
    assert before <= bundle.version == int(path.name)
    assert (bundle.name, bundle.class_names, bundle.image_size, bundle.forms) == ("tiny", ["a", "b"], 8, ("stablehlo",))
    assert bundle.config == Config().replace(resnet_depth=34)
    assert bundle.description == CARD
    assert bundle.read("deep/er") == b"weights"
    assert (path / "labels.txt").read_text() == "a\nb\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]  # no partial files are left
    moved = path.rename(tmp_path / "mine")
    assert open_bundle(str(moved)).version >= before


def test_a_path_among_the_options_may_be_no_utf8(tmp_path: Path) -> None:
    config = Config().replace(data_dir=os.fsdecode(b"Bl\xfcten"))
    assert open_bundle(write_bundle(str(tmp_path), CARD, config, [])).config == config


@pytest.mark.long
def test_a_bundle_in_a_bucket(trained: Trained, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exports = "memory://bucket/exports"
    config = Config().replace(export_dir=exports, export_forms="onnx", add_warmup_requests=True)
    path = export_model(trained, config)
    assert "add_warmup_requests: nothing to do without a SavedModel" in caplog.text
    bundle = open_bundle(exports)
    assert bundle.path == path
    assert load_classifier(bundle)(np.zeros((2, 16, 16, 3), np.uint8)).shape == (2, 4)
    storage.remove(f"{path}/bundle.json")  # it is written last
    with pytest.raises(UserError, match="expected a folder with"):
        open_bundle(exports)


def test_classes_without_a_name_are_numbered(drawn: Callable[..., Trained], tmp_path: Path) -> None:
    trained = dataclasses.replace(drawn(resnet_depth=8), class_names=["daisy", "rose"])
    bundle = open_bundle(export_model(trained, Config().replace(export_dir=str(tmp_path), export_forms="onnx")))
    assert bundle.class_names == ["daisy", "rose", "2", "3", "4"]


def test_two_exports_within_a_second_are_two_bundles_and_the_newest_counts(tmp_path: Path) -> None:
    paths = [write(tmp_path) for _ in range(3)]
    assert len({path.name for path in paths}) == 3
    assert newest_bundle(str(tmp_path)) == str(max(paths, key=lambda path: int(path.name)))
    (tmp_path / "99999999999").mkdir()  # one that is still being copied
    assert newest_bundle(str(tmp_path)) == str(max(paths, key=lambda path: int(path.name)))


def test_the_last_export_is_the_newest_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    after = write(tmp_path)
    assert newest_bundle(str(tmp_path)) == str(after) != str(before)


def test_versions_may_begin_with_zeros(tmp_path: Path) -> None:
    for version, name in ((1, "001"), (2, "2"), (10, "00010")):
        write(tmp_path / "aside").rename(tmp_path / name)
        bundle = open_bundle(str(tmp_path))
        assert (bundle.path, bundle.version) == (str(tmp_path / name), version)


def test_a_search_that_finds_no_bundle_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resnet_tpu.serving.export.bundle._no_bundle_error", pytest.fail)
    assert find_bundle(str(tmp_path)) is None
    assert find_bundle("nowhere://bucket/exported") is None
    path = write(tmp_path)
    assert find_bundle(str(tmp_path)) == find_bundle(str(path)) == str(path)
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)  # a run that was exported into its own folder
    assert find_bundle(str(tmp_path)) is None
    assert find_bundle(str(path)) == newest_bundle(str(tmp_path)) == str(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("deep/er", lambda data: data[:-1], r"deep/er: got 6 bytes, expected the 7 that were written\."),
        ("labels.txt", None, r"labels\.txt: got no such file, expected the 4 bytes that bundle\.json lists\."),
        ("bundle.json", lambda data: data[:-9], r"bundle\.json: got a file that cannot be read"),
        ("bundle.json", lambda data: b"[]", r"bundle\.json: got a file that cannot be read"),
        (
            "bundle.json",
            lambda data: checked_json.dumps(checked_json.loads(data.decode()) | {"format": 2}).encode(),
            r"got format 2, expected at most 1\. Use resnet_tpu 9\.9 or later\.",
        ),
        ("bundle.json", None, r"Bundle: got .*, expected a folder with bundle\.json"),
    ],
)
def test_damage_is_named(name: str, change: Callable[[bytes], bytes] | None, message: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    if change is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(change((path / name).read_bytes()))
    with pytest.raises(UserError, match=message):
        open_bundle(str(path))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "1"}, {"format": 1e308}, {"description": []}, {"forms": "onnx"}, {"forms": ["onnxx"]},
        {"forms": [[]]},
        {"files": {"a": {"bytes": -1.5, "sha256": ""}}}, {"files": {"a": {}}}, {"files": []}, {"config": []},
        *({"files": {name: {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}}} for name in (
            "../1/labels.txt", "/dev/null", "a/../../b", "a/..", "..", ".", "", "a//b", "a\0", "\ud800",
        )),
        *({"description": CARD | odd} for odd in (
            {"image_size": "8"}, {"image_size": -8}, {"image_size": 8.0}, {"name": 1}, {"class_names": "ab"},
            {"class_names": [1]}, {"resize_method": "area"}, {"resize_method": []},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_a_description_of_another_kind(tmp_path: Path, change: dict[str, Any]) -> None:
    place = write(tmp_path) / "bundle.json"
    place.write_text(json.dumps({**checked_json.loads(place.read_text()), **change}))
    with pytest.raises(UserError, match=r"bundle\.json: got a file that cannot be read \("):
        open_bundle(str(tmp_path))


def test_links_are_followed(tmp_path: Path) -> None:
    """As in Kubernetes's volumes and in the cache of Hugging Face's hub."""
    path = write(tmp_path / "exports")
    (path / "deep" / "er").rename(tmp_path / "kept")
    (path / "deep" / "er").symlink_to(tmp_path / "kept")
    (tmp_path / "current").symlink_to(path)
    assert open_bundle(tmp_path / "current").read("deep/er") == b"weights"


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    path = write(tmp_path) / "labels.txt"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(UserError, match=r"labels\.txt: got no such file"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("name", ["bundle.json", "labels.txt"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(UserError, match=rf"{name}: got a pipe or a device, expected a file\."):
        open_bundle(tmp_path)


@pytest.mark.parametrize("text", ['{"format":' * 5_000, "[" * 5_000, '{"format": ' + "1" * 5_000 + "}"], ids=range(3))
def test_a_description_that_no_program_wrote(tmp_path: Path, text: str) -> None:
    (write(tmp_path) / "bundle.json").write_text(text)
    with pytest.raises(UserError, match=r"bundle\.json: got a file that cannot be read \("):
        open_bundle(str(tmp_path))


def test_folders_whose_names_are_almost_numbers(tmp_path: Path) -> None:
    (tmp_path / "²").mkdir()
    path = write(tmp_path)
    assert newest_bundle(str(tmp_path)) == str(path)


def test_a_changed_byte_is_found_by_whoever_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path / "deep" / "er").write_bytes(b"weightz")
    bundle = open_bundle(str(path))
    with pytest.raises(UserError, match=r"er: got a different checksum, expected the SHA-256 in bundle\.json"):
        bundle.read("deep/er")


def test_a_bundle_for_tensorflow_alone(tmp_path: Path) -> None:
    write_bundle(str(tmp_path), CARD, Config(), [("savedmodel", lambda: {"saved_model.pb": b"graph"})])
    bundle = open_bundle(str(tmp_path))
    with pytest.raises(UserError, match=r"got savedmodel, expected a form that takes pixels\. Export it with --forms="):
        load_classifier(bundle)
    with pytest.raises(UserError, match=r"got savedmodel, expected one that takes pixels.*Serve it with TensorFlow S"):
        load_classifier(bundle, "savedmodel")
    with pytest.raises(
        UserError, match=r"Form: got onnx, expected one that .* has: savedmodel\..*--forms=savedmodel,o"
    ):
        load_classifier(bundle, "onnx")


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_nothing_is_left_of_an_export_that_fails(place: str, tmp_path: Path) -> None:
    export_dir = str(tmp_path) if place == "disk" else f"memory://{tmp_path.name}/exports"

    def fail() -> dict[str, bytes]:
        raise UserError("Form", "a fault", "none", "Fix it.")

    forms: list[tuple[Form, Callable[[], dict[str, bytes]]]] = [("stablehlo", lambda: {"a": b"1"}), ("onnx", fail)]
    with pytest.raises(UserError, match="a fault"):
        write_bundle(export_dir, CARD, Config(), forms)
    assert storage.files_below(export_dir) == []
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_is_killed_leaves_no_bundle(tmp_path: Path) -> None:
    code = f"""
import sys, time
from resnet_tpu import storage
from resnet_tpu.storage import checked_json
from resnet_tpu.options.config import Config
from resnet_tpu.serving.export.bundle import write_bundle
def wait():
    print("written", flush=True)
    time.sleep(60)
write_bundle({str(tmp_path)!r}, {CARD!r}, Config(), [("stablehlo", lambda: {{"a": b"1"}}), ("onnx", wait)])
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert any(tmp_path.rglob("a"))  # it had begun
    with pytest.raises(UserError, match="expected a folder with"):
        open_bundle(str(tmp_path))
    path = write(tmp_path)
    assert newest_bundle(str(tmp_path)) == str(path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_model_card_tells_what_the_network_is(exported: Bundle, trained: Trained) -> None:
    card = exported.description
    assert (exported.name, card["network"], card["step"]) == ("noise", "ResNet-8", 2)
    assert card["metrics"]["split"] == "validation"
    assert 0 <= card["metrics"]["top_1_accuracy"] <= 1
    assert card["data"] == {"train": 16}
    assert card["warmup_batch_sizes"] == [1, 8]
    assert (card["density"], card["moving_average"]) == (1.0, False)
    assert card["trained"] <= card["exported"]
    assert str(trained.path) not in json.dumps(card)  # the card is public
    assert exported.config == trained.config


@pytest.mark.parametrize("form", ["stablehlo", "onnx", None])
def test_a_classifier_takes_any_number_of_images(form: Form | None, exported: Bundle) -> None:
    classify = load_classifier(exported, form, num_threads=1)
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    probabilities = classify(images)
    assert (probabilities.shape, probabilities.dtype) == ((5, 4), np.float32)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(classify(images[:1]), probabilities[:1], rtol=0, atol=1e-6)
    assert (classify(images[:0]).shape, classify(images[:0]).dtype) == ((0, 4), np.float32)
    for wrong in (images[0], images.astype(np.float32), images[:, :8], images.transpose(0, 3, 1, 2)):
        with pytest.raises(UserError, match=r"expected uint8 \[n, 16, 16, 3\]"):
            classify(wrong)


ONNX = "what this ONNX Runtime can run. Upgrade onnxruntime, or choose --form=stablehlo."
STABLEHLO = "what this JAX can run. Upgrade jax, or choose --form=onnx."
WEIGHTS = "a whole .safetensors file. Export it again, or choose --form=onnx."


def cut(content: bytes) -> bytes:
    return content[:-100]


def with_an_unknown_operation(content: bytes) -> bytes:
    """As a later JAX may write it."""
    assert b"convolution_v1" in content
    return content.replace(b"convolution_v1", b"convolution_v0")


@pytest.mark.parametrize(
    ("name", "form", "change", "message"),
    [
        ("model.onnx", "onnx", cut, ONNX),
        ("model.stablehlo", "stablehlo", cut, STABLEHLO),
        ("model.stablehlo", "stablehlo", with_an_unknown_operation, STABLEHLO),
        ("weights.safetensors", "stablehlo", cut, WEIGHTS),
    ],
)
def test_what_a_library_cannot_read_though_it_is_as_written_is_named(
    name: str, form: Form, change: Callable[[bytes], bytes], message: str, exported: Bundle, tmp_path: Path
) -> None:
    content = change((Path(exported.path) / name).read_bytes())
    (tmp_path / name).write_bytes(content)
    files = {**exported.files, name: (len(content), hashlib.sha256(content).hexdigest())}
    for other in {*files} - {name}:
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).symlink_to(Path(exported.path) / other)
    with pytest.raises(UserError, match=rf"^Bundle, {name}: got .*, expected {re.escape(message)}$"):
        load_classifier(dataclasses.replace(exported, path=str(tmp_path), files=files), form)


def test_lack_of_memory_is_no_damage(exported: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.InferenceSession", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        load_classifier(exported, "onnx")


def test_onnx_runtime_keeps_no_identifier_of_the_user(exported: Bundle, tmp_path: Path) -> None:
    code = (
        "import numpy as np\n"
        "from resnet_tpu.serving.export.bundle import open_bundle\n"
        "from resnet_tpu.serving.export.classifier import load_classifier\n"
        f"classify = load_classifier(open_bundle({exported.path!r}), 'onnx')\n"
        "print(classify(np.zeros((1, 16, 16, 3), np.uint8)).shape)\n"
    )
    unset = {"CI", "GITHUB_ACTIONS", "ORT_DISABLE_TELEMETRY"}  # each of them turns its reports off
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(1, 4)\n"), done.stderr
    assert not list(tmp_path.rglob("*"))


def test_the_python_of_the_page_runs(
    exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "exported").symlink_to(exported.path)
    (tmp_path / "photos" / "daisy").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "daisy" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, PAGE.name, "exec"), {})
    shown = capsys.readouterr().out
    *_, name, probability = shown.split()
    assert name in exported.class_names
    assert probability.endswith("%")


def test_the_page_names_every_key_of_the_model_card(exported: Bundle) -> None:
    table = PAGE.read_text().partition("## What the model card holds")[2]
    named = {name for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(exported.description)


def test_a_form_that_is_not_there_is_named(exported: Bundle) -> None:
    with pytest.raises(UserError, match=r"Form: got int8, expected one that .* has: stablehlo, onnx\. .*,int8\."):
        load_classifier(exported, "int8")
    with pytest.raises(UserError, match=r"Form: got tflite, expected one that .* has: .* Choose another\.$"):
        load_classifier(exported, cast("Any", "tflite"))
    with pytest.raises(UserError, match=r"^output: got 'scores', expected one of logits, probabilities\."):
        load_classifier(exported, output=cast("Any", "scores"))


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="tensorflow is installed")
def test_a_form_without_its_package_is_left_out_or_refused(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bundle = open_bundle(export_model(trained, Config().replace(export_dir=str(tmp_path))))
    assert bundle.forms == ("stablehlo", "onnx")
    assert "Not exported as savedmodel, which needs pip install 'resnet-tpu[tf]'" in caplog.messages
    with pytest.raises(UserError, match=r"Form savedmodel: got no package 'tensorflow'"):
        export_run(Config().replace(model_dir="model", export_dir=str(tmp_path), export_forms="savedmodel"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"export_forms": "onxx"}, r"export_forms: got onxx, .*Did you mean onnx\?"),
        ({"export_forms": "onnx,"}, r"export_forms: got nothing"),
        ({"inference_batch_sizes": "0,4"}, r"inference_batch_sizes: got '0,4', expected positive numbers"),
        ({"inference_batch_sizes": "many"}, r"inference_batch_sizes: got 'many'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_run(Config().replace(model_dir=str(tmp_path), export_dir=str(tmp_path), **options))


def test_accuracies_of_the_moving_average_are_not_said_of_other_weights(trained: Trained) -> None:
    """The run was evaluated with its moving averages, but one card is for the weights themselves."""
    trained = dataclasses.replace(trained, config=trained.config.replace(moving_average_decay=0.9, bn_momentum=0.0))
    folded = fold(trained)
    cards = [
        make_card(trained, folded, name="a", averaged=averaged, warmup_batch_sizes=()) for averaged in (True, False)
    ]
    assert ["metrics" in card for card in cards] == [True, False]


@pytest.mark.parametrize(
    ("num_train", "names", "expected"),
    [
        (16, "abcd", {"train": 16, "validation": 8, "test": 4}),  # of 10 validation images, the run evaluates 8
        (17, "abcd", {"train": 16}),
        (16, "abce", {"train": 16}),
    ],
)
def test_only_images_of_the_run_are_counted(
    num_train: int, names: str, expected: dict[str, int], trained: Trained, tmp_path: Path
) -> None:
    """Other data may have been prepared in the same folder since."""
    counts = {"train": num_train, "validation": 10, "test": 4}
    splits = {split: SplitEntry(count, {}, 0, {}) for split, count in counts.items()}
    manifest = dataclasses.replace(MANIFEST, class_names=list(names), splits=splits)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    config = trained.config.replace(data_dir=str(tmp_path))
    trained = dataclasses.replace(trained, config=config, class_names=list("abcd"))
    card = make_card(trained, fold(trained), name="a", averaged=True, warmup_batch_sizes=())
    assert card["data"] == expected
