"""Where images come from, and the errors if there are none."""

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import fsspec
import numpy as np
import pytest

from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordError, RecordWriter
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.image_files import FileSource
from resnet_tpu.data.sources.labels import UNKNOWN_LABEL
from resnet_tpu.data.sources.source import RemoteSource, Sample, Source
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.data.split import SPLITS, NoSplitError, Split
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig


def config(data_dir: Path | str, **options: Any) -> DataConfig:
    return DataConfig(data_dir=str(data_dir), **options)


def write(path: Path, *records: dict[str, Any] | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with RecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record if isinstance(record, bytes) else encode_example(record))


def example(label: int, name: str = "") -> dict[str, Any]:
    return {"image/encoded": f"{name}{label}", "image/class/label": label, "image/filename": name}


@pytest.fixture
def memory_dir() -> Iterator[str]:
    """A folder that is not on this machine's disk but in memory."""
    folder = f"memory://{uuid.uuid4().hex}"
    yield folder
    fsspec.filesystem("memory").rm(folder, recursive=True)


def samples(source: Source) -> list[Sample]:
    return [source[i] for i in range(len(source))]


def labels(source: Source) -> list[int]:
    return [sample.label for sample in samples(source)]


def places(source: Source) -> list[str]:
    return [source.where(i) for i in range(len(source))]


# --------------------------------------------------------------------------------------------------------- TFRecords


def test_records_come_in_the_order_of_files(tmp_path: Path) -> None:
    write(tmp_path / "train-00001-of-00003")  # an empty shard, as left by the original's converter
    write(tmp_path / "train-00002-of-00003", example(3, "c.jpg"))
    write(tmp_path / "train-00000-of-00003", example(1, "a.jpg"), example(2, "b.jpg"))
    source = open_source(config(tmp_path, num_label_classes=3), "train")
    assert samples(source) == [
        Sample(b"a.jpg1", 0, "a.jpg"),
        Sample(b"b.jpg2", 1, "b.jpg"),
        Sample(b"c.jpg3", 2, "c.jpg"),
    ]
    assert not source.honour_exif
    assert source.class_names is None
    assert source.where(1).startswith(f"in record 1 of {tmp_path}/train-00000-of-00003 at byte ")
    assert source.where(2) == f"in record 0 of {tmp_path}/train-00002-of-00003 at byte 0"


def named(label: int, name: str = "", *, key: str = "image/class/text") -> dict[str, Any]:
    return example(label) | ({key: name} if name else {})


def classes(data_dir: Path | str, split: Split = "train", **options: Any) -> tuple[list[str] | None, int]:
    source = open_source(config(data_dir, **options), split)
    return source.class_names, source.num_classes


FLOWERS = ["daisy", "rose", "tulip"]


def test_classes_are_counted_from_labels_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train-0", named(2, "rose"), named(1, "daisy"))
    write(tmp_path / "train-1", named(2, "rose"))
    write(tmp_path / "validation-0", named(3, "tulip", key="image/class/synset"), named(2, "rose"))
    write(tmp_path / "test-0", named(-1))
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        for split in SPLITS:
            assert classes(tmp_path, split) == (FLOWERS, 3)
    assert [record.message for record in caplog.records] == [
        f"Counting the classes in {tmp_path}, once: it has no manifest.json and no labels.txt.",
        f"{tmp_path}: 3 classes, by the labels of its records (daisy, rose, tulip)",
    ]
    assert (tmp_path / "_index" / "classes.json").exists()
    with monkeypatch.context() as patched:
        patched.setattr("resnet_tpu.data.sources.classes.read_label", Mock(side_effect=AssertionError))
        moved = tmp_path.rename(tmp_path.with_name("moved"))
        assert classes(moved) == (FLOWERS, 3)
        assert classes(moved, num_label_classes=7) == (None, 7)  # labels are not read
    (moved / "_index" / "classes.json").write_text("[" * 5)  # damaged
    assert classes(moved) == (FLOWERS, 3)
    write(moved / "train-1", named(4, "lily"))  # the file was replaced
    assert classes(moved) == ([*FLOWERS, "lily"], 4)
    (moved / "labels.txt").write_text("a\nb\nc\nd\n")
    assert classes(moved) == (["a", "b", "c", "d"], 4)


