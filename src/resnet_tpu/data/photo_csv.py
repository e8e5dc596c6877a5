"""Photos and their classes, as listed in a CSV file."""

import csv
import io
import os
import posixpath
from typing import Any

from resnet_tpu import storage
from resnet_tpu.data.findings import Finding, Kind
from resnet_tpu.data.photos import SPLIT_FOLDERS, Photo, PhotoListing, find_missing_classes
from resnet_tpu.errors import UserError


def read_photo_csv(path: str) -> PhotoListing:
    """The rows `path,label[,split]` of a CSV file with these column names in its first line.

    Semicolons or tabs may replace the commas: in many languages, spreadsheets write them instead.
    """
    photos: dict[str, Photo] = {}
    findings: list[Finding] = []
    try:
        text = storage.read_bytes(path).decode("utf-8-sig")
        header = text.partition("\n")[0]
        delimiter = next((mark for mark in ",;\t" if mark in header), ",")
        with io.StringIO(text, newline="") as file:
            reader = csv.DictReader(file, strict=True, skipinitialspace=True, delimiter=delimiter)
            columns = [column.strip().lower() for column in reader.fieldnames or ()]
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
        raise UserError(f"CSV {path}", error, "a readable CSV file in UTF-8", "Save it as CSV in UTF-8.") from None
    listed, has_splits = list(photos.values()), "split" in columns
    if has_splits:
        findings.extend(find_missing_classes(listed, {photo.split: photo.split for photo in listed if photo.split}))
    return PhotoListing(listed, findings, has_splits=has_splits)


def _csv_path(path: str, name: str) -> str:
    """The path that the CSV file at `path` means by `name`; a URL is taken as it is written."""
    if storage.is_remote(name):
        return name
    full = storage.join(os.path.dirname(path), os.path.expanduser(name))  # noqa: PTH111, PTH120 - as pathlib raises
    if not storage.is_remote(full):
        return os.path.normpath(full)
    protocol, mark, rest = full.rpartition("://")
    is_walk = not {".", ".."}.isdisjoint(name.split("/"))  # as `find` writes paths; in other keys every slash counts
    return f"{protocol}{mark}{posixpath.normpath(rest)}" if is_walk else full


def _csv_photo(path: str, line: int, row: dict[str | None, Any], *, has_split: bool) -> Photo:
    if any(more := row.pop(None, ())):  # else a name with a comma would be cut off at the comma
        got = f"{len(row) + len(more)} values, the last {more[-1]!r}"
        do = 'Put a value with a comma, or another separator of columns, in quotation marks: "a, b".'
        raise UserError(f"CSV {path} line {line}", got, f"{len(row)}, one per column", do)
    name, label, split = ((row.get(column) or "").strip() for column in ("path", "label", "split"))
    if not name or not label:
        raise UserError(f"CSV {path} line {line}", f"path {name!r}, label {label!r}", "both filled in", "Fill them in.")
    if "\0" in name:
        raise UserError(f"CSV {path} line {line}", f"path {name!r}", "a path without a zero byte", "Correct it.")
    if has_split and split.lower() not in SPLIT_FOLDERS:
        raise UserError(f"CSV {path} line {line}", f"split {split!r}", "train, validation or test", "Correct it.")
    return Photo(_csv_path(path, name), name, label, SPLIT_FOLDERS[split.lower()] if has_split else None)
