"""Which photos a run was trained on. The folder cannot tell: a random split changes with every photo added."""

import contextlib
import json
import logging

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.data.sources.image_files import FolderSource
from resnet_tpu.data.sources.source import Source
from resnet_tpu.data.split import Split
from resnet_tpu.parallel import hosts
from resnet_tpu.storage import checked_json

log = logging.getLogger(__name__)

_FILE = "training_photos.json"

Photos = dict[str, list[str]]
"""The names of photos by folder."""


def remember_photos(model_dir: str, source: Source) -> None:
    """Adds the training photos to those that the run in `model_dir` has seen, if they were split at random."""
    if isinstance(source, FolderSource) and source.is_split_at_random and hosts.is_first():
        seen, folder = _photos_seen(model_dir), storage.resolved(source.location)
        names = {*seen.get(folder, ()), *source.names}
        if len(names) > len(seen.get(folder, ())):
            text = json.dumps(seen | {folder: sorted(names)}) + "\n"
            storage.write_text(storage.join(model_dir, _FILE), text)


def inherit_photos(model_dir: str, checkpoint: str) -> None:
    """Records what a new run has seen: the photos of the run of `checkpoint`, whose weights it starts from, or none.

    An earlier attempt that ended before its first checkpoint may have recorded others, which no weights have seen.
    """
    record_photos(model_dir, photos_behind(checkpoint))


def photos_behind(checkpoint: str) -> Photos:
    """The photos that the run of `checkpoint` has seen, on the first host; empty if it is in no run's folder."""
    run = folders.run_of(checkpoint)
    return _photos_seen(run) if run and hosts.is_first() else {}


def record_photos(model_dir: str, seen: Photos) -> None:
    """Records that the run in `model_dir` has seen these photos, and no others."""
    if hosts.is_first():
        path = storage.join(model_dir, _FILE)
        if seen:
            storage.write_text(path, json.dumps(seen) + "\n")
        else:
            storage.remove(path)


def warn_of_training_photos(model_dir: str, source: Source, split: Split) -> None:
    """Warns if photos of `split` were among the training photos of the run in `model_dir`, if there is one.

    The split `train` needs no warning.
    """
    if split == "train" or not model_dir or not hosts.is_first():
        return
    if not (isinstance(source, FolderSource) and source.is_split_at_random):
        return
    known = _photos_seen(model_dir)
    places = {storage.resolved(source.location), storage.absolute(source.location)}  # older versions followed no links
    seen = {name for place in places for name in known.get(place, ())}
    if number := sum(name in seen for name in source.names):
        log.warning(
            "The run was trained on %d of these %d %s photos, so the accuracy will be too high: photos were added to "
            "%s or removed since, and all were split again. To keep splits, `prepare` the photos before training, "
            "or move them to train/, validation/ and test/.",
            number, len(source), split, source.location,
        )  # fmt: skip


def _photos_seen(model_dir: str) -> Photos:
    """The photos of the run in `model_dir`; empty if the file is missing or damaged, which costs only a warning."""
    path = storage.join(model_dir, _FILE)
    with contextlib.suppress(ValueError):
        if storage.exists(path):
            return checked_json.as_kind(Photos, checked_json.parse(storage.read_text(path)), _FILE)
    return {}
