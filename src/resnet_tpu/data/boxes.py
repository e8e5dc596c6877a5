"""Boxes around the objects in photos, in ImageNet's formats: a CSV file, or a folder of XML files."""

import csv
import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from resnet_tpu.errors import UserError

_SYNSET = re.compile(r"n\d{8}")
_EXPECTED = "rows of FILE,xmin,ymin,xmax,ymax, or XML files with size and bndbox"


class Box(NamedTuple):
    """A box in fractions of the image's width and height, 0 to 1, from the upper left corner."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


Boxes = dict[str, tuple[Box, ...]]
"""The boxes of each image, keyed by its file name without the extension."""


def read_boxes(path: str) -> Boxes:
    """The boxes in a CSV file, or in the XML files in and below a folder; empty when `path` is empty.

    CSV: one row per box, `n01440764_18.JPEG,0.04,0.26,0.75,0.99`, in fractions of width and height, with or without a
    header line. XML: the PASCAL VOC format, one file per image, in pixels. Raises UserError.
    """
    if not path:
        return {}
    given = Path(path)
    if given.is_dir():
        found = _read_folder(given)
    elif given.is_file():
        found = _read_csv(given)
    else:
        raise UserError("bounding_boxes", path, "a CSV file or a folder of XML files", "Check the path.")
    if not found:
        raise UserError("bounding_boxes", f"{path}, which has no boxes", _EXPECTED, "Check the path.")
    return found


def digest_of(boxes: Boxes) -> str:
    """A digest of all boxes: it differs when any box does."""
    return hashlib.sha256(repr(sorted(boxes.items())).encode()).hexdigest()[:16]


def _read_csv(path: Path) -> Boxes:
    boxes: dict[str, list[Box]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.reader(file, strict=True, skipinitialspace=True), 1):
                if number == 1 and "xmin" in row:
                    if (columns := tuple(map(str.strip, row[1:]))) != Box._fields:
                        got, do = ", ".join(columns), "Write the columns in that order."
                        raise UserError(f"{path} line 1", got, ", ".join(("a name", *Box._fields)), do)
                elif row:
                    name, *sides = row
                    boxes.setdefault(Path(name).stem, []).append(_box(f"{path} line {number}", sides))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(str(path), error, "a readable CSV file in UTF-8", "Correct the file.") from None
    return {name: tuple(found) for name, found in boxes.items()}


def _read_folder(folder: Path) -> Boxes:
    files: dict[str, Path] = {}
    for file in sorted(folder.rglob("[!.]*.xml")):  # macOS puts `._` files next to others
        if other := files.get(file.stem):
            raise UserError("bounding_boxes", f"{other} and {file}", "one file per image name", "Remove one of them.")
        files[file.stem] = file
    return {name: _read_xml(file) for name, file in files.items()}


def _read_xml(path: Path) -> tuple[Box, ...]:
    try:
        text = path.read_text("utf-8-sig")
        if "\0" in text:  # UTF-16, which the parser would accept but the next check would miss
            raise UserError(str(path), "zero bytes", "an XML file in UTF-8", "Save it as UTF-8.")
        if "<!" in text:  # entities, with which a few bytes can expand to gigabytes
            raise UserError(str(path), "a document type, a comment or CDATA", "plain XML", "Remove it.")
        root = ElementTree.fromstring(text)  # noqa: S314  # without entities there is nothing to expand
    except (OSError, UnicodeDecodeError, ElementTree.ParseError) as error:
        raise UserError(str(path), error, "an XML file in UTF-8", "Correct the file, or remove it.") from None
    width, height = (root.findtext(f"size/{side}") for side in ("width", "height"))
    boxes = []
    for element in root.iterfind("object"):
        box = element.find("bndbox")
        if box is None or _is_other_synset(element.findtext("name") or "", path):
            continue
        sides = [box.findtext(name) for name in Box._fields]
        fractions = [_fraction(side, whole) for side, whole in zip(sides, (width, height, width, height), strict=True)]
        boxes.append(_box(str(path), fractions))
    return tuple(boxes)


def _is_other_synset(name: str, path: Path) -> bool:
    """Whether an object is of another class than its image, whose file is `SYNSET_NUMBER.xml`."""
    own = path.stem.partition("_")[0]
    return bool(_SYNSET.fullmatch(own) and _SYNSET.fullmatch(name)) and name != own


def _fraction(side: str | None, whole: str | None) -> str:
    """A side in pixels as a fraction of the whole; anything but a number is passed on as text, for `_box` to refuse."""
    try:
        return str(float(side or "") / float(whole or ""))
    except (ValueError, ZeroDivisionError):
        return f"{side} of {whole}"


def _box(where: str, sides: Sequence[str]) -> Box:
    """A box with its corners in order, clipped to the image: annotators overstep the edge by a pixel or two."""
    try:
        numbers = [float(side) for side in sides]
        xmin, ymin, xmax, ymax = (min(max(number, 0.0), 1.0) for number in numbers)
        is_sound = all(map(math.isfinite, numbers)) and max(map(abs, numbers)) < 2
    except ValueError:
        is_sound = False
        xmin = ymin = xmax = ymax = 0.0
    if not is_sound:
        raise UserError(
            where, ", ".join(sides), "xmin, ymin, xmax, ymax as fractions of the image, 0 to 1", "Correct it."
        )
    return Box(min(xmin, xmax), min(ymin, ymax), max(xmin, xmax), max(ymin, ymax))
