"""What all finished shards together show: findings that no shard shows alone, and the manifest."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import resnet_tpu
from resnet_tpu.data.findings import Finding, FindingGroup, Kind
from resnet_tpu.data.manifest import Manifest, ShardEntry, SplitEntry, Spread
from resnet_tpu.data.photos import Photo, find_small_classes
from resnet_tpu.data.prepare.assignment import Assignment
from resnet_tpu.data.prepare.shards import Shard, ShardResult, StoredImage
from resnet_tpu.data.split import SPLITS, Split


def collect_findings(assignment: Assignment, results: Mapping[str, ShardResult]) -> tuple[list[Finding], Counter[Kind]]:
    """All findings about the input, and the counts of the kinds that list no paths. results: by shard name."""
    findings = list(assignment.findings)
    counts: Counter[Kind] = Counter()
    for shard in assignment.shards:
        findings.extend(results[shard.name].findings)
        counts.update(results[shard.name].counts)
    findings.extend(_find_duplicates(assignment, results))
    findings.extend(_find_incomplete_classes(assignment, results))
    return findings, counts


def _find_duplicates(assignment: Assignment, results: Mapping[str, ShardResult]) -> Iterator[Finding]:
    """Findings for images with the same bytes in two splits or two classes, reported at the later one."""
    seen: dict[bytes, tuple[Shard, int]] = {}
    for shard in assignment.shards:
        for i, image in enumerate(results[shard.name].images):
            if image is None:
                continue
            other, k = seen.setdefault(bytes.fromhex(image.digest), (shard, i))
            photo, twin = shard.photos[i], other.photos[k]
            if other.split != shard.split:
                yield Finding(Kind.DUPLICATE, photo.name, f"{shard.split}; {twin.name} in {other.split}")
            if twin.class_name != photo.class_name:
                yield Finding(Kind.AMBIGUOUS, photo.name, f"as {twin.name}")


def _find_incomplete_classes(assignment: Assignment, results: Mapping[str, ShardResult]) -> Iterator[Finding]:
    """Findings for classes that lack photos in a split, once those that cannot be used are left out."""
    usable: dict[Split, list[Photo]] = {split: [] for split in SPLITS}
    for shard in assignment.shards:
        pairs = zip(shard.photos, results[shard.name].images, strict=True)
        usable[shard.split].extend(photo for photo, image in pairs if image)
    if assignment.drawn:
        yield from find_small_classes(usable, assignment.class_names, assignment.drawn)
        return
    left = {(split, photo.class_name) for split, photos in usable.items() for photo in photos}
    given = {(shard.split, photo.class_name) for shard in assignment.shards for photo in shard.photos}
    yield from (
        Finding(Kind.MISSING_IN_SPLIT, f"{split}/{name}", "none can be used") for split, name in sorted(given - left)
    )


def manifest_of(
    assignment: Assignment,
    results: Mapping[str, ShardResult],
    *,
    seed: int,
    options: dict[str, Any],
    findings: list[FindingGroup],
) -> Manifest:
    """The manifest of a data set with these shards. options: those that decide what is in them."""
    splits: dict[str, SplitEntry] = {}
    stored: list[StoredImage] = []
    for split in SPLITS:
        shards = [shard for shard in assignment.shards if shard.split == split]
        per_class = dict.fromkeys(assignment.class_names, 0)
        files: dict[str, ShardEntry] = {}
        for shard in shards:
            result = results[shard.name]
            for photo, image in zip(shard.photos, result.images, strict=True):
                if image:
                    per_class[photo.class_name] += 1
                    stored.append(image)
            num_images = sum(image is not None for image in result.images)
            files[shard.name] = ShardEntry(num_images, result.num_bytes, result.sha256)
        if shards:
            splits[split] = SplitEntry(sum(per_class.values()), per_class, len(shards), files)
    return Manifest(
        class_names=assignment.class_names,
        splits=splits,
        image_height=Spread.of([image.height for image in stored]),
        image_width=Spread.of([image.width for image in stored]),
        image_bytes=Spread.of([image.num_bytes for image in stored]),
        seed=seed,
        options=options,
        findings=findings,
        version=resnet_tpu.__version__,
    )
