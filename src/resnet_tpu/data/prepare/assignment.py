"""Which photo goes into which shard, decided before any image is opened: the same input gives the same shards."""

import hashlib
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_tpu import storage
from resnet_tpu.data.findings import Finding
from resnet_tpu.data.photos import Photo, PhotoListing, class_names_of, split_at_random
from resnet_tpu.data.prepare.shards import Shard
from resnet_tpu.data.split import SPLITS, Split

_SHARD_BYTES = 100e6
_WORKABLE_SHARDS = 16  # even for smaller data, so that several processes and hosts have work ...
_MIN_SHARD_IMAGES = 128  # ... as long as each shard has at least this many
_UNREADABLE = storage.FileState(0, 0)


@dataclass(frozen=True)
class Assignment:
    """The shards to be written, and the photos that they come from."""

    class_names: list[str]  # the first has label 1
    shards: list[Shard]
    findings: list[Finding]
    drawn: Sequence[Split]  # the splits drawn at random; none if the photos come with splits
    inputs: dict[str, list[Any]]  # folder -> number of files, digest of their names, sizes and times


def assign(
    listing: PhotoListing, ratios: Sequence[float], seed: int, num_shards: Mapping[Split, int | None]
) -> Assignment:
    """Decides labels (from 1, in the byte order of class names), splits, order and shards.

    num_shards: None for one per 100 MB, or one per 128 images up to 16 if that is more.
    """
    photos = listing.photos
    class_names = class_names_of(photos)
    labels = {name: label for label, name in enumerate(class_names, start=1)}
    states = {photo.path: photo.state or _state(photo.path) for photo in photos}
    splits = _given_splits(photos) if listing.has_splits else split_at_random(photos, ratios, seed)
    random.Random(seed).shuffle(splits["train"])
    shards: list[Shard] = []
    for split in SPLITS:
        num_bytes = sum(states[photo.path].size for photo in splits[split])
        count = num_shards[split] or _num_shards(len(splits[split]), num_bytes)
        for k, part in enumerate(_cut(splits[split], count) if splits[split] else []):
            name = f"{split}-{k:05d}-of-{count:05d}"
            size = sum(states[photo.path].size for photo in part)
            shards.append(Shard(name, split, part, [labels[photo.class_name] for photo in part], size))
    drawn = () if listing.has_splits else SPLITS[: len(ratios)]
    return Assignment(class_names, shards, listing.findings, drawn, _digests(photos, states))


def _given_splits(photos: Iterable[Photo]) -> dict[Split, list[Photo]]:
    splits: dict[Split, list[Photo]] = {split: [] for split in SPLITS}
    for photo in photos:
        splits[photo.split or "train"].append(photo)
    return splits


def _num_shards(num_images: int, num_bytes: int) -> int:
    return max(1, math.ceil(num_bytes / _SHARD_BYTES), min(_WORKABLE_SHARDS, num_images // _MIN_SHARD_IMAGES))


def _cut(photos: list[Photo], count: int) -> list[list[Photo]]:
    """Cuts into parts of ceil(n / count) photos, as the original does; the last parts can be short or empty."""
    size = math.ceil(len(photos) / count)
    return [photos[k * size : (k + 1) * size] for k in range(count)]


def _state(path: str) -> storage.FileState:
    """The state of a file; zeros for an unreadable file, which is reported later, when it would be read.

    If the file is readable in a later run, its state differs, and so it does not count as prepared.
    """
    try:
        may_be_read = storage.is_remote(path) or os.access(path, os.R_OK)
        return storage.file_state(path) if may_be_read else _UNREADABLE
    except OSError:
        return _UNREADABLE


def _digests(photos: Iterable[Photo], states: dict[str, storage.FileState]) -> dict[str, list[Any]]:
    groups: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for photo in photos:
        group = f"{photo.split}/{photo.class_name}" if photo.split else photo.class_name
        entry = "\0".join((photo.name, photo.class_name, *map(str, states[photo.path]), ""))
        groups.setdefault(group, hashlib.sha256()).update(os.fsencode(entry))
        counts[group] = counts.get(group, 0) + 1
    return {group: [counts[group], digest.hexdigest()] for group, digest in groups.items()}
