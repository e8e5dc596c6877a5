"""`manifest.json`: what is in a prepared data set. Written last: a folder without it is known to be unfinished."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resnet_tpu import storage
from resnet_tpu.data.findings import FindingGroup
from resnet_tpu.errors import UserError
from resnet_tpu.storage import checked_json

MANIFEST = "manifest.json"
LABELS = "labels.txt"
"""The class names alone, one per line: for people, and for data that has no manifest."""
STATE_FOLDER = "_prepare"
"""Where the results of finished shards are kept, so that a later run knows them."""


@dataclass(frozen=True)
class ShardEntry:
    """One file of records."""

    num_images: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class SplitEntry:
    """One split."""

    num_images: int
    per_class: dict[str, int]
    shards: int
    files: dict[str, ShardEntry]


@dataclass(frozen=True)
class Spread:
    """How a quantity is spread over the images."""

    min: int
    median: float
    mean: float
    max: int

    @classmethod
    def of(cls, values: Sequence[int]) -> "Spread":
        """The spread of at least one value."""
        array = np.asarray(values, np.int64)
        return cls(int(array.min()), float(np.median(array)), round(float(array.mean()), 2), int(array.max()))


@dataclass(frozen=True)
class Manifest:
    """A prepared data set."""

    class_names: list[str]  # in the order of labels: the first has label 1 in the records
    splits: dict[str, SplitEntry]  # only those with images
    image_height: Spread  # px, as stored
    image_width: Spread
    image_bytes: Spread
    seed: int
    options: dict[str, Any]  # those that decide what is in the records
    findings: list[FindingGroup]
    version: str  # of the package that wrote it

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        return checked_json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Reads what `to_json` wrote, with or without its checksum. Raises ValueError."""
        return checked_json.as_kind(cls, checked_json.loads(text), "manifest")


def read_manifest(data_dir: str) -> Manifest | None:
    """The manifest of a data set; None when it has none. Raises UserError when it is damaged."""
    path = storage.join(data_dir, MANIFEST)
    if not storage.exists(path):
        return None
    try:
        return Manifest.from_json(storage.read_text(path))
    except ValueError as error:
        do = "Run prepare again with --overwrite, or delete it."
        raise UserError(path, error, "what `prepare` wrote", do) from None


def read_class_names(data_dir: str) -> list[str] | None:
    """The class names in a data set's folder, by label from 1: in `manifest.json`, else `labels.txt`; else None."""
    labels = storage.join(data_dir, LABELS)
    if manifest := read_manifest(data_dir):
        return manifest.class_names
    if storage.exists(labels):
        return storage.read_names(labels)
    return None
