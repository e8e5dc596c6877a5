"""Finds photos: in class folders, in split folders of class folders, or listed in a CSV file."""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from resnet_tpu import storage
from resnet_tpu.data.boxes import Boxes
from resnet_tpu.data.class_names import normalize_name
from resnet_tpu.data.findings import Finding, Kind
from resnet_tpu.data.photo_csv import read_photo_csv
from resnet_tpu.data.photos import SPLIT_FOLDERS, Photo, PhotoListing, find_missing_classes
from resnet_tpu.data.pixels.pillow import IMAGE_SUFFIXES
from resnet_tpu.data.split import Split
from resnet_tpu.errors import UserError, nearest

Entry = storage.Entry | os.DirEntry[str]

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")


def find_photos(raw: str, boxes: Boxes | None = None) -> PhotoListing:
    """The photos in a folder of class folders, in `train/ validation/ test/` with class folders, or in a CSV file.

    raw: a local path, or one in a bucket. boxes: assigned to the photos with these names. Raises UserError when `raw`
    is none of these, no image is found, there is only one class, no photo of the CSV file exists, or no box belongs to
    a photo.
    """
    suffix = Path(raw).suffix.lower()
    is_folder = storage.is_dir(raw)
    if is_folder:
        found = _scan(raw)
    elif storage.exists(raw) and suffix not in (*IMAGE_SUFFIXES, *_ARCHIVE_SUFFIXES):
        found = read_photo_csv(raw)
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
    _check_class_names(raw, classes)
    if not is_folder:
        _check_some_exist(raw, found.photos)
    found.photos.sort(key=lambda photo: os.fsencode(photo.name))
    return _with_boxes(found, boxes) if boxes else found


def _check_class_names(raw: str, classes: Collection[str]) -> None:
    """Raises UserError for a class name that cannot be shown, and for two that look the same."""
    if bad := [name for name in classes if not name.isprintable() or name != name.strip()]:
        expected = "printable characters, without a space at either end"
        raise UserError("Class name", repr(bad[0]), expected, "Rename the class.")
    same: dict[str, str] = {}
    for name in sorted(classes):
        if (other := same.setdefault(normalize_name(name), name)) != name:
            got = f"{other} and {name}, one name in two forms of Unicode ({other!a}, {name!a})"
            raise UserError(f"Classes of {raw}", got, "one form", "Rename one; a Mac decomposes letters with accents.")


def _check_some_exist(raw: str, photos: Sequence[Photo]) -> None:
    """Raises UserError if none of the photos that a CSV file lists exists.

    Individual missing photos are noticed when they are read. Photos in a bucket are not checked: each would cost a
    request.
    """
    if any(storage.is_remote(photo.path) or storage.exists(photo.path) for photo in photos):
        return
    storage.check_reachable(photos[0].path)
    got = f"{len(photos)} paths without a file, the first {Path(photos[0].path).absolute()}"
    expected = "paths as seen from the folder of the CSV file, with extension"
    raise UserError(f"CSV {raw}", got, expected, "Write them like photos/1.jpg, or in full.")


def empty_classes(found: PhotoListing) -> list[tuple[str, str]]:
    """(folder, what it holds instead of images) for each class without any image, for messages."""
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
        do = "Choose one next to it: everything inside it counts as classes and photos."
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


_LAYOUT = (
    "Make it class/photo.jpg, or train/class/photo.jpg with validation/ and test/ next to it, or a CSV path,label."
)


def _scan(raw: str) -> PhotoListing:
    findings: list[Finding] = []
    folders = _folders(raw, "", findings)
    trains = [folder for folder in folders if folder.lower() == "train"]
    if any(_folders(storage.join(raw, train), train, []) for train in trains):
        return _scan_splits(raw, folders, findings)
    named_as_splits = {folder.lower() for folder in folders} <= SPLIT_FOLDERS.keys()
    if trains and len(folders) > 1 and named_as_splits:  # a class may be called train too
        got = f"{', '.join(folders)}, and no folder in {trains[0]}"
        raise UserError(f"Photos in {raw}", got, "one folder per class, or splits with such folders in them", _LAYOUT)
    photos = [photo for folder in folders for photo in _scan_class(raw, folder, folder, None, findings)]
    return PhotoListing(photos, findings, has_splits=False)


