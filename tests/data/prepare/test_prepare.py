"""From folders of photos to shards: nothing is lost or hidden, and bytes do not depend on how the work is done."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from resnet_tpu import cli, storage
from resnet_tpu.data.folders import find_photos
from resnet_tpu.data.manifest import Manifest, read_manifest
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.report import render_report
from resnet_tpu.data.records.example import decode_example, parse_image_example
from resnet_tpu.data.records.tfrecord import RecordFile, load_index
from resnet_tpu.errors import UserError


def features(out: Path, split: str) -> list[dict]:
    paths = sorted(out.glob(f"{split}-?????-of-?????"))
    return [decode_example(record) for path in paths for record in RecordFile(str(path))]


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def noticed(manifest: Manifest) -> dict[str, tuple[int, list[str]]]:
    return {found.what: (found.count, found.first) for found in manifest.findings}


def test_every_photo_is_in_one_record(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    manifest = run(class_folders, out)
    assert manifest.class_names == ["cat", "dog", "emu"]
    assert (out / "labels.txt").read_text() == "cat\ndog\nemu\n"
    sizes = {split: entry.per_class for split, entry in manifest.splits.items()}
    assert sizes == {
        "train": {"cat": 16, "dog": 8, "emu": 8},
        "validation": {"cat": 2, "dog": 1, "emu": 1},
        "test": {"cat": 2, "dog": 1, "emu": 1},
    }
    assert manifest.findings == []
    found = {}
    for split, entry in manifest.splits.items():
        records = features(out, split)
        assert len(records) == entry.num_images == sum(entry.per_class.values())
        for record in records:
            (name,), (folder,) = record["image/filename"], record["image/class/synset"]
            assert isinstance(name, bytes)
            assert isinstance(folder, bytes)
            path = class_folders / folder.decode() / name.decode()
            found[path] = split
            width, height = size_of(path)
            assert record == {
                "image/height": [height],
                "image/width": [width],
                "image/colorspace": [b"RGB"],
                "image/channels": [3],
                "image/class/label": [manifest.class_names.index(folder.decode()) + 1],
                "image/class/synset": [folder],
                "image/class/text": [folder],
                "image/format": [b"JPEG"],
                "image/filename": [name],
                "image/encoded": [path.read_bytes()],
            }
    assert set(found) == set(class_folders.glob("*/*"))
    assert read_manifest(str(out)) == manifest
    assert read_manifest(str(class_folders)) is None


def test_order_of_records(class_folders: Path, tmp_path: Path, run) -> None:
    run(class_folders, tmp_path / "out", train_shards=3)
    names = {}
    for split in ("train", "validation", "test"):
        records = [
            record["image/class/text"] + record["image/filename"] for record in features(tmp_path / "out", split)
        ]
        names[split] = [b"/".join(record) for record in records]
    assert names["validation"] == sorted(names["validation"])
    assert names["test"] == sorted(names["test"])
    shuffled = sorted(names["train"])
    random.Random(1337).shuffle(shuffled)
    assert names["train"] == shuffled
    assert [len(RecordFile(str(path))) for path in sorted((tmp_path / "out").glob("train-*"))] == [11, 11, 10]


def test_all_keys_of_the_original(golden: Callable[[str], Path], class_folders: Path, tmp_path: Path, run) -> None:
    run(class_folders, tmp_path / "out")
    keys = json.loads(golden("tfrecord/expected.json").read_text())["feature_keys"]
    assert set(features(tmp_path / "out", "train")[0]) == {*keys, "image/class/text"}


def test_the_same_bytes_for_any_number_of_workers(class_folders: Path, tmp_path: Path, draw, run, contents) -> None:
    (class_folders / "cat" / "bad.jpg").write_bytes(b"")
    draw(class_folders / "dog" / "x.png", 7, size=(200, 300))
    for workers in (1, 2):
        run(class_folders, tmp_path / str(workers), workers=workers, train_shards=5, max_side=100)
    run(class_folders, tmp_path / "default", workers=None, train_shards=5, max_side=100)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "default")
    assert len(contents(tmp_path / "1")) == 5 + 1 + 1 + 3


def test_manifest_and_indexes(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    manifest = run(class_folders, out, train_shards=2, seed=5)
    for entry in manifest.splits.values():
        assert entry.shards == len(entry.files)
        for name, file in entry.files.items():
            data = (out / name).read_bytes()
            assert (file.num_bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
            index = out / "_index" / f"{name}.npy"
            written = index.read_bytes()
            assert len(load_index(str(out / name))) == file.num_images
            assert index.read_bytes() == written
    widths = [size_of(path)[0] for path in class_folders.glob("*/*")]
    spread = manifest.image_width
    assert (spread.min, spread.median, spread.max) == (min(widths), np.median(widths), max(widths))
    assert spread.mean == pytest.approx(np.mean(widths), abs=0.01)
    assert (manifest.seed, manifest.options["split"]) == (5, [0.8, 0.1, 0.1])
    raw = json.loads((out / "manifest.json").read_text())
    assert raw["class_names"] == manifest.class_names
    assert raw["splits"]["train"]["num_images"] == 32
    (out / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest.json: got manifest without 'class_names'"):
        read_manifest(str(out))


def test_without_validation_photos_the_command_that_trains_is_told(
    tmp_path: Path, draw, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")):
        draw(tmp_path / "raw" / name, number)
    raw, out = str(tmp_path / "raw"), str(tmp_path / "out")
    assert cli.main(["prepare", raw, out, "--workers=1"]) == 0
    assert f"random. Without any: resnet-tpu train {out} --mode=train\n" in capsys.readouterr().out
    assert cli.main(["prepare", raw, out, "--workers=1", "--split=0.8,0.2", "--overwrite"]) == 0
    assert capsys.readouterr().out.endswith(f"Train on them: resnet-tpu train {out}\n")


def test_no_command_that_trains_is_told_without_training_photos(
    tmp_path: Path, draw, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        draw(tmp_path / f"{number}.png", number)
    (tmp_path / "list.csv").write_text("path,label,split\n0.png,a,test\n1.png,b,test\n")
    assert cli.main(["prepare", str(tmp_path / "list.csv"), str(tmp_path / "out"), "--workers=1"]) == 0
    assert "resnet-tpu train" not in capsys.readouterr().out


def test_two_ratios_leave_no_test_split(class_folders: Path, tmp_path: Path, run) -> None:
    manifest = run(class_folders, tmp_path / "out", split="0.8,0.2")
    assert {name: entry.num_images for name, entry in manifest.splits.items()} == {"train": 32, "validation": 8}
    assert not list((tmp_path / "out").glob("test-*"))


def test_split_folders_stay_as_they_are(tmp_path: Path, draw, run) -> None:
    raw = tmp_path / "raw"
    for i, place in enumerate(("train/a", "train/b", "train/b", "val/a", "val/b", "test/c")):
        draw(raw / place / f"{i}.jpg", i)
    manifest = run(raw, tmp_path / "out")
    assert manifest.class_names == ["a", "b", "c"]  # over all splits
    assert {name: entry.per_class for name, entry in manifest.splits.items()} == {
        "train": {"a": 1, "b": 2, "c": 0},
        "validation": {"a": 1, "b": 1, "c": 0},
        "test": {"a": 0, "b": 0, "c": 1},
    }
    count, paths = noticed(manifest)["class missing in a split"]
    assert (count, paths) == (4, ["train/c", "val/c", "test/a", "test/b"])
    assert features(tmp_path / "out", "test")[0]["image/class/label"] == [3]


def test_training_photos_alone_are_split_where_that_is_asked_for(
    class_folders: Path, tmp_path: Path, draw, run, caplog: pytest.LogCaptureFixture
) -> None:
    class_folders.rename(tmp_path / "train")
    (tmp_path / "raw").mkdir()
    (tmp_path / "train").rename(tmp_path / "raw" / "train")
    draw(tmp_path / "raw" / "test" / "0.jpg")  # to be predicted, as in a competition

    def counts(**options: str) -> dict[str, int]:
        manifest = run(tmp_path / "raw", tmp_path / "-".join(["out", *options.values()]), **options)
        return {name: entry.num_images for name, entry in manifest.splits.items()}

    assert counts() == {"train": 40}
    assert counts(split="0.8,0.2") == {"train": 32, "validation": 8}
    assert not caplog.records
    draw(tmp_path / "raw" / "val" / "cat" / "0.jpg")
    assert counts(split="0.7,0.3") == {"train": 40, "validation": 1}
    assert "--split is not used" in caplog.text


def test_csv(class_folders: Path, tmp_path: Path, run) -> None:
    table = tmp_path / "list.csv"
    rows = [f"raw/{path.parent.name}/{path.name},{path.parent.name}" for path in class_folders.glob("*/*")]
    table.write_text("\n".join(["path,label", *rows]))
    assert run(table, tmp_path / "csv").splits["train"].per_class == {"cat": 16, "dog": 8, "emu": 8}


def test_repairs_are_counted_with_their_paths(class_folders: Path, tmp_path: Path, draw, run) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(class_folders / "cat" / "turned.jpg", 1000, exif=exif)
    draw(class_folders / "cat" / "print.jpg", 1001, mode="CMYK")
    draw(class_folders / "dog" / "plain.png", 1002)
    shutil.move(draw(tmp_path / "x.png", 1003), class_folders / "dog" / "lies.jpeg")
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    frames[0].save(class_folders / "emu" / "moves.gif", save_all=True, append_images=frames[1:])
    (class_folders / "readme.md").write_text("hello")
    out = tmp_path / "out"
    manifest = run(class_folders, out)
    assert noticed(manifest) == {
        "image named as another format": (1, ["dog/lies.jpeg (is PNG)"]),
        "CMYK image": (1, ["cat/print.jpg"]),
        "EXIF rotation": (1, ["cat/turned.jpg (orientation 6)"]),
        "several frames": (1, ["emu/moves.gif (2 frames)"]),
        "other format than JPEG": (2, []),
        "not an image file, by its name": (1, ["readme.md"]),
    }
    assert sum(entry.num_images for entry in manifest.splits.values()) == 45
    everything = [record for split in manifest.splits for record in features(out, split)]
    turned = next(record for record in everything if record["image/filename"] == [b"turned.jpg"])
    assert (turned["image/height"], turned["image/width"]) == ([24], [18])
    for record in everything:
        assert isinstance(record["image/encoded"][0], bytes)
        assert record["image/encoded"][0].startswith(b"\xff\xd8")
    assert "EXIF rotation, turned upright: 1\n  cat/turned.jpg (orientation 6)\n" in (out / "report.txt").read_text()
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(render_report(manifest))
    console.file.close()
    shown = console.export_text()
    assert "cat/turned.jpg (orientation 6)" in shown
    assert "cat" in shown


def spoil(raw: Path) -> None:
    """Makes three photos unusable."""
    (raw / "cat" / "empty.jpg").write_bytes(b"")
    whole = (raw / "dog" / "000.jpg").read_bytes()
    (raw / "dog" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (raw / "emu" / "text.png").write_text("not a picture")


def test_bad_images_within_the_fraction_are_left_out(class_folders: Path, tmp_path: Path, run) -> None:
    spoil(class_folders)
    manifest = run(class_folders, tmp_path / "out", max_bad_fraction=0.1)
    assert sum(entry.num_images for entry in manifest.splits.values()) == 40
    found = noticed(manifest)
    assert found["zero-byte file"] == (1, ["cat/empty.jpg"])
    assert found["truncated image"][1][0].startswith("dog/cut.jpg (")
    assert found["unreadable image"][1][0].startswith("emu/text.png (")
    train = manifest.splits["train"]
    assert train.num_images == len(features(tmp_path / "out", "train"))
    report = (tmp_path / "out" / "report.txt").read_text()
    with pytest.raises(UserError, match=r"got 3 of 43 that cannot be used .* expected at most 0"):
        run(class_folders, tmp_path / "out", max_bad_fraction=0)
    assert (tmp_path / "out" / "report.txt").read_text() == report


def test_too_many_bad_images_are_refused(class_folders: Path, tmp_path: Path, run) -> None:
    spoil(class_folders)
    out = tmp_path / "out"
    with pytest.raises(UserError) as caught:
        run(class_folders, out)
    assert "got 3 of 43 that cannot be used" in str(caught.value)
    assert "expected at most 1 (max_bad_fraction 0.01)" in str(caught.value)
    for path in ("cat/empty.jpg: zero-byte file", "dog/cut.jpg: truncated image", "emu/text.png: unreadable image"):
        assert path in str(caught.value)
    assert "emu/text.png" in (out / "report.txt").read_text()
    assert read_manifest(str(out)) is None
    manifest = run(class_folders, out, max_bad_fraction=0.07)  # continues, because this option changes no shard
    assert sum(entry.num_images for entry in manifest.splits.values()) == 40


def test_one_bad_image_is_always_allowed_unless_none_is(class_folders: Path, tmp_path: Path, run) -> None:
    (class_folders / "cat" / "empty.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="expected at most 0"):
        run(class_folders, tmp_path / "none", max_bad_fraction=0)
    run(class_folders, tmp_path / "one")


def test_a_listed_file_that_is_missing_is_a_bad_image(class_folders: Path, tmp_path: Path, run) -> None:
    (tmp_path / "list.csv").write_text("path,label\nraw/cat/000.jpg,cat\nraw/dog/000.jpg,dog\nraw/dog/gone.jpg,dog\n")
    manifest = run(tmp_path / "list.csv", tmp_path / "out", split="0.5,0.5")
    assert noticed(manifest)["unreadable image"] == (1, ["raw/dog/gone.jpg (No such file or directory)"])
    with pytest.raises(UserError, match=r"\(raw/dog/gone.jpg: unreadable image, No such file or directory\)"):
        run(tmp_path / "list.csv", tmp_path / "strict", split="0.5,0.5", max_bad_fraction=0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_what_may_have_no_end_is_a_bad_image(class_folders: Path, tmp_path: Path, run) -> None:
    os.mkfifo(class_folders / "cat" / "pipe.jpg")
    (class_folders / "cat" / "zeros\x1b[31m.jpg").symlink_to("/dev/zero")
    manifest = run(class_folders, tmp_path / "out", max_bad_fraction=0.1)
    told = [f"cat/{name}.jpg (a pipe or a device)" for name in ("zeros\x1b[31m", "pipe")]
    assert noticed(manifest) == {"unreadable image": (2, told)}
    assert "\\x1b[31m" in (tmp_path / "out" / "report.txt").read_text()


def test_only_bad_images_are_refused(tmp_path: Path, run) -> None:
    for name in ("a", "b"):
        (tmp_path / "raw" / name).mkdir(parents=True)
        (tmp_path / "raw" / name / "1.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"got 2 of 2 that cannot be used .* at most 1 .* pass --overwrite\.$"):
        run(tmp_path / "raw", tmp_path / "out", max_bad_fraction=1.0)


def test_the_fraction_is_taken_as_it_is_written() -> None:
    assert PrepareOptions(max_bad_fraction=0.29).allowed_bad(100) == 29  # 0.29 * 100 is a little less, as a float


def test_duplicates_are_listed(tmp_path: Path, draw, run) -> None:
    raw = tmp_path / "raw"
    for i, place in enumerate(("train/a", "train/b", "test/a")):
        draw(raw / place / f"{i}.jpg", i)
    shutil.copy(raw / "train/a/0.jpg", raw / "test/a/again.jpg")
    shutil.copy(raw / "train/b/1.jpg", raw / "train/a/other.jpg")
    found = noticed(run(raw, tmp_path / "out"))
    assert found["same image in two splits"] == (1, ["test/a/again.jpg (test; train/a/0.jpg in train)"])
    assert found["same image in two classes"][0] == 1


def test_a_photo_of_another_class_in_another_split_is_listed_for_both(tmp_path: Path, draw, run) -> None:
    raw = tmp_path / "raw"
    for i, place in enumerate(("train/a", "train/b", "test/a")):
        draw(raw / place / f"{i}.jpg", i)
    (raw / "test" / "b").mkdir()
    shutil.copy(raw / "train/a/0.jpg", raw / "test/b/again.jpg")
    found = noticed(run(raw, tmp_path / "out"))
    assert found["same image in two splits"] == (1, ["test/b/again.jpg (test; train/a/0.jpg in train)"])
    assert found["same image in two classes"] == (1, ["test/b/again.jpg (as train/a/0.jpg)"])


def test_small_and_empty_classes(class_folders: Path, tmp_path: Path, draw, run) -> None:
    draw(class_folders / "fox" / "1.jpg", 1)
    (class_folders / "gnu").mkdir()
    manifest = run(class_folders, tmp_path / "out")
    assert manifest.class_names == ["cat", "dog", "emu", "fox"]
    assert noticed(manifest) == {
        "class too small for every split": (1, ["fox (0/0/1 of 1 images, none to train on)"]),
        "class without images": (1, ["gnu"]),
    }


def test_a_class_whose_photos_cannot_be_read_is_too_small(class_folders: Path, tmp_path: Path, draw, run) -> None:
    for name in ("1.jpg", "2.jpg"):
        draw(class_folders / "fox" / name, 1)
        (class_folders / "fox" / name).write_bytes(b"damaged")
    manifest = run(class_folders, tmp_path / "out", max_bad_fraction=0.5)
    assert manifest.class_names == ["cat", "dog", "emu", "fox"]
    assert noticed(manifest)["class too small for every split"] == (1, ["fox (0/0/0 of 0 images, none to train on)"])


def test_a_class_of_a_given_split_whose_photos_cannot_be_read_is_missing_there(tmp_path: Path, draw, run) -> None:
    for number, place in enumerate(("train/a", "train/b", "validation/a", "validation/b")):
        draw(tmp_path / "raw" / place / "1.jpg", number)
    (tmp_path / "raw" / "train" / "b" / "1.jpg").write_bytes(b"damaged")
    found = noticed(run(tmp_path / "raw", tmp_path / "out", max_bad_fraction=0.5))
    assert found["class missing in a split"] == (1, ["train/b (none can be used)"])


def test_unusable_output_folders_are_refused(class_folders: Path, tmp_path: Path, run) -> None:
    for out in (class_folders, class_folders / "out", class_folders / "cat"):
        with pytest.raises(UserError, match="expected a folder outside of"):
            run(class_folders, out)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="got the file"):
        run(class_folders, tmp_path / "file")
    with pytest.raises(UserError, match=r"got a folder below the file .*/file, expected a folder\."):
        run(class_folders, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "0.5,0.4"}, "split: got '0.5,0.4'"),
        ({"train_shards": 0}, "train_shards: got 0, expected at least 1"),
        ({"test_shards": 100_000}, "test_shards: got 100000, expected at most 99999"),
        ({"quality": 101}, "quality: got 101, expected at most 100"),
        ({"subsampling": "4:1:1"}, "subsampling: got '4:1:1', expected one of 4:4:4, 4:2:2, 4:2:0"),
        ({"max_bad_fraction": 1.5}, "max_bad_fraction: got 1.5, expected at most 1"),
        ({"max_bad_fraction": -0.1}, "max_bad_fraction: got -0.1, expected at least 0"),
        ({"workers": 0}, "workers: got 0, expected at least 1"),
        ({"quality": "good"}, "quality: got 'good', expected a whole number"),
    ],
)
def test_options_out_of_range(options: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        PrepareOptions(**options)
    assert message in str(caught.value)


def test_options_may_be_given_as_text() -> None:
    given: dict = {"quality": "90", "bounding_boxes": Path("boxes.csv"), "recompress": "true"}
    assert PrepareOptions(**given) == PrepareOptions(quality=90, bounding_boxes="boxes.csv", recompress=True)


def test_recompressed_photos_are_counted_and_the_manifest_says_how(tmp_path: Path, draw, run) -> None:
    raw = tmp_path / "raw"
    for i in range(4):
        draw(raw / f"train/{'ab'[i % 2]}/{i}.jpg", i, size=(150, 140), quality=(100 if i else 30), subsampling="4:4:4")
    before = {path.name: path.read_bytes() for path in raw.rglob("*.jpg")}
    whole, manifest = run(raw, tmp_path / "whole"), run(raw, tmp_path / "out", recompress=True, quality=90)
    assert noticed(manifest) == {"JPEG of more bytes than needed": (3, [])}
    assert (manifest.options["recompress"], manifest.options["quality"]) == (True, 90)
    assert manifest.image_bytes.max < whole.image_bytes.max
    assert (manifest.image_height, manifest.image_width) == (whole.image_height, whole.image_width)
    assert {path.name: path.read_bytes() for path in raw.rglob("*.jpg")} == before
    stored = {record["image/filename"][0].decode(): record for record in features(tmp_path / "out", "train")}
    assert stored["0.jpg"]["image/encoded"] == [before["0.jpg"]]
    assert all(len(stored[name]["image/encoded"][0]) < len(before[name]) for name in before if name != "0.jpg")


def test_an_option_that_is_off_is_no_change(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    run(class_folders, out)
    state = json.loads((out / "_prepare" / "prepare.json").read_text())
    state["options"] = {name: value for name, value in state["options"].items() if name != "subsampling"}
    assert "recompress" not in state["options"]
    (out / "_prepare" / "prepare.json").write_text(json.dumps(state))  # as from before these options existed
    run(class_folders, out)
    with pytest.raises(UserError, match="recompress was None, is True"):
        run(class_folders, out, recompress=True)


def test_more_shards_than_images(class_folders: Path, tmp_path: Path, run) -> None:
    manifest = run(class_folders, tmp_path / "out", test_shards=7)
    assert [entry.num_images for entry in manifest.splits["test"].files.values()] == [1, 1, 1, 1, 0, 0, 0]
    assert len(features(tmp_path / "out", "test")) == 4


def test_a_bucket(class_folders: Path, tmp_path: Path, run, contents) -> None:
    manifest = run(class_folders, "memory://prepared/out")
    run(class_folders, tmp_path / "out")
    assert read_manifest("memory://prepared/out") == manifest == read_manifest(str(tmp_path / "out"))
    for name, digest in contents(tmp_path / "out").items():
        with storage.open_read(f"memory://prepared/out/{name}") as file:
            assert hashlib.sha256(file.read()).hexdigest() == digest
    assert run(class_folders, "memory://prepared/out") == manifest
    assert len(run(class_folders, "memory://prepared/out", seed=2, overwrite=True).class_names) == 3


def test_preparing_does_not_load_jax(run) -> None:
    code = "import sys, resnet_tpu.data.prepare.prepare; sys.exit('jax' in sys.modules or 'cv2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_flowers(photos: Path, tmp_path: Path, run) -> None:
    for place in (photos / "flowers").iterdir():
        (tmp_path / "flowers" / place.name).mkdir(parents=True)
        for path in sorted(place.iterdir())[:20]:
            (tmp_path / "flowers" / place.name / path.name).symlink_to(path)
    manifest = run(tmp_path / "flowers", tmp_path / "out")
    assert manifest.class_names == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    assert {name: entry.num_images for name, entry in manifest.splits.items()} == {
        "train": 80,
        "validation": 10,
        "test": 10,
    }
    record = parse_image_example(RecordFile(str(next((tmp_path / "out").glob("test-*"))))[0])
    assert record.encoded == (photos / "flowers" / record.text / record.filename).read_bytes()


def test_a_file_whose_name_is_not_text_is_noticed_like_others(
    class_folders: Path, tmp_path: Path, run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(os.fsdecode(os.fsencode(class_folders / "cat") + b"/caf\xe9.txt")).write_bytes(b"")
    manifest = run(class_folders, tmp_path / "out")
    assert noticed(manifest)["not an image file, by its name"] == (1, ["cat/caf\udce9.txt"])
    assert "cat/caf\\udce9.txt" in (tmp_path / "out" / "report.txt").read_text("utf-8")
    assert read_manifest(str(tmp_path / "out")) == manifest


def test_rows_of_a_csv_may_name_images_of_a_bucket(class_folders: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\ngs://bucket/a.jpg,cat\nraw/dog/000.jpg,dog\n")
    paths = [photo.path for photo in find_photos(str(tmp_path / "list.csv")).photos]
    assert paths == ["gs://bucket/a.jpg", str(class_folders / "dog" / "000.jpg")]
