"""ImageNet's layout and its bounding boxes."""

import re
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from resnet_tpu.data.boxes import read_boxes
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.records.example import decode_example
from resnet_tpu.data.records.tfrecord import RecordFile
from resnet_tpu.errors import UserError

QUIET = Console(quiet=True)
CSV = "n01_0.JPEG,0.1,0.25,0.5,1.0\nn01_0.JPEG,0,0,0.5,0.5\nn02_1.JPEG,0.5,0.5,0.25,1.01\nval_1.JPEG,0,0,1,1\n"


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """`train/<synset>/`, a flat `validation/` and `synset_labels.txt`; images of 20 x 40 px."""
    folder = tmp_path / "imagenet"
    for synset in ("n01", "n02"):
        (folder / "train" / synset).mkdir(parents=True)
        for number in range(3):
            colour = (40 * number, 0 if synset == "n01" else 200, 90)
            Image.new("RGB", (20, 40), colour).save(folder / "train" / synset / f"{synset}_{number}.JPEG")
    (folder / "validation").mkdir()
    for number in range(4):
        Image.new("RGB", (20, 40), (250, 60 * number, 0)).save(folder / "validation" / f"val_{number}.JPEG")
    (folder / "synset_labels.txt").write_text("n02\nn01\nn02\nn01\n")
    return folder


def _features(out: Path) -> dict[str, dict]:
    records = [decode_example(record) for path in out.glob("*-of-*") for record in RecordFile(str(path))]
    return {_text(record["image/filename"][0]): record for record in records}


def _text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def _boxes(record: dict) -> list[tuple[float, ...]]:
    sides = [record.get(f"image/object/bbox/{side}", []) for side in ("xmin", "ymin", "xmax", "ymax")]
    return [tuple(round(side, 6) for side in box) for box in zip(*sides, strict=True)]


def test_the_layout_of_imagenet(imagenet: Path, tmp_path: Path) -> None:
    manifest = prepare(str(imagenet), str(tmp_path / "out"), console=QUIET)
    assert manifest.class_names == ["n01", "n02"]
    assert {name: split.num_images for name, split in manifest.splits.items()} == {"train": 6, "validation": 4}
    found = _features(tmp_path / "out")
    labels = [found[f"val_{number}.JPEG"]["image/class/label"] for number in range(4)]
    assert labels == [[2], [1], [2], [1]]
    assert [record for record in found.values() if any("object" in name for name in record)] == []