def _scan_splits(raw: str, folders: list[str], findings: list[Finding]) -> PhotoListing:
    unknown = [folder for folder in folders if folder.lower() not in SPLIT_FOLDERS]
    if unknown:
        hint = nearest(unknown[0], SPLIT_FOLDERS)
        expected = "only train, validation and test where train holds class folders"
        raise UserError(f"Folder {raw}", f"train next to {', '.join(unknown)}", expected, f"Move it elsewhere.{hint}")
    by_split: dict[Split, str] = {}
    for folder in folders:
        other = by_split.setdefault(SPLIT_FOLDERS[folder.lower()], folder)
        if other != folder:
            raise UserError(f"Folder {raw}", f"{other} and {folder}", "one folder per split", "Merge the two.")
    photos: list[Photo] = []
    for split, folder in by_split.items():
        noted: list[Finding] = []
        names = _folders(storage.join(raw, folder), folder, noted)
        if not names and split == "validation":
            findings.extend(item for item in noted if item.kind is not Kind.STRAY)
            photos.extend(_flat_validation(raw, folder))
            continue
        findings.extend(noted)
        for name in names:
            photos.extend(_scan_class(raw, f"{folder}/{name}", name, split, findings))
    findings.extend(find_missing_classes(photos, by_split))
    return PhotoListing(photos, findings, has_splits=True)


def _flat_validation(raw: str, folder: str) -> list[Photo]:
    """The validation images of ImageNet: line i of `synset_labels.txt` is the class of the i-th file by name."""
    labels = storage.join(raw, "synset_labels.txt")
    images = [entry for entry in _entries(storage.join(raw, folder), folder, []) if _is_image(entry.name)]
    if images and not storage.exists(labels):
        got = f"{len(images)} images without class folders"
        raise UserError(f"Folder {raw}/{folder}", got, "class folders, or synset_labels.txt next to it", "Add them.")
    classes = storage.read_names(labels) if images else []
    if len(classes) != len(images):
        raise UserError(labels, f"{len(classes)} lines", f"one per image, {len(images)}", "Correct the file.")
    return [
        _photo(entry, f"{folder}/{entry.name}", class_name, "validation")
        for entry, class_name in zip(images, classes, strict=True)
    ]


def _photo(entry: Entry, name: str, class_name: str, split: Split | None) -> Photo:
    return Photo(entry.path, name, class_name, split, state=entry.state if isinstance(entry, storage.Entry) else None)


def _folders(path: str, name: str, findings: list[Finding]) -> list[str]:
    """The visible folders in `path`; files in it are noted as findings."""
    folders = []
    for entry in _entries(path, name, findings):
        shown = _path_below(name, entry)
        if _is_folder(entry):
            folders.append(entry.name)
        else:
            findings.append(Finding(Kind.STRAY if _is_image(entry.name) else Kind.OTHER_FILE, shown))
    return folders


def _scan_class(
    raw: str, folder: str, class_name: str, split: Split | None, findings: list[Finding]
) -> Iterator[Photo]:
    count = 0
    for entry in _entries(storage.join(raw, folder), folder, findings):
        name = _path_below(folder, entry)
        if _is_folder(entry):
            findings.append(Finding(Kind.NESTED, name))
        elif _is_image(entry.name):
            count += 1
            yield _photo(entry, name, class_name, split)
        else:
            findings.append(Finding(Kind.OTHER_FILE, name))
    if not count:
        findings.append(Finding(Kind.NO_IMAGES, folder))


def _entries(path: str, name: str, findings: list[Finding]) -> list[Entry]:
    """The visible entries of `path`, sorted; hidden images and hidden folders of images are noted as findings."""
    visible = []
    for entry in _list_entries(path):
        if entry.name[0] != ".":
            visible.append(entry)
        elif _is_photo(entry) or (_is_folder(entry) and _holds_photos(storage.join(path, entry.name))):
            findings.append(Finding(Kind.HIDDEN, _path_below(name, entry)))
    return visible


def _holds_photos(path: str) -> bool:
    """Whether a folder directly holds photos; False if it cannot be read, as is common for a trash folder."""
    with contextlib.suppress(UserError):
        return any(_is_photo(entry) for entry in _list_entries(path))
    return False


def _list_entries(path: str) -> list[Entry]:
    is_remote = storage.is_remote(path)
    try:
        with contextlib.nullcontext(storage.bucket_entries(path)) if is_remote else os.scandir(path) as found:
            return sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise UserError(f"Folder {path}", error.strerror, "a readable folder", "Check its permissions.") from None


def _path_below(name: str, entry: Entry) -> str:
    return f"{name}/{entry.name}" if name else entry.name


def _is_photo(entry: Entry) -> bool:
    """Whether an entry is named like an image, but not like the `._` file that macOS may write next to one."""
    return _is_image(entry.name) and not entry.name.startswith("._")


def _is_folder(entry: Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it will report the error
        return False


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)
