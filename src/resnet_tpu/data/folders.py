"""Finds photos: in class folders, in split folders of class folders, or through a CSV file."""

import contextlib
import csv
import dataclasses
import io
import os
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_tpu import storage
from resnet_tpu.data.boxes import Box, Boxes
from resnet_tpu.data.findings import Finding, Kind
from resnet_tpu.data.pixels.pillow import IMAGE_SUFFIXES
from resnet_tpu.data.split import SPLIT_RATIOS, SPLIT_SEED, SPLITS, Split, split_files
from resnet_tpu.errors import UserError, nearest

SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"
}  # fmt: skip
"""Folder names, and values of the CSV's split column, that mean a split."""

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")


@dataclass(frozen=True, slots=True)
class Photo:
    """An image file and its class."""

    path: str
    name: str  # path below the input folder, or as the CSV has it
    class_name: str
    split: Split | None  # None: to be decided
    boxes: tuple[Box, ...] = ()  # around the objects of this class
    state: tuple[int, int] | None = None  # of the file, where listing it gave one: see `storage.file_state`


@dataclass(frozen=True)
class PhotoListing:
    """The photos, sorted by the bytes of their names, and the oddities noticed."""

    photos: list[Photo]
    findings: list[Finding]
    has_splits: bool  # the input says which photo is in which split


def share_out(
    photos: Sequence[Photo], ratios: Sequence[float] = SPLIT_RATIOS, seed: int = SPLIT_SEED
) -> dict[Split, list[Photo]]:
    """The photos of each split, each class shared out on its own by `split_files`, in the order given."""
    classes: dict[str, dict[str, None]] = {}
    for photo in photos:
        classes.setdefault(photo.class_name, {})[photo.name] = None
    parts = (zip(SPLITS, split_files(list(names), ratios, seed), strict=True) for names in classes.values())
    chosen = {name: split for of_class in parts for split, part in of_class for name in part}
    return {split: [photo for photo in photos if chosen[photo.name] == split] for split in SPLITS}


def too_small(
    splits: Mapping[Split, Sequence[Photo]], class_names: Sequence[str], wanted: Sequence[Split]
) -> list[Finding]:
    """A finding for each class that lacks photos in one of the wanted splits."""
    counts = {split: Counter(photo.class_name for photo in splits[split]) for split in wanted}
    findings = []
    for name in class_names:
        sizes = [counts[split][name] for split in wanted]
        if 0 in sizes:
            lack = ", none to train on" if "train" in wanted and not counts["train"][name] else ""
            shared = f"{'/'.join(map(str, sizes))} of {sum(sizes)} images{lack}"
            findings.append(Finding(Kind.TOO_SMALL, name, shared))
    return findings


def class_names_of(photos: Iterable[Photo]) -> list[str]:
    """The class names in byte order, which is the order of their labels."""
    return sorted({photo.class_name for photo in photos}, key=os.fsencode)


def find_photos(raw: str, boxes: Boxes | None = None) -> PhotoListing:
    """The photos of a folder of class folders, of `train/ validation/ test/` with class folders, or of a CSV file.

    raw: a local path, or one in a bucket. boxes: assigned to the photos with these names. Raises UserError when `raw`
    is none of these, no image is found, there is only one class, or no box belongs to a photo.
    """
    suffix = Path(raw).suffix.lower()
    if storage.is_dir(raw):
        found = _scan(raw)
    elif storage.exists(raw) and suffix not in (*IMAGE_SUFFIXES, *_ARCHIVE_SUFFIXES):
        found = _read_csv(raw)
    else:
        do = "Unpack it, and give its folder." if suffix in _ARCHIVE_SUFFIXES else "Check the path."
        raise UserError("Photos", raw, "a folder of class folders or a CSV file", do)
    classes = {photo.class_name for photo in found.photos}
    if not found.photos:
        odd = f" ({found.findings[0].path}: {found.findings[0].kind.what})" if found.findings else ""
        expected = "one folder per class with images in it"
        raise UserError(f"Photos in {raw}", f"no image in a class folder{odd}", expected, _LAYOUT)
    if len(classes) == 1:
        others = "".join(f", and {folder} with {got}" for folder, got in empty_classes(found)[:1])
        raise UserError(f"Photos in {raw}", f"one class ({min(classes)}){others}", "at least two classes", _LAYOUT)
    if bad := [name for name in classes if not name.isprintable() or name != name.strip()]:
        expected = "printable characters, without a space at either end"
        raise UserError("Class name", repr(bad[0]), expected, "Rename the class.")
    same: dict[str, str] = {}
    for name in sorted(classes):
        if (other := same.setdefault(unicodedata.normalize("NFC", name), name)) != name:
            got = f"{other} and {name}, one name in two forms of Unicode ({other!a}, {name!a})"
            raise UserError(f"Classes of {raw}", got, "one form", "Rename one; a Mac decomposes letters with accents.")
    found.photos.sort(key=lambda photo: os.fsencode(photo.name))
    return _with_boxes(found, boxes) if boxes else found


