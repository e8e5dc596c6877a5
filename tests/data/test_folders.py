"""Which photos are found in which folder layout, and what is reported about the rest."""

import os
import shutil
from pathlib import Path

import fsspec
import pytest

from resnet_tpu.data.boxes import Box
from resnet_tpu.data.findings import Finding, Kind
from resnet_tpu.data.folders import find_photos
from resnet_tpu.data.photos import PhotoListing
from resnet_tpu.errors import UserError


def listed(found: PhotoListing) -> list[tuple[str, str, str | None]]:
    return [(photo.name, photo.class_name, photo.split) for photo in found.photos]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.JPG", "b/10.jpeg", "a/x.png", "a/.hidden.jpg", ".cache/z.jpg", "a/notes.txt", "LICENSE.txt")
    touch(tmp_path, "a/._x.png", ".git/HEAD", ".DS_Store")  # nobody's photos
    touch(tmp_path, "stray.jpg", "a/deeper/y.jpg", "Z/1.GIF")
    (tmp_path / "empty").mkdir()
    found = find_photos(str(tmp_path))
    assert listed(found) == [
        ("Z/1.GIF", "Z", None),
        ("a/x.png", "a", None),
        ("b/10.jpeg", "b", None),
        ("b/2.JPG", "b", None),
    ]
    assert not found.has_splits
    assert set(found.findings) == {
        Finding(Kind.OTHER_FILE, "LICENSE.txt"),
        Finding(Kind.OTHER_FILE, "a/notes.txt"),
        Finding(Kind.STRAY, "stray.jpg"),
        Finding(Kind.HIDDEN, ".cache"),
        Finding(Kind.HIDDEN, "a/.hidden.jpg"),
        Finding(Kind.NESTED, "a/deeper"),
        Finding(Kind.NO_IMAGES, "empty"),
    }


@pytest.mark.parametrize("validation", ["validation", "val", "valid", "Validation"])
def test_split_folders(tmp_path: Path, validation: str) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", f"{validation}/a/2.jpg", "test/b/3.jpg", "README.md")
    found = find_photos(str(tmp_path))
    assert found.has_splits
    assert sorted(listed(found)) == sorted(
        [
            ("train/a/1.jpg", "a", "train"),
            ("train/b/1.jpg", "b", "train"),
            (f"{validation}/a/2.jpg", "a", "validation"),
            ("test/b/3.jpg", "b", "test"),
        ]
    )
    missing = {finding.path for finding in found.findings if finding.kind is Kind.MISSING_IN_SPLIT}
    assert missing == {f"{validation}/b", "test/a"}


def test_splits_may_be_capitalised(tmp_path: Path) -> None:
    touch(tmp_path, "Train/a/1.jpg", "Train/b/1.jpg", "TEST/b/3.jpg")
    assert listed(find_photos(str(tmp_path))) == [
        ("TEST/b/3.jpg", "b", "test"),
        ("Train/a/1.jpg", "a", "train"),
        ("Train/b/1.jpg", "b", "train"),
    ]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "plane/1.jpg")
    assert {photo.class_name for photo in find_photos(str(tmp_path)).photos} == {"train", "plane"}


def test_splits_without_class_folders_are_not_taken_for_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "val/2.jpg")
    with pytest.raises(
        UserError, match=r"got train, val, and no folder in train, expected one folder per class, or splits"
    ):
        find_photos(str(tmp_path))


def test_flat_validation_of_imagenet(tmp_path: Path) -> None:
    touch(tmp_path, "train/n01/1.JPEG", "train/n02/1.JPEG", "validation/v_2.JPEG", "validation/v_1.JPEG")
    with pytest.raises(UserError, match="2 images without class folders, expected class folders, or synset_labels"):
        find_photos(str(tmp_path))
    (tmp_path / "synset_labels.txt").write_text("n02\nn01\n")
    assert listed(find_photos(str(tmp_path)))[2:] == [
        ("validation/v_1.JPEG", "n02", "validation"),
        ("validation/v_2.JPEG", "n01", "validation"),
    ]
    touch(tmp_path, "validation/3.HEIC", "validation/.4.jpg")
    assert find_photos(str(tmp_path)).findings == [
        Finding(Kind.OTHER_FILE, "synset_labels.txt"),
        Finding(Kind.HIDDEN, "validation/.4.jpg"),
        Finding(Kind.OTHER_FILE, "validation/3.HEIC"),
    ]
    for count in (1, 3):
        (tmp_path / "synset_labels.txt").write_text("n02\n" * count)
        with pytest.raises(UserError, match=f"got {count} lines, expected one per image, 2"):
            find_photos(str(tmp_path))


