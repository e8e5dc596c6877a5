"""Photos to TFRecord shards in the original's format: split, checked, fixed, counted."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import resnet_tpu
from resnet_tpu import storage
from resnet_tpu.data.boxes import digest_of, read_boxes
from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.findings import Finding, FindingGroup, Kind, group_findings
from resnet_tpu.data.folders import check_outside, find_photos
from resnet_tpu.data.manifest import LABELS, MANIFEST, Manifest, ShardEntry, SplitEntry, Spread, read_manifest
from resnet_tpu.data.photos import Photo, find_small_classes
from resnet_tpu.data.prepare import beam as on_beam
from resnet_tpu.data.prepare.assignment import Assignment, assign
from resnet_tpu.data.prepare.flowers import FLOWER_PHOTOS, fetch_flower_photos
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.report import report_text
from resnet_tpu.data.prepare.reservation import REPORT, reserve, sweep
from resnet_tpu.data.prepare.shards import Shard, ShardResult, StoredImage, finished_shard
from resnet_tpu.data.prepare.workers import write_shards
from resnet_tpu.data.split import SPLITS, Split
from resnet_tpu.errors import UserError, check_kind
from resnet_tpu.options.fields import GivenPath, expand_home
from resnet_tpu.system.machine import num_cores
from resnet_tpu.system.terminal import OutputConsole

log = logging.getLogger(__name__)

_BYTES_WHILE_STARTING = 50_000_000
_LISTED_PATHS = 10  # of each kind of finding, in the manifest


def prepare(
    raw_dir: GivenPath,
    out_dir: GivenPath,
    options: PrepareOptions | None = None,
    *,
    beam: Sequence[str] | None = None,
    console: Console | None = None,
) -> Manifest:
    """Writes the photos of `raw_dir` as TFRecord shards, with manifest, labels and report, to `out_dir`.

    raw_dir: local or in a bucket: a folder of class folders; or of train/ validation/ test/ with class folders; or a
    CSV file `path,label[,split]`; or 'flower_photos', which is downloaded.
    beam: options of Apache Beam, such as `--runner=DataflowRunner`, whose pipeline then writes the shards; an empty
    list for local processes.
    The same call resumes an interrupted run; finished shards are not written again. The same photos and options give
    the same bytes for any number of workers, with Beam and without.
    Raises UserError for photos, folders or options that cannot be used, and when too many images are bad.
    """
    options = PrepareOptions() if options is None else options
    check_kind("options", options, PrepareOptions, "Make them: PrepareOptions(split='0.8,0.2').")
    console = console or OutputConsole(stderr=True)
    raw_dir, out_dir = expand_home(raw_dir), expand_home(out_dir)
    if raw_dir == FLOWER_PHOTOS and not Path(raw_dir).exists():
        raw_dir = fetch_flower_photos(console=console)
    _check_places(raw_dir, out_dir)
    boxes = read_boxes(expand_home(options.bounding_boxes))
    found = find_photos(raw_dir, boxes)
    if options.split and found.has_splits:
        if splits := {photo.split for photo in found.photos if photo.split not in (None, "train")}:
            log.warning("--split is not used: %s says which photos are for %s.", raw_dir, " and ".join(sorted(splits)))
        else:
            found = dataclasses.replace(found, has_splits=False)
    assignment = assign(found, options.ratios(), options.seed, options.num_shards())
    pipeline = None
    if beam is not None:
        most = _num_workers(assignment.shards)
        pipeline = on_beam.make_pipeline(beam, raw_dir, out_dir, workers=options.workers, most_workers=most)
    deciding = options.deciding() | ({"bounding_boxes": digest_of(boxes)} if boxes else {})
    with storage.reserved(out_dir):  # two at a time would delete each other's shards
        reserve(out_dir, assignment, deciding, overwrite=options.overwrite)
        results = {shard.name: result for shard in assignment.shards if (result := finished_shard(shard, out_dir))}
        missing = [shard for shard in assignment.shards if shard.name not in results]
        if not missing and (manifest := read_manifest(out_dir)):
            console.print(f"Nothing to do: {out_dir} holds these photos already.", markup=False)
            return manifest
        storage.remove(storage.join(out_dir, MANIFEST))
        if results:
            console.print(f"{len(results)} of {len(assignment.shards)} shards are finished already.", markup=False)
        limits = Limits(
            options.max_side, options.short_side, options.quality, options.subsampling, recompress=options.recompress
        )
        if pipeline is None or not missing:
            results |= write_shards(missing, out_dir, limits, options.workers or _num_workers(missing), console)
        else:
            results |= on_beam.write_shards(pipeline, assignment.shards, missing, out_dir, limits, console)
        return _conclude(raw_dir, out_dir, assignment, results, options, deciding)


def _check_places(raw_dir: str, out_dir: str) -> None:
    check_outside("Output folder", out_dir, raw_dir)
    if Path(out_dir).is_file():
        raise UserError("Output folder", f"the file {out_dir}", "a folder", "Choose another name.")


def _num_workers(shards: list[Shard]) -> int:
    """One process per CPU core, but none for less work than could be done while it starts."""
    return min(num_cores(), 1 + sum(shard.num_bytes for shard in shards) // _BYTES_WHILE_STARTING)


def _conclude(
    raw_dir: str,
    out_dir: str,
    assignment: Assignment,
    results: dict[str, ShardResult],
    options: PrepareOptions,
    deciding: dict[str, Any],
) -> Manifest:
    """Checks the results of the shards, writes report, labels and, last, the manifest with the `deciding` options."""
    findings = [
        *assignment.findings,
        *(finding for shard in assignment.shards for finding in results[shard.name].findings),
    ]
    findings.extend(_find_duplicates(assignment, results))
    findings.extend(_find_incomplete_classes(assignment, results))
    counts: Counter[Kind] = Counter()
    for result in results.values():
        counts.update(result.counts)
    try:
        _check_bad(raw_dir, out_dir, findings, options, sum(len(shard.photos) for shard in assignment.shards))
        noticed = group_findings(findings, counts, first=_LISTED_PATHS)
        manifest = _summary(assignment, results, seed=options.seed, options=deciding, findings=noticed)
        sweep(out_dir)
        storage.write_text(storage.join(out_dir, REPORT), report_text(manifest, findings, counts))
        storage.write_text(storage.join(out_dir, LABELS), "".join(f"{name}\n" for name in assignment.class_names))
        storage.write_text(storage.join(out_dir, MANIFEST), manifest.to_json())
    except OSError as error:
        do = "Free space or fix permissions, then run the same command again: finished shards are kept."
        raise UserError(f"Writing to {out_dir}", error.strerror or error, "a writable folder", do) from None
    return manifest


def _check_bad(raw_dir: str, out_dir: str, findings: list[Finding], options: PrepareOptions, num_images: int) -> None:
    bad = [finding for finding in findings if finding.kind.is_bad]
    allowed = options.allowed_bad(num_images)
    if len(bad) <= allowed and len(bad) < num_images:
        return
    storage.write_text(storage.join(out_dir, REPORT), report_text(None, findings, {}))
    first = "; ".join(", ".join(filter(None, (f"{item.path}: {item.kind.what}", item.detail))) for item in bad[:5])
    raise UserError(
        f"Images in {raw_dir}",
        f"{len(bad)} of {num_images} that cannot be used ({first}{'; ...' if len(bad) > 5 else ''})",
        f"at most {allowed} (max_bad_fraction {options.max_bad_fraction:g})",
        f"All are listed in {storage.join(out_dir, REPORT)}. Fix them and pass --overwrite, or allow more.",
    )


def _find_incomplete_classes(assignment: Assignment, results: dict[str, ShardResult]) -> Iterator[Finding]:
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


def _find_duplicates(assignment: Assignment, results: dict[str, ShardResult]) -> list[Finding]:
    """Findings for images with the same bytes in two splits or two classes, reported at the later one."""
    seen: dict[bytes, tuple[Shard, int]] = {}
    findings = []
    for shard in assignment.shards:
        for i, image in enumerate(results[shard.name].images):
            if image is None:
                continue
            other, k = seen.setdefault(bytes.fromhex(image.digest), (shard, i))
            photo, twin = shard.photos[i], other.photos[k]
            if other.split != shard.split:
                findings.append(Finding(Kind.DUPLICATE, photo.name, f"{shard.split}; {twin.name} in {other.split}"))
            if twin.class_name != photo.class_name:
                findings.append(Finding(Kind.AMBIGUOUS, photo.name, f"as {twin.name}"))
    return findings


def _summary(
    assignment: Assignment,
    results: dict[str, ShardResult],
    *,
    seed: int,
    options: dict[str, Any],
    findings: list[FindingGroup],
) -> Manifest:
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