def empty_classes(found: PhotoListing) -> list[tuple[str, str]]:
    """The folders of classes of which there is no image at all, and what is in each instead, for messages."""
    classes = {photo.class_name for photo in found.photos}
    inside = {item.path.rpartition("/")[0]: item for item in reversed(found.findings)}  # the first in each folder
    return [
        (item.path, f"no images ({odd.path}: {odd.kind.what})" if (odd := inside.get(item.path)) else "no images")
        for item in found.findings
        if item.kind is Kind.NO_IMAGES and item.path.rpartition("/")[2] not in classes
    ]


def check_outside(what: str, folder: str, photos: str) -> None:
    """Raises UserError when the output `folder` is `photos` or inside it, where it would be scanned as a class."""
    if storage.is_remote(folder) or storage.is_remote(photos):
        return
    inner, outer = Path(folder).resolve(), Path(photos).resolve()
    if inner == outer or (outer.is_dir() and outer in inner.parents):
        do = "Choose one beside it: everything inside it counts as classes and photos."
        raise UserError(what, folder, f"a folder outside of {photos}", do)


def _with_boxes(found: PhotoListing, boxes: Boxes) -> PhotoListing:
    named: dict[str, Photo] = {}
    for photo in found.photos:
        stem = Path(photo.path).stem
        if (other := named.setdefault(stem, photo)) is not photo and stem in boxes:
            got = f"boxes of {stem}, and two photos of that name: {other.name}, {photo.name}"
            raise UserError("bounding_boxes", got, "photos with names of their own", "Rename one of the two.")
    photos = [dataclasses.replace(photo, boxes=boxes.get(Path(photo.path).stem, ())) for photo in found.photos]
    if not any(photo.boxes for photo in photos):
        got = f"{len(boxes)} images with boxes, such as {min(boxes)}"
        raise UserError("bounding_boxes", got, f"boxes of photos, such as {found.photos[0].name}", "Check the names.")
    return dataclasses.replace(found, photos=photos)


_LAYOUT = "Make it class/photo.jpg, or train/class/photo.jpg with validation/ and test/ beside it, or a CSV path,label."


def _scan(raw: str) -> PhotoListing:
    findings: list[Finding] = []
    folders = _folders(raw, "", findings)
    if "train" in folders and _folders(storage.join(raw, "train"), "train", []):
        return _scan_splits(raw, folders, findings)
    if "train" in folders and len(folders) > 1 and {*folders} <= {*SPLIT_FOLDERS}:  # a class may be called train too
        got = f"{', '.join(folders)}, and no folder in train"
        raise UserError(f"Photos in {raw}", got, "one folder per class, or splits with such folders in them", _LAYOUT)
    photos = [photo for folder in folders for photo in _scan_class(raw, folder, folder, None, findings)]
    return PhotoListing(photos, findings, has_splits=False)


def _scan_splits(raw: str, folders: list[str], findings: list[Finding]) -> PhotoListing:
    unknown = [folder for folder in folders if folder not in SPLIT_FOLDERS]
    if unknown:
        hint = nearest(unknown[0], SPLIT_FOLDERS)
        expected = "only train, validation and test where train holds class folders"
        raise UserError(f"Folder {raw}", f"train beside {', '.join(unknown)}", expected, f"Move it elsewhere.{hint}")
    by_split: dict[Split, str] = {}
    for folder in folders:
        other = by_split.setdefault(SPLIT_FOLDERS[folder], folder)
        if other != folder:
            raise UserError(f"Folder {raw}", f"{other} and {folder}", "one folder per split", "Merge the two.")
    photos: list[Photo] = []
    for split, folder in by_split.items():
        noted: list[Finding] = []
        names = _folders(storage.join(raw, folder), folder, noted)
        if not names and split == "validation":
            photos.extend(_flat_validation(raw, folder))
            continue
        findings.extend(noted)
        for name in names:
            photos.extend(_scan_class(raw, f"{folder}/{name}", name, split, findings))
    present = {(photo.split, photo.class_name) for photo in photos}
    classes = class_names_of(photos)
    findings.extend(
        Finding(Kind.MISSING_IN_SPLIT, f"{by_split[split]}/{name}")
        for split in SPLITS
        for name in classes
        if split in by_split and (split, name) not in present
    )
    return PhotoListing(photos, findings, has_splits=True)


def _flat_validation(raw: str, folder: str) -> list[Photo]:
    """The validation images of ImageNet: line i of `synset_labels.txt` is the class of the i-th file by name."""
    labels = storage.join(raw, "synset_labels.txt")
    images = [entry for entry in _entries(storage.join(raw, folder)) if _is_image(entry.name)]
    if images and not storage.exists(labels):
        got = f"{len(images)} images without class folders"
        raise UserError(f"Folder {raw}/{folder}", got, "class folders, or synset_labels.txt beside it", "Add them.")
    classes = storage.read_names(labels) if images else []
    if len(classes) != len(images):
        raise UserError(labels, f"{len(classes)} lines", f"one per image, {len(images)}", "Correct the file.")
    return [
        _photo(entry, f"{folder}/{entry.name}", class_name, "validation")
        for entry, class_name in zip(images, classes, strict=True)
    ]


