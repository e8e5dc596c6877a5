"""Photos to TFRecord shards in the original's format: split, checked, fixed, counted."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from resnet_tpu import storage
from resnet_tpu.data.boxes import Boxes, digest_of, read_boxes
from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.findings import Finding, group_findings
from resnet_tpu.data.folders import check_outside, find_photos
from resnet_tpu.data.manifest import LABELS, MANIFEST, Manifest, read_manifest
from resnet_tpu.data.photos import PhotoListing
from resnet_tpu.data.prepare import beam as on_beam
from resnet_tpu.data.prepare.assignment import Assignment, assign
from resnet_tpu.data.prepare.flowers import FLOWER_PHOTOS, fetch_flower_photos
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.report import report_text
from resnet_tpu.data.prepare.reservation import REPORT, reserve, sweep
from resnet_tpu.data.prepare.shards import Shard, ShardResult, finished_shard
from resnet_tpu.data.prepare.summary import collect_findings, manifest_of
from resnet_tpu.data.prepare.workers import write_shards
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
    photos = _find_photos(raw_dir, boxes, is_split_asked=bool(options.split))
    assignment = assign(photos, options.ratios(), options.seed, options.num_shards())
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
            findings, _ = collect_findings(assignment, results)
            if error := _too_many_bad(raw_dir, out_dir, findings, options, assignment):
                raise error
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


def _find_photos(raw_dir: str, boxes: Boxes, *, is_split_asked: bool) -> PhotoListing:
    """The photos. If all are for training and the user asks for a split, they count as not yet split."""
    found = find_photos(raw_dir, boxes)
    if not (is_split_asked and found.has_splits):
        return found
    if splits := {photo.split for photo in found.photos if photo.split not in (None, "train")}:
        log.warning("--split is not used: %s says which photos are for %s.", raw_dir, " and ".join(sorted(splits)))
        return found
    return dataclasses.replace(found, has_splits=False)


def _num_workers(shards: list[Shard]) -> int:
    """One process per CPU core, or fewer for so little work that starting more would take longer."""
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
    findings, counts = collect_findings(assignment, results)
    try:
        if error := _too_many_bad(raw_dir, out_dir, findings, options, assignment):
            storage.write_text(storage.join(out_dir, REPORT), report_text(None, findings, {}))
            raise error
        noticed = group_findings(findings, counts, first=_LISTED_PATHS)
        manifest = manifest_of(assignment, results, seed=options.seed, options=deciding, findings=noticed)
        sweep(out_dir)
        storage.write_text(storage.join(out_dir, REPORT), report_text(manifest, findings, counts))
        storage.write_text(storage.join(out_dir, LABELS), "".join(f"{name}\n" for name in assignment.class_names))
        storage.write_text(storage.join(out_dir, MANIFEST), manifest.to_json())
    except OSError as error:
        do = "Free space or fix permissions, then run the same command again: finished shards are kept."
        raise UserError(f"Writing to {out_dir}", error.strerror or error, "a writable folder", do) from None
    return manifest


def _too_many_bad(
    raw_dir: str, out_dir: str, findings: list[Finding], options: PrepareOptions, assignment: Assignment
) -> UserError | None:
    """The error for more bad images than the options allow, or for nothing else; None if there are few enough."""
    bad = [finding for finding in findings if finding.kind.is_bad]
    num_images = sum(len(shard.photos) for shard in assignment.shards)
    allowed = min(options.allowed_bad(num_images), num_images - 1)  # a data set has at least one image
    if len(bad) <= allowed:
        return None
    alternative = ", or allow more" if len(bad) < num_images else ""
    first = "; ".join(", ".join(filter(None, (f"{item.path}: {item.kind.what}", item.detail))) for item in bad[:5])
    return UserError(
        f"Images in {raw_dir}",
        f"{len(bad)} of {num_images} that cannot be used ({first}{'; ...' if len(bad) > 5 else ''})",
        f"at most {allowed} (max_bad_fraction {options.max_bad_fraction:g})",
        f"All are listed in {storage.join(out_dir, REPORT)}. Fix them and pass --overwrite{alternative}.",
    )
