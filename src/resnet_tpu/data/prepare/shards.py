"""One shard of a prepared data set: photos in, a file of records and a small file of results out."""

import collections
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resnet_tpu import storage
from resnet_tpu.data.boxes import Box
from resnet_tpu.data.cleaning import BadImageError, CleanImage, Limits, clean_image
from resnet_tpu.data.findings import Finding, Kind
from resnet_tpu.data.manifest import STATE_FOLDER
from resnet_tpu.data.photos import Photo
from resnet_tpu.data.records.example import Feature, encode_example
from resnet_tpu.data.records.tfrecord import RecordWriter
from resnet_tpu.data.split import Split
from resnet_tpu.errors import UserError
from resnet_tpu.storage import checked_json


@dataclass(frozen=True)
class Shard:
    """A shard to be written."""

    name: str
    split: Split
    photos: list[Photo]
    labels: list[int]  # of the photos, from 1
    num_bytes: int  # of the photos as found


class StoredImage(NamedTuple):
    """An image in a shard."""

    height: int
    width: int
    num_bytes: int
    digest: str  # of the photo as it was found


@dataclass(frozen=True)
class ShardResult:
    """The result of writing a shard."""

    num_bytes: int
    sha256: str
    images: list[StoredImage | None]  # one per photo, in order; None: skipped
    findings: list[Finding]
    counts: dict[Kind, int]  # of the kinds of finding that list no paths


def write_shard(shard: Shard, out_dir: str, limits: Limits, after_photo: Callable[[], None]) -> ShardResult:
    """Writes the records, then the result that marks the shard as finished.

    `after_photo` is called after each photo; an exception from it ends the work, leaving nothing behind.
    Raises UserError when the shard cannot be written.
    """
    path = storage.join(out_dir, shard.name)
    images: list[StoredImage | None] = []
    findings: list[Finding] = []
    try:
        with RecordWriter(path) as writer:
            for photo, label in zip(shard.photos, shard.labels, strict=True):
                images.append(_store(writer, photo, label, limits, findings))
                after_photo()
        counts = collections.Counter(finding.kind for finding in findings if not finding.kind.is_listed)
        listed = [finding for finding in findings if finding.kind.is_listed]
        result = ShardResult(writer.num_bytes, writer.sha256.hexdigest(), images, listed, dict(counts))
        storage.write_text(result_path(out_dir, shard.name), _to_json(result))
    except OSError as error:
        got = error.strerror or error
        do = "Free space or fix permissions, then run the same command again: finished shards are kept."
        raise UserError(
            f"Writing {error.filename or path}", got, "a folder with free space that can be written to", do
        ) from None
    return result


def _store(
    writer: RecordWriter, photo: Photo, label: int, limits: Limits, findings: list[Finding]
) -> StoredImage | None:
    """Writes the record of a photo, or notes why not."""
    try:
        data = _read(photo)
        image = clean_image(data, photo.name, limits)
    except BadImageError as error:
        findings.append(Finding(error.kind, photo.name, error.detail))
        return None
    writer.write(_record(photo, label, image))
    findings.extend(Finding(kind, photo.name, detail) for kind, detail in image.notes)
    digest = hashlib.blake2b(data, digest_size=12).hexdigest()
    return StoredImage(image.height, image.width, len(image.encoded), digest)


def finished_shard(shard: Shard, out_dir: str) -> ShardResult | None:
    """The result of a shard that an earlier run finished; None when it must be written."""
    try:
        result = _from_json(storage.read_text(result_path(out_dir, shard.name)))
        size = storage.file_state(storage.join(out_dir, shard.name)).size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if size == result.num_bytes and len(result.images) == len(shard.photos) else None


def result_path(out_dir: str, name: str) -> str:
    """Where the result of a finished shard is kept."""
    return storage.join(out_dir, STATE_FOLDER, f"{name}.json")


def _read(photo: Photo) -> bytes:
    try:
        return storage.read_image(photo.path)
    except OSError as error:
        raise BadImageError(Kind.UNREADABLE, error.strerror or str(error)) from None


def _record(photo: Photo, label: int, image: CleanImage) -> bytes:
    features: dict[str, Feature] = {}
    if not any(kind is Kind.TURNED for kind, _ in image.notes):  # turning the image moved its boxes
        boxes = zip(*photo.boxes, strict=True)
        features = {f"image/object/bbox/{side}": values for side, values in zip(Box._fields, boxes, strict=False)}
        features |= {"image/object/class/label": [label] * len(photo.boxes)} if photo.boxes else {}
    return encode_example(
        features
        | {
            "image/height": image.height,
            "image/width": image.width,
            "image/colorspace": "RGB",
            "image/channels": 3,
            "image/class/label": label,
            "image/class/synset": photo.class_name,
            "image/class/text": photo.class_name,
            "image/format": "JPEG",
            "image/filename": Path(photo.path).name,
            "image/encoded": image.encoded,
        }
    )


def _to_json(result: ShardResult) -> str:
    findings = [(finding.kind.name, finding.path, finding.detail) for finding in result.findings]
    counts = {kind.name: count for kind, count in result.counts.items()}
    return checked_json.dumps({**vars(result), "findings": findings, "counts": counts})


def _from_json(text: str) -> ShardResult:
    values = checked_json.loads(text)
    values["images"] = [image and StoredImage(*image) for image in values["images"]]
    values["findings"] = [Finding(Kind[kind], path, detail) for kind, path, detail in values["findings"]]
    values["counts"] = {Kind[kind]: count for kind, count in values["counts"].items()}
    return ShardResult(**values)