def test_an_empty_validation_folder_needs_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg")
    (tmp_path / "validation").mkdir()
    assert [name for name, *_ in listed(find_photos(str(tmp_path)))] == ["train/a/1.jpg", "train/b/1.jpg"]


def test_split_folders_that_cannot_be_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "validaton/a/1.jpg")
    with pytest.raises(UserError, match=r"train next to validaton.*Did you mean validation"):
        find_photos(str(tmp_path))
    shutil.rmtree(tmp_path / "validaton")
    touch(tmp_path, "val/a/1.jpg", "validation/a/1.jpg")
    with pytest.raises(UserError, match="expected one folder per split"):
        find_photos(str(tmp_path))
    shutil.rmtree(tmp_path / "val")
    touch(tmp_path, "Train/1.jpg")
    with pytest.raises(UserError, match="got Train and train, expected one folder per split"):
        find_photos(str(tmp_path))


def test_nothing_to_prepare(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a folder of class folders or a CSV file"):
        find_photos(str(tmp_path / "missing"))
    with pytest.raises(UserError, match="no image in a class folder"):
        find_photos(str(tmp_path))
    touch(tmp_path, "1.jpg", "2.JPG")
    with pytest.raises(UserError, match=r"got .*2\.JPG, expected a folder of class folders or a CSV file"):
        find_photos(str(tmp_path / "2.JPG"))
    with pytest.raises(UserError, match=r"no image in a class folder \(1.jpg: image outside the class folders\)"):
        find_photos(str(tmp_path))
    touch(tmp_path, "photos.zip")
    with pytest.raises(UserError, match=r"got .*photos\.zip, expected a folder of class folders or a CSV .* Unpack it"):
        find_photos(str(tmp_path / "photos.zip"))
    touch(tmp_path, "a/1.jpg")
    with pytest.raises(UserError, match=r"one class \(a\), expected at least two"):
        find_photos(str(tmp_path))
    touch(tmp_path, "b/1.HEIC")
    with pytest.raises(UserError, match=r"one class \(a\), and b with no images \(b/1.HEIC: not an image file, by"):
        find_photos(str(tmp_path))


def test_one_name_in_two_forms_of_unicode_is_not_two_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/m\u00fcsli/1.jpg", "train/b/1.jpg", "validation/mu\u0308sli/1.jpg")
    with pytest.raises(UserError, match=r"one name in two forms of Unicode \('mu\\u0308sli', 'm\\xfcsli'\)"):
        find_photos(str(tmp_path))


def test_paths_of_a_csv_in_a_bucket_are_taken_as_on_a_disk() -> None:
    rows = "path,label\n./a/1.jpg,a\nb/../b/2.jpg,b\na/1.jpg,a\na//3.jpg,a\ngs://other/./c.jpg,a\n"
    fsspec.filesystem("memory").pipe("/listed/list.csv", rows.encode())
    found = find_photos("memory://listed/list.csv")
    paths = {f"memory://listed/{name}" for name in ("a/1.jpg", "b/2.jpg", "a//3.jpg")} | {"gs://other/./c.jpg"}
    assert {photo.path for photo in found.photos} == paths
    assert [finding.kind for finding in found.findings] == [Kind.LISTED_TWICE]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b\nc/1.jpg")
    with pytest.raises(UserError, match=r"Class name: got 'b\\nc'"):
        find_photos(str(tmp_path))
    shutil.rmtree(tmp_path / "b\nc")
    touch(tmp_path, "b /1.jpg")
    with pytest.raises(UserError, match=r"Class name: got 'b ', expected .* without a space at either end"):
        find_photos(str(tmp_path))
    shutil.rmtree(tmp_path / "b ")
    touch(tmp_path, os.fsdecode(b"b/caf\xe9.jpg"))
    assert len(find_photos(str(tmp_path)).photos) == 2


def write_csv(folder: Path, text: str, encoding: str = "utf-8") -> str:
    (folder / "list.csv").write_text(text, encoding=encoding)
    return str(folder / "list.csv")


def test_csv(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg", "x/2.jpg")
    path = write_csv(tmp_path, 'label, path,more\nb,x/2.jpg,1\n"a,b",/abs/1.jpg,2\n\nb,x/2.jpg,1\n', "utf-8-sig")
    found = find_photos(path)
    assert listed(found) == [("/abs/1.jpg", "a,b", None), ("x/2.jpg", "b", None)]
    assert [photo.path for photo in found.photos] == ["/abs/1.jpg", str(tmp_path / "x/2.jpg")]
    assert found.findings == [Finding(Kind.LISTED_TWICE, "x/2.jpg", "line 5")]
    assert not found.has_splits
    found = find_photos(write_csv(tmp_path, "path,label,split\n1.jpg,a,train\n2.jpg,b,val\n3.jpg,b,Test\n"))
    assert found.has_splits
    assert [photo.split for photo in found.photos] == ["train", "validation", "test"]
    missing = [finding.path for finding in found.findings if finding.kind is Kind.MISSING_IN_SPLIT]
    assert missing == ["train/b", "validation/a", "test/a"]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_csv_of_a_spreadsheet(tmp_path: Path, mark: str) -> None:
    touch(tmp_path, "1.jpg")
    text = f'Path{mark}Label\r\n1.jpg{mark}"red, ripe"\r\n2.jpg{mark}b\r\n'
    found = find_photos(write_csv(tmp_path, text, "utf-8-sig"))
    assert listed(found) == [("1.jpg", "red, ripe", None), ("2.jpg", "b", None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got columns missing, expected a first line path,label"),
        ("1.jpg,a\n", "got columns 1.jpg, a, expected a first line path,label"),
        ("path,label,label\n1.jpg,a,b\n", "got columns path, label, label, expected a first line path,label"),
        ("path,label\n", "no image"),
        ("path,label\n1.jpg,\n", "line 2: got path '1.jpg', label ''"),
        ("path,label,split\n1.jpg,a,\n", "line 2: got split ''"),
        ("path,label,split\n1.jpg,a,dev\n", "line 2: got split 'dev', expected train, validation or test"),
        ("path,label\n1\0.jpg,a\n2.jpg,b\n", "line 2: got path '1\\x00.jpg', expected a path without a zero byte"),
        ("path,label\n1.jpg,a\n./1.jpg,b\n", "line 3: got ./1.jpg again, as b and a"),
        ('path,label\n"1.jpg,a\n', "expected a readable CSV file"),
        ("path,label\n1.jpg,red, ripe\n2.jpg,b\n", "line 2: got 3 values, the last 'ripe', expected 2, one per column"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        find_photos(write_csv(tmp_path, text))
    assert message in str(caught.value)


def test_csv_seen_from_another_folder_or_without_extensions(tmp_path: Path) -> None:
    touch(tmp_path, "photos/1.jpg", "photos/2.jpg")
    path = write_csv(tmp_path, "path,label\n1.jpg,a\nphotos/2,b\n")
    with pytest.raises(UserError) as caught:
        find_photos(path)
    assert f"got 2 paths without a file, the first {tmp_path / '1.jpg'}, expected paths as seen" in str(caught.value)


def test_csv_with_paths_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "~2.jpg")
    monkeypatch.setenv("HOME", "/home/me")
    found = find_photos(write_csv(tmp_path, "path,label,split\n~/1.jpg,a,train,\n~2.jpg,b,train,\n"))
    assert [photo.path for photo in found.photos] == ["/home/me/1.jpg", str(tmp_path / "~2.jpg")]


def test_csv_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="UTF-8"):
        find_photos(write_csv(tmp_path, "path,label\n1.jpg,caf\u00e9\n2.jpg,b\n", "latin-1"))


def test_a_link_to_itself_is_no_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "loop").symlink_to("loop")
    found = find_photos(str(tmp_path))
    assert [photo.name for photo in found.photos] == ["a/1.jpg", "a/loop.jpg", "b/2.jpg"]
    assert found.findings == [Finding(Kind.OTHER_FILE, "loop")]


def test_boxes_for_two_photos_of_one_name_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "b/2.jpg")
    box = (Box(0.0, 0.0, 1.0, 1.0),)
    assert find_photos(str(tmp_path), {"2": box}).photos[2].boxes == box
    with pytest.raises(UserError, match=r"boxes of 1, and two photos of that name: a/1.jpg, b/1.jpg"):
        find_photos(str(tmp_path), {"1": box})