def test_boxes_of_a_csv_and_of_xml_are_stored_with_their_images(imagenet: Path, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text(CSV)
    for name, pixels in {"n01_0": [(2, 10, 10, 40), (0, 0, 10, 20)], "n02_1": [(10, 20, 5, 41)]}.items():
        objects = "".join(
            f"<object><name>{name[:3]}</name><bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin>"
            f"<xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
            for box in pixels
        )
        size = "<size><width>20</width><height>40</height><depth>3</depth></size>"
        (tmp_path / "xml" / name[:3]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "xml" / name[:3] / f"{name}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    found = {}
    for source in ("boxes.csv", "xml"):
        out = tmp_path / f"out-{source}"
        options = PrepareOptions(bounding_boxes=str(tmp_path / source))
        prepare(str(imagenet), str(out), options, console=QUIET)
        found[source] = _features(out)
    for records in found.values():
        assert _boxes(records["n01_0.JPEG"]) == [(0.1, 0.25, 0.5, 1.0), (0.0, 0.0, 0.5, 0.5)]
        assert _boxes(records["n02_1.JPEG"]) == [(0.25, 0.5, 0.5, 1.0)]
        assert records["n01_0.JPEG"]["image/object/class/label"] == [1, 1]
        assert _boxes(records["n01_1.JPEG"]) == []
    assert _boxes(found["boxes.csv"]["val_1.JPEG"]) == [(0.0, 0.0, 1.0, 1.0)]


def test_a_photo_that_was_turned_loses_its_boxes(imagenet: Path, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text(CSV)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 40), (1, 2, 3)).save(imagenet / "train" / "n01" / "n01_0.JPEG", exif=exif)
    options = PrepareOptions(bounding_boxes=str(tmp_path / "boxes.csv"))
    prepare(str(imagenet), str(tmp_path / "out"), options, console=QUIET)
    found = _features(tmp_path / "out")
    assert _boxes(found["n01_0.JPEG"]) == []
    assert "image/object/class/label" not in found["n01_0.JPEG"]
    assert len(_boxes(found["n02_1.JPEG"])) == 1


def test_other_boxes_are_other_records(imagenet: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "boxes.csv", str(tmp_path / "out")
    path.write_text(CSV)
    options = PrepareOptions(bounding_boxes=str(path))
    prepare(str(imagenet), out, options, console=QUIET)
    prepare(str(imagenet), out, options, console=QUIET)
    path.write_text(CSV + "val_2.JPEG,0,0,1,1\n")
    with pytest.raises(UserError, match="bounding_boxes was"):
        prepare(str(imagenet), out, options, console=QUIET)


def test_boxes_of_other_classes_in_a_picture_are_not_its_own(tmp_path: Path) -> None:
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{xmin}</xmin><ymin>0</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
        for xmin, name in enumerate(("n02105855", "n02106662", "Scottish_deerhound"))
    )
    text = f"<annotation><size><width>10</width><height>10</height></size>{objects}</annotation>"
    for name in ("n02105855_1", "ILSVRC2012_val_1"):
        (tmp_path / f"{name}.xml").write_text(text)
    found = read_boxes(str(tmp_path))
    assert [box.xmin for box in found["n02105855_1"]] == [0, 0.2]
    assert [box.xmin for box in found["ILSVRC2012_val_1"]] == [0, 0.1, 0.2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "one.JPEG,0,0,1\n", "a.csv line 1: got 0, 0, 1, expected xmin, ymin, xmax, ymax as fractions"),
        ("a.csv", "name,xmin,ymin,xmax,ymax\none.JPEG,0,0,1,a\n", "a.csv line 2: got 0, 0, 1, a, expected"),
        (
            "a.csv",
            "one.JPEG,0,0,100,200\n",
            "a.csv line 1: got 0, 0, 100, 200, expected xmin, ymin, xmax, ymax as fractions",
        ),  # pixels
        ("a.csv", "one.JPEG,0,nan,1,1\n", "a.csv line 1: got 0, nan, 1, 1, expected"),
        (
            "a.csv",
            "filename,xmin,xmax,ymin,ymax\na,0,1,0,1\n",
            "line 1: got xmin, xmax, ymin, ymax, expected a name, xm",
        ),
        ("a.csv", "", "which has no boxes"),
        ("a.xml", "<annotation><object><bndbox/></object></annotation>", "a.xml: got None of None"),
        ("a.xml", "<annotation>", "a.xml: got no element found"),
        ("a.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "a.xml: got a document type"),
        ("a.txt", "", "which has no boxes"),
    ],
)
def test_what_is_no_box_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        read_boxes(str(tmp_path / name) if name.endswith("csv") else str(tmp_path))


def test_boxes_of_other_photos_and_a_path_to_nothing_are_named(imagenet: Path, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("other.JPEG,0,0,1,1\n")
    for path, message in (("boxes.csv", "1 images with boxes, such as other"), ("nothing", "a CSV file or a folder")):
        options = PrepareOptions(bounding_boxes=str(tmp_path / path))
        with pytest.raises(UserError, match=message):
            prepare(str(imagenet), str(tmp_path / "out"), options, console=QUIET)


def test_two_files_for_one_image_name_are_refused(tmp_path: Path) -> None:
    for folder in ("new", "old"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.xml").write_text("<a/>")
    with pytest.raises(UserError, match=r"new/a.xml and .*old/a.xml, expected one file per image name"):
        read_boxes(str(tmp_path))
    (tmp_path / "old" / "a.xml").unlink()
    (tmp_path / "new" / "._a.xml").write_bytes(b"\xff")  # as macOS leaves them
    assert read_boxes(str(tmp_path)) == {"a": ()}


@pytest.mark.parametrize("encoding", ["utf-7", "shift_jis", "unknown"])
def test_a_file_is_utf_8_whatever_it_says(tmp_path: Path, encoding: str) -> None:
    box = "<xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>8</ymax>"
    size = "<size><width>10</width><height>10</height></size>"
    text = f'<?xml version="1.0" encoding="{encoding}"?><a>{size}<object><bndbox>{box}</bndbox></object></a>'
    (tmp_path / "a.xml").write_text(text)
    assert read_boxes(str(tmp_path)) == {"a": ((0.1, 0.2, 0.5, 0.8),)}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_an_entity_in_another_encoding_is_no_way_around(tmp_path: Path, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=r"a\.xml: got .*, expected (an XML file in UTF-8|plain XML)"):
        read_boxes(str(tmp_path))