@pytest.mark.parametrize("records", [[named(1), named(2)], [named(1, "a"), named(2, "b"), named(1, "another")]])
def test_classes_without_a_name_each_are_counted(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    write(tmp_path / "train-0", *records)
    assert classes(tmp_path) == (None, 2)


def test_an_empty_list_of_classes_names_none(tmp_path: Path) -> None:
    write(tmp_path / "train-0", named(1, "a"), named(2, "b"))
    (tmp_path / "labels.txt").touch()
    assert classes(tmp_path) == (["a", "b"], 2)


def test_1001_classes_without_names_are_refused_as_their_labels_would_be_taken_for_others(tmp_path: Path) -> None:
    write(tmp_path / "train-0", *(named(label) for label in range(1, 1002)))
    with pytest.raises(UserError, match="got 1001, without names, expected names for them"):
        classes(tmp_path)


@pytest.mark.parametrize("name", ["flowers-train.tfrecord-00000-of-00001", "photos.csv"])
def test_records_by_another_name_are_named(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, example(1))
    for data_dir in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=rf"got TFRecords, such as {tmp_path}/{name}, expected a folder of files"):
            open_source(config(data_dir), "train")


def test_records_beside_class_folders_are_no_matter(class_folders: Path, tmp_path: Path) -> None:
    write(tmp_path / "records" / "train-0", example(1))
    shutil.copy(tmp_path / "records" / "train-0", class_folders / "events.out.tfevents.1")
    assert len(open_source(config(class_folders), "train"))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (
            [named(7, "n01440764"), named(1000, "n15075141")],
            "its records, 2 from 7 to 1000, do not tell how many",
        ),
        ([named(0, "a"), named(1, "b")], "the labels of its records, 2 from 0 to 1, do not tell how many"),
        ([named(1, "a")], "the labels of its records, 1 from 1 to 1, do not tell how many"),
        ([b"no example"], "its records have no labels"),
    ],
)
def test_labels_that_do_not_tell_the_classes_mean_imagenets(
    tmp_path: Path, records: list[dict[str, Any] | bytes], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train-0", *records)
    assert classes(tmp_path) == (None, 1000)
    assert f"{tmp_path} has no manifest.json and no labels.txt, and " in caplog.text
    assert why in caplog.text
    assert "the 1000 classes of ImageNet are assumed" in caplog.text


def test_labels_in_a_bucket_are_counted_only_where_that_reads_little(
    memory_dir: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with RecordWriter(f"{memory_dir}/train-0") as writer:
        for label, name in enumerate(FLOWERS, 1):
            writer.write(encode_example(named(label, name)))
    with monkeypatch.context() as patched:
        patched.setattr("resnet_tpu.data.sources.classes._MOST_REMOTE_BYTES", 100)
        patched.setattr("resnet_tpu.data.sources.classes.read_label", Mock(side_effect=AssertionError))
        assert classes(memory_dir, cache_folder="none") == (None, 1000)
    assert "its labels are not counted, as that would read all of its 0.0 GB: the 1000 classes of" in caplog.text
    assert classes(memory_dir, cache_folder="none") == (FLOWERS, 3)
    monkeypatch.setattr("resnet_tpu.data.sources.classes.read_label", Mock(side_effect=AssertionError))
    assert classes(memory_dir, cache_folder="none") == (FLOWERS, 3)  # stored on this machine


def test_number_of_classes(tmp_path: Path) -> None:
    write(tmp_path / "train-0", example(1000))
    assert open_source(config(tmp_path), "train").num_classes == 1000
    (tmp_path / "labels.txt").write_text("daisy\nrose\n\n")
    source = open_source(config(tmp_path, num_label_classes=5), "train")
    assert (source.class_names, source.num_classes) == (["daisy", "rose"], 5)
    source = open_source(config(tmp_path), "train")
    assert (source.class_names, source.num_classes) == (["daisy", "rose"], 2)
    with pytest.raises(UserError, match=r"num_label_classes: got 1, expected at least the 2 classes"):
        open_source(DataConfig(data_dir=str(tmp_path), num_label_classes=1), "train")


def test_1001_classes_take_labels_as_stored(tmp_path: Path) -> None:
    write(tmp_path / "train-0", example(0), example(1), example(1000))
    (tmp_path / "labels.txt").write_text("\n".join(f"class {i}" for i in range(1, 1001)))
    source = open_source(config(tmp_path, num_label_classes=1001), "train")
    assert labels(source) == [0, 1, 1000]
    assert source.class_names
    assert (len(source.class_names), source.class_names[0], source.class_names[1]) == (1001, "background", "class 1")


@pytest.mark.parametrize("options", [{}, {"num_label_classes": 1001}])  # as a training has them, then its checkpoint
def test_1001_named_classes_have_no_background(tmp_path: Path, options: dict[str, int]) -> None:
    write(tmp_path / "train-0", example(1), example(1001))
    (tmp_path / "labels.txt").write_text("\n".join(f"class {i}" for i in range(1, 1002)))
    source = open_source(config(tmp_path, **options), "train")
    assert labels(source) == [0, 1000]
    assert source.class_names
    assert (len(source.class_names), source.num_classes, source.class_names[0]) == (1001, 1001, "class 1")


@pytest.mark.parametrize(("label", "options"), [(0, {}), (3, {}), (-1, {}), (1001, {"num_label_classes": 1001})])
def test_label_out_of_range(tmp_path: Path, label: int, options: dict[str, int]) -> None:
    write(tmp_path / "train-00000-of-00001", example(1), example(label))
    source = open_source(config(tmp_path, **(options or {"num_label_classes": 2})), "train")
    assert source[0]
    with pytest.raises(
        UserError, match=rf"Label in record 1 of .*train-00000-of-00001 at byte \d+: got {label}, expected"
    ) as caught:
        _ = source[1]
    assert ("count from 1" in caught.value.do) == (label == 0)


def test_random_labels_follow_from_the_file_name_alone(tmp_path: Path) -> None:
    names = ("n01440764_10026.JPEG", "ILSVRC2012_val_00000001.JPEG")
    splits: tuple[tuple[Split, int], ...] = (("train", 1), ("validation", 999))
    for split, label in splits:
        write(tmp_path / f"{split}-0", *(example(label, name) for name in names))
        random = open_source(config(tmp_path, lth_use_random_label=True), split)
        assert labels(random) == [361, 611]  # TensorFlow's hashes modulo 1000
        assert [sample.name for sample in samples(random)] == [*names]
    for name, class_name in zip(names, ("cat", "dog"), strict=True):
        photo = tmp_path / "photos" / "train" / class_name / name
        photo.parent.mkdir(parents=True)
        photo.write_bytes(b"x")
    in_folder = open_source(config(tmp_path / "photos", lth_use_random_label=True, num_label_classes=1000), "train")
    assert labels(in_folder) == [361, 611]
    few = open_source(config(tmp_path, lth_use_random_label=True, num_label_classes=7), "train")
    assert labels(few) == [10039506620223816361 % 7, 5943321549862734611 % 7]


def test_only_the_test_split_may_lack_labels(tmp_path: Path) -> None:
    for split in SPLITS:
        write(tmp_path / f"{split}-0", {"image/encoded": b"x"})
    assert open_source(config(tmp_path), "test")[0] == Sample(b"x", -1, "test-0:0")
    for split in ("train", "validation"):
        with pytest.raises(
            UserError, match=r"Label in record 0.*Write the class .* into its feature image/class/label"
        ):
            _ = open_source(config(tmp_path), split)[0]


def test_missing_split_and_empty_files(tmp_path: Path) -> None:
    write(tmp_path / "train-0", example(1))
    write(tmp_path / "validation-0")
    with pytest.raises(
        UserError, match=r"got train-\*, validation-\*, expected files named test-\*\. Make the test split"
    ):
        open_source(config(tmp_path), "test")
    with pytest.raises(NoSplitError, match=r"got 1 empty validation-\* files, expected records in them"):
        open_source(config(tmp_path), "validation")


def test_unfinished_and_incomplete_data_sets(class_folders: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    out = tmp_path / "out [1]"  # must not be taken for a pattern
    run(class_folders, out, train_shards=3)
    assert len(open_source(config(out), "train")) == 32
    shutil.copy(out / "train-00001-of-00003", out / "train-00001-of-00008")  # of an earlier edition
    listed = r"got 1 train files that manifest.json does not list, such as train-00001-of-.*json and _prepare/, and all"
    with pytest.raises(UserError, match=listed):
        open_source(config(out), "train")
    (out / "train-00001-of-00008").unlink()
    run(class_folders, other := tmp_path / "other", split="0.8,0.2")
    shutil.copy(other / "validation-00000-of-00001", other / "test-00000-of-00001")
    with pytest.raises(UserError, match="got 1 test files that manifest"):
        open_source(config(other), "test")
    (out / "train-00001-of-00003").rename(tmp_path / "elsewhere")
    missing = r"got 2 of 3 train files \(train-00001-of-00003 is missing\), expected all files that manifest.json lists"
    with pytest.raises(UserError, match=missing):
        open_source(config(out), "train")
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match="got what an interrupted `prepare` left behind, expected a finished data set"):
        open_source(config(out), "train")
    shutil.rmtree(out / "_prepare")
    assert 0 < len(open_source(config(out), "train")) < 32


def test_photos_that_a_folder_of_classes_leaves_out_are_named_once(
    class_folders: Path, draw: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    draw(class_folders / "cat" / "small" / "0.jpg")
    draw(class_folders / "stray.jpg")
    draw(class_folders / "one" / "0.jpg")
    for name in ("cat/phone.HEIC", "cat/notes.txt"):
        (class_folders / name).touch()
    assert len(open_source(config(class_folders), "train")) == 32
    open_source(config(class_folders), "validation")
    assert [record.getMessage() for record in caplog.records] == [
        f"{class_folders}: class too small for every split, kept: 1 (one (0/0/1 of 1 images, none to train on))",
        f"{class_folders}: folder inside a class folder, ignored: 1 (cat/small)",
        f"{class_folders}: image outside the class folders, ignored: 1 (stray.jpg)",
        f"{class_folders}: not an image file, by its name, ignored: 1 (cat/phone.HEIC)",
    ]


def test_a_list_beside_class_folders_is_not_taken_for_records(class_folders: Path) -> None:
    for name in ("train-labels.csv", "test-notes.txt"):
        (class_folders / name).write_text("a,b\n" * 10)
    assert len(open_source(config(class_folders), "train")) == 32
    assert not (class_folders / "_index").exists()


def test_files_that_are_not_as_many_as_they_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        write(tmp_path / f"train-{number:05}-of-00003", example(1))
    for _ in range(2):
        assert len(open_source(config(tmp_path, num_label_classes=3), "train")) == 2
    message = f"{tmp_path} has 2 files such as train-00000-of-00003, where their names say 3."
    assert [record.getMessage() for record in caplog.records if "of-0" in record.getMessage()] == [message]
    caplog.clear()
    write(tmp_path / "train-00002-of-00003", example(1))
    open_source(config(tmp_path, num_label_classes=3), "train")
    assert "where their names say" not in caplog.text


@pytest.mark.parametrize("place", ["local", "remote"])
def test_some_examples_are_spread_over_all(place: str, tmp_path: Path, memory_dir: str) -> None:
    folder = str(tmp_path) if place == "local" else memory_dir
    with RecordWriter(f"{tmp_path}/validation-00000-of-00001") as writer:
        for label in range(12):
            writer.write(encode_example(example(label // 4 + 1, str(label))))
    fsspec.filesystem("memory").put(f"{tmp_path}/validation-00000-of-00001", f"{memory_dir}/")
    source = open_source(config(folder, num_label_classes=3), "validation")
    assert evenly_spaced(source, 12) is source
    few = evenly_spaced(source, 6)
    assert labels(few) == [0, 0, 1, 1, 2, 2]
    assert places(few) == [source.where(i) for i in range(0, 12, 2)]
    if place == "remote":
        found = cast("RemoteSource", few).fetch([0, 5])
        assert [sample.name for sample in found if isinstance(sample, Sample)] == ["0", "10"]


def test_a_folder_that_may_not_be_read_is_not_left_out(class_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(path: str) -> Any:
        if path.endswith("dog"):  # as the system does for users other than root
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    assert len(FileSource([str(class_folders)], ())) == 40
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"Folder .*dog: got Permission denied, expected a readable folder\. Check its"):
        FileSource([str(class_folders)], ())


def test_damaged_records_name_their_place(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    write(path, example(1, "a"), b"no example", example(1, "c"))
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # in the payload of the last record
    path.write_bytes(data)
    source = open_source(config(tmp_path), "train")
    assert source[0].name == "a"
    for record in (1, 2):
        with pytest.raises(RecordError, match=rf"^Record {record} of {path} at byte \d+: got"):
            _ = source[record]


def test_truncated_shard_is_refused_or_used_as_far_as_it_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "train-00000-of-00001"
    write(path, example(1, "a"), example(1, "b"))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RecordError, match=f"Record 1 of {path} at byte"):
        open_source(config(tmp_path), "train")
    source = open_source(config(tmp_path, skip_bad_records=True), "train")
    assert [sample.name for sample in samples(source)] == ["a"]
    assert f"Left out: Record 1 of {path} at byte " in caplog.text


# ----------------------------------------------------------------------------------------------------------- folders


def test_class_folders_are_split_as_prepare_does(class_folders: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    run(class_folders, tmp_path / "out")
    everything = []
    for split in SPLITS:
        photos, records = (open_source(config(folder), split) for folder in (class_folders, tmp_path / "out"))
        assert photos.class_names == records.class_names == ["cat", "dog", "emu"]
        assert photos.num_classes == records.num_classes == 3
        assert photos.honour_exif

        def content(source: Source) -> list[tuple[Any, int, str]]:
            return sorted((s.encoded, s.label, Path(s.name).name) for s in samples(source))

        assert content(photos) == content(records)
        everything.extend(places(photos))
    assert sorted(everything) == sorted(map(str, class_folders.rglob("*.jpg")))


def test_split_folders_number_classes_once(tmp_path: Path, draw: Callable[..., Path]) -> None:
    for name in ("train/b/1.jpg", "train/c/1.jpg", "train/c/2.PNG", "val/c/3.jpg", "test/a/4.jpg", "test/c/5.jpg"):
        draw(tmp_path / name)
    (tmp_path / "LICENSE.txt").write_text("free")
    expected: dict[Split, list[str]] = {
        "train": ["b/1.jpg", "c/1.jpg", "c/2.PNG"],
        "validation": ["c/3.jpg"],
        "test": ["a/4.jpg", "c/5.jpg"],
    }
    for split, names in expected.items():
        source = open_source(config(tmp_path), split)
        assert source.class_names == ["a", "b", "c"]
        assert [sample.name.partition("/")[2] for sample in samples(source)] == names
        assert labels(source) == ["abc".index(name[0]) for name in names]


def test_csv_is_a_source(tmp_path: Path, draw: Callable[..., Path]) -> None:
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        draw(tmp_path / name)
    (tmp_path / "list.csv").write_text("path,label,split\n1.jpg,cat,train\n2.jpg,dog,train\n3.jpg,cat,val\n")
    assert labels(open_source(config(tmp_path / "list.csv"), "train")) == [0, 1]
    assert labels(open_source(config(tmp_path / "list.csv"), "validation")) == [0]


def test_folders_with_background_class(class_folders: Path) -> None:
    source = open_source(config(class_folders, num_label_classes=1001), "train")
    assert source.class_names == ["background", "cat", "dog", "emu"]
    assert set(labels(source)) == {1, 2, 3}


def test_folders_that_cannot_be_used(class_folders: Path, tmp_path: Path, draw: Callable[..., Path]) -> None:
    def refused(data_dir: Path, split: Split, text: str, **options: Any) -> None:
        with pytest.raises(UserError, match=text):
            open_source(config(data_dir, **options), split)

    refused(tmp_path / "nowhere", "train", r"data_dir: got '.*nowhere', expected an existing folder\. Check the path")
    refused(Path("nowhere"), "train", rf"Check the path, here {Path.cwd()}/nowhere, or give another with --data_dir\.")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "train", r"empty: got no image in a class folder, expected one folder per class")
    draw(tmp_path / "flat" / "1.jpg")
    refused(tmp_path / "flat", "train", "one folder per class with images in it")
    refused(class_folders, "train", "num_label_classes: got 2, expected at least the 3 classes", num_label_classes=2)
    (class_folders / "fox").mkdir()
    refused(class_folders, "train", f"Class folder {class_folders}/fox: got no images, expected at least one")
    (class_folders / "fox" / "old").mkdir()
    refused(
        class_folders, "train", r"fox: got no images \(fox/old: folder inside a class folder\), expected at least one"
    )
    few = tmp_path / "few"
    for name in ("a/1.jpg", "b/1.jpg"):
        draw(few / name)
    refused(few, "validation", r"none of its 2 images, which are split at random, expected validation .* --mode=train")
    shutil.copytree(few, tmp_path / "split" / "train")
    refused(tmp_path / "split", "test", "got none of its 2 images, expected test images. Add test images; or choose")


def test_photo_that_disappears(class_folders: Path) -> None:
    source = open_source(config(class_folders), "train")
    shutil.rmtree(class_folders)
    with pytest.raises(
        UserError, match=r"Image .*/cat/\d+.jpg: got No such file or directory, expected a readable file"
    ):
        _ = source[0]


# ---------------------------------------------------------------------------------------------------------- made up


@pytest.mark.parametrize("data_dir", ["", "null", "synthetic"])
def test_made_up_data_is_as_long_as_asked_for(data_dir: str) -> None:
    lengths = {split: len(open_source(config(data_dir), split)) for split in SPLITS}
    assert lengths == {"train": 1_281_167, "validation": 50_000, "test": 50_000}
    data = config(
        data_dir, num_train_images=5, num_eval_images=6, num_test_images=7, num_label_classes=3, image_size=16
    )
    assert [len(open_source(data, split)) for split in SPLITS] == [5, 6, 7]
    source = open_source(data, "train")
    assert (source.class_names, source.num_classes) == (None, 3)
    for sample in samples(source):
        assert isinstance(sample.encoded, np.ndarray)
        assert (sample.encoded.shape, sample.encoded.dtype) == ((16, 16, 3), np.uint8)


def test_null_is_black() -> None:
    assert not np.any(open_source(config("null", image_size=16), "train")[17].encoded)
    assert open_source(config("null", image_size=16), "train")[17].label == 0


def test_synthetic_images_can_be_told_apart_by_colour() -> None:
    data = config("synthetic", image_size=32, num_label_classes=100, num_train_images=200, num_eval_images=100)
    train, validation = open_source(data, "train"), open_source(data, "validation")
    assert labels(train) == [*range(100)] * 2

    def colours(source: Source) -> np.ndarray:
        return np.array([np.mean(np.asarray(sample.encoded), (0, 1)) for sample in samples(source)])

    known, asked = colours(train)[:100], colours(validation)
    nearest = np.square(known[:, None] - asked[None]).sum(2).argmin(0)
    np.testing.assert_array_equal(nearest, labels(validation))
    first = train[0].encoded
    np.testing.assert_array_equal(first, train[0].encoded)
    assert np.any(first != train[100].encoded)
    assert np.any(first != validation[0].encoded)


def test_a_folder_to_predict_may_have_any_name_and_hold_folders(tmp_path: Path, draw: Callable[..., Path]) -> None:
    paths = [draw(tmp_path / "roses [2020] *" / name) for name in ("deep/a.jpg", "b.JPG")]
    (tmp_path / "roses [2020] *" / "album.jpg").mkdir()  # a folder, despite its name
    source = FileSource([str(tmp_path / "roses [2020] *")], ["deep", "other"])
    assert [source.where(i) for i in range(len(source))] == sorted(map(str, paths))
    assert [source[i].label for i in range(len(source))] == [UNKNOWN_LABEL, 0]


def test_images_to_look_at_are_those_that_a_training_would_take(tmp_path: Path, draw) -> None:
    draw(tmp_path / "photos" / "a" / "1.jpg")
    draw(tmp_path / "elsewhere" / "2.jpg")
    (tmp_path / "photos" / "a" / "._1.jpg").write_bytes(b"of a Mac")
    (tmp_path / "photos" / ".trash").mkdir()
    draw(tmp_path / "photos" / ".trash" / "3.jpg")
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "a" / "again").symlink_to(tmp_path / "photos")
    source = FileSource([str(tmp_path / "photos")], ["a", "b"])
    assert [source.where(i) for i in range(len(source))] == [
        f"{tmp_path}/photos/{name}" for name in ("a/1.jpg", "b/2.jpg")
    ]


def test_an_image_that_is_gone_is_named(tmp_path: Path, draw) -> None:
    draw(tmp_path / "a" / "1.jpg")
    (tmp_path / "a" / "2.jpg").symlink_to("nowhere.jpg")
    source = FileSource([str(tmp_path)], ["a"])
    with pytest.raises(UserError, match=r"a/2\.jpg: got No such file or directory, expected a readable file"):
        source[1]