def _photo(entry: "storage.Entry | os.DirEntry[str]", name: str, class_name: str, split: Split | None) -> Photo:
    return Photo(entry.path, name, class_name, split, state=entry.state if isinstance(entry, storage.Entry) else None)


def _folders(path: str, name: str, findings: list[Finding]) -> list[str]:
    """The visible folders in `path`; files in it are noted as findings."""
    folders = []
    for entry in _entries(path):
        shown = f"{name}/{entry.name}" if name else entry.name
        if _is_folder(entry):
            folders.append(entry.name)
        else:
            findings.append(Finding(Kind.STRAY if _is_image(entry.name) else Kind.OTHER_FILE, shown))
    return folders


def _scan_class(
    raw: str, folder: str, class_name: str, split: Split | None, findings: list[Finding]
) -> Iterator[Photo]:
    count = 0
    for entry in _entries(storage.join(raw, folder)):
        name = f"{folder}/{entry.name}"
        if _is_folder(entry):
            findings.append(Finding(Kind.NESTED, name))
        elif _is_image(entry.name):
            count += 1
            yield _photo(entry, name, class_name, split)
        else:
            findings.append(Finding(Kind.OTHER_FILE, name))
    if not count:
        findings.append(Finding(Kind.NO_IMAGES, folder))


def _entries(path: str) -> "Sequence[storage.Entry | os.DirEntry[str]]":
    is_remote = storage.is_remote(path)
    try:
        with contextlib.nullcontext(storage.bucket_entries(path)) if is_remote else os.scandir(path) as found:
            return sorted((entry for entry in found if entry.name[0] != "."), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise UserError(f"Folder {path}", error.strerror, "a readable folder", "Check its permissions.") from None


def _is_folder(entry: "storage.Entry | os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it will report the error
        return False


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _read_csv(path: str) -> PhotoListing:
    """The rows `path,label[,split]` of a CSV file with these column names in its first line."""
    photos: dict[str, Photo] = {}
    findings: list[Finding] = []
    try:
        with io.StringIO(storage.read_bytes(path).decode("utf-8-sig"), newline="") as file:
            reader = csv.DictReader(file, strict=True, skipinitialspace=True)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            if [columns.count(name) for name in ("path", "label")] != [1, 1] or columns.count("split") > 1:
                got = f"columns {', '.join(columns) or 'missing'}"
                raise UserError(f"CSV {path}", got, "a first line path,label or path,label,split", "Correct that line.")
            for row in reader:
                photo = _csv_photo(path, reader.line_num, row, has_split="split" in columns)
                other = photos.setdefault(photo.path, photo)
                if other is not photo:
                    if (other.class_name, other.split) != (photo.class_name, photo.split):
                        got = f"{photo.name} again, as {photo.class_name} and {other.class_name}"
                        raise UserError(f"CSV {path} line {reader.line_num}", got, "one row per image", "Drop one row.")
                    findings.append(Finding(Kind.LISTED_TWICE, photo.name, f"line {reader.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"CSV {path}", error, "a readable CSV file in UTF-8", "Correct the file.") from None
    return PhotoListing(list(photos.values()), findings, has_splits="split" in columns)


def _csv_path(path: str, name: str) -> str:
    """The path that the CSV file at `path` means by `name`; a URL is taken as it is written."""
    if storage.is_remote(name):
        return name
    full = storage.join(os.path.dirname(path), os.path.expanduser(name))  # noqa: PTH111, PTH120 - as pathlib raises
    if not storage.is_remote(full):
        return os.path.normpath(full)
    protocol, mark, rest = full.rpartition("://")
    is_walk = not {".", ".."}.isdisjoint(name.split("/"))  # as `find` writes it; else a key may have any slashes
    return f"{protocol}{mark}{posixpath.normpath(rest)}" if is_walk else full


def _csv_photo(path: str, line: int, row: dict[str | None, Any], *, has_split: bool) -> Photo:
    if any(more := row.pop(None, ())):  # else a name with a comma would be cut off at the comma
        got = f"{len(row) + len(more)} values, the last {more[-1]!r}"
        do = 'Put a value with a comma in quotation marks: "a, b".'
        raise UserError(f"CSV {path} line {line}", got, f"{len(row)}, one per column", do)
    name, label, split = ((row.get(column) or "").strip() for column in ("path", "label", "split"))
    if not name or not label:
        raise UserError(f"CSV {path} line {line}", f"path {name!r}, label {label!r}", "both filled in", "Fill them in.")
    if "\0" in name:
        raise UserError(f"CSV {path} line {line}", f"path {name!r}", "a path without a zero byte", "Correct it.")
    if has_split and split.lower() not in SPLIT_FOLDERS:
        raise UserError(f"CSV {path} line {line}", f"split {split!r}", "train, validation or test", "Correct it.")
    return Photo(_csv_path(path, name), name, label, SPLIT_FOLDERS[split.lower()] if has_split else None)
