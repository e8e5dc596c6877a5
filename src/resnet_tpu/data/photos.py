"""Photos with their classes, and how they are split."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resnet_tpu.data.boxes import Box
from resnet_tpu.data.findings import Finding, Kind
from resnet_tpu.data.split import SPLIT_RATIOS, SPLIT_SEED, SPLITS, Split, split_files
from resnet_tpu.storage import FileState

SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"
}  # fmt: skip
"""The split that each folder name, or value in the split column of a CSV file, stands for."""


@dataclass(frozen=True, slots=True)
class Photo:
    """An image file and its class."""

    path: str
    name: str  # path below the input folder, or as in the CSV
    class_name: str
    split: Split | None  # None: to be decided
    boxes: tuple[Box, ...] = ()  # around the objects of this class
    state: FileState | None = None  # of the file, if listing the folder gave it


@dataclass(frozen=True)
class PhotoListing:
    """The photos, sorted by the bytes of their names, and the oddities noticed."""

    photos: list[Photo]
    findings: list[Finding]
    has_splits: bool  # the input says which photo is in which split


def split_at_random(
    photos: Sequence[Photo], ratios: Sequence[float] = SPLIT_RATIOS, seed: int = SPLIT_SEED
) -> dict[Split, list[Photo]]:
    """Splits the photos of each class at random, by `split_files`. Each split keeps the order given."""
    classes: dict[str, dict[str, None]] = {}
    for photo in photos:
        classes.setdefault(photo.class_name, {})[photo.name] = None
    parts = (zip(SPLITS, split_files(list(names), ratios, seed), strict=True) for names in classes.values())
    chosen = {name: split for of_class in parts for split, part in of_class for name in part}
    return {split: [photo for photo in photos if chosen[photo.name] == split] for split in SPLITS}


def find_small_classes(
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


def find_missing_classes(photos: Sequence[Photo], folders: Mapping[Split, str]) -> list[Finding]:
    """A finding for each class that lacks photos in one of the splits, given with the names that the user gave them."""
    present = {(photo.split, photo.class_name) for photo in photos}
    return [
        Finding(Kind.MISSING_IN_SPLIT, f"{folders[split]}/{name}")
        for split in SPLITS
        for name in class_names_of(photos)
        if split in folders and (split, name) not in present
    ]


def class_names_of(photos: Iterable[Photo]) -> list[str]:
    """The class names in byte order, which is the order of their labels."""
    return sorted({photo.class_name for photo in photos}, key=os.fsencode)
