"""Opens the data that `data_dir` names: TFRecords, folders of images or synthetic pixels; or a Bigtable table."""

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from resnet_tpu import storage
from resnet_tpu.data.manifest import MANIFEST, STATE_FOLDER, read_manifest
from resnet_tpu.data.records.tfrecord import begins_with_record
from resnet_tpu.data.sources.classes import Classes, Files, find_classes
from resnet_tpu.data.sources.image_files import FolderSource
from resnet_tpu.data.sources.source import Source
from resnet_tpu.data.sources.synthetic import NoiseSource, ZeroSource
from resnet_tpu.data.sources.tfrecords import RecordSource, RemoteRecordSource
from resnet_tpu.data.split import SPLITS, NoSplitError, Split, other_split_advice
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

log = logging.getLogger(__name__)


def open_source(data: DataConfig, split: Split) -> Source:
    """The examples of `split` in `data.data_dir`, or in the Bigtable of `data.bigtable_instance`.

    A folder with files named train-*, validation-* or test-* is read as TFRecords. Anything else is what `prepare`
    takes: class folders, split folders of class folders, or a CSV file. Empty or 'null': zeros. 'synthetic': coloured
    noise.
    Raises UserError when there is no such folder, class or image, or fewer classes are asked for than found, and
    NoSplitError when there is no such split.
    """
    if split not in SPLITS:
        raise UserError("split", repr(split), f"one of {', '.join(SPLITS)}", "Change the value.")
    if data.bigtable_instance:
        from resnet_tpu.data.sources.bigtable import BigtableSource  # its library takes two seconds to import

        if data.data_dir:
            log.warning("data_dir %s is not read: bigtable_instance is given, and takes its place.", data.data_dir)
        return BigtableSource(data, split)
    if data.data_dir in ("", "null"):
        return ZeroSource(data, split)
    if data.data_dir == "synthetic":
        return NoiseSource(data, split)
    _check_exists(data.data_dir)
    return _open_bucket(data, split) if storage.is_remote(data.data_dir) else _open_local(data, split)


def _check_exists(data_dir: str) -> None:
    if storage.exists(data_dir):
        return
    storage.check_reachable(data_dir)
    # A run keeps the path as given; a relative one, used from another folder, leads elsewhere.
    where = storage.absolute(data_dir)
    here = "" if where == data_dir else f", here {where},"
    do = f"Check the path{here} or give another with --data_dir."
    raise UserError("data_dir", repr(data_dir), "an existing folder", do)


def _open_bucket(data: DataConfig, split: Split) -> RemoteRecordSource:
    states = {entry.name: entry.state for entry in storage.bucket_entries(data.data_dir)}
    names = sorted(states)
    if not any(shards_in(names).values()):
        got = ", ".join(names[:5]) or "no folder"
        do = "Write them with `resnet-tpu prepare`."
        raise UserError(f"data_dir {data.data_dir}", got, "TFRecords named train-*, validation-* or test-*", do)
    return RemoteRecordSource(data, split, *_files_and_classes(data, split, {name: states[name] for name in names}))


def _open_local(data: DataConfig, split: Split) -> RecordSource | FolderSource:
    names = storage.list_dir(data.data_dir)
    if _holds_records(data.data_dir, names):
        return RecordSource(data, split, *_files_and_classes(data, split, dict.fromkeys(names)))
    if not _has_folders(data.data_dir, names):
        _check_names(data.data_dir, names)
    return FolderSource(data, split)


def _files_and_classes(
    data: DataConfig, split: Split, states: Mapping[str, storage.FileState | None]
) -> tuple[Files, Classes | None]:
    """The TFRecords of a split, and the classes of all splits, if known. states: of what is in the folder, by name."""
    check_shards(data.data_dir, split, list(states))
    files: dict[Split, Files] = {
        of: {storage.join(data.data_dir, name): states[name] for name in names}
        for of, names in shards_in(list(states)).items()
    }
    return files[split], find_classes(data, {path: state for found in files.values() for path, state in found.items()})


def shards_in(names: Sequence[str]) -> dict[Split, list[str]]:
    """The names in a folder that are those of TFRecord files, by split."""
    return {split: [name for name in names if name.startswith(f"{split}-")] for split in SPLITS}


def _holds_records(data_dir: str, names: Sequence[str]) -> bool:
    """Whether the files train-*, validation-* and test-* of a local folder are TFRecords.

    Next to class folders, files with these names may be lists of names instead; then their first bytes decide.
    """
    paths = [storage.join(data_dir, name) for found in shards_in(names).values() for name in found]
    files = [path for path in paths if not storage.is_dir(path)]
    return any(map(begins_with_record, files)) if _has_folders(data_dir, names) else bool(files)


def _has_folders(data_dir: str, names: Sequence[str]) -> bool:
    return any(name[0] not in "._" and storage.is_dir(storage.join(data_dir, name)) for name in names)


def _check_names(data_dir: str, names: Sequence[str]) -> None:
    """Raises UserError if a local `data_dir` is or holds TFRecords whose names do not begin with a split."""
    paths = [storage.join(data_dir, name) for name in names] if storage.is_dir(data_dir) else [data_dir]
    if path := next(filter(_is_records, paths), None):
        expected = "a folder of files named train-*, validation-* or test-*"
        raise UserError(f"data_dir {data_dir}", f"TFRecords, such as {path}", expected, "Rename the files.")


def _is_records(path: str) -> bool:
    """Whether a path is a TFRecord file; False if it cannot be read, as that is not the fault of its name."""
    try:
        return Path(path).is_file() and begins_with_record(path)
    except UserError:
        return False


def check_shards(data_dir: str, split: Split, names: Sequence[str]) -> None:
    """Raises UserError unless these names in a folder are those of a finished data set that has the split."""
    what, shards = f"data_dir {data_dir}", shards_in(names)
    if STATE_FOLDER in names and MANIFEST not in names:
        do = f"Run the same `resnet-tpu prepare` again; it continues where it stopped. Or delete {STATE_FOLDER}/ in it."
        raise UserError(what, "what an interrupted `prepare` left behind", "a finished data set", do)
    manifest = read_manifest(data_dir)
    listed = manifest.splits[split].files if manifest and split in manifest.splits else ()
    if missing := sorted({*listed} - {*shards[split]}):
        got = f"{len(listed) - len(missing)} of {len(listed)} {split} files ({missing[0]} is missing)"
        raise UserError(what, got, f"all files that {MANIFEST} lists", "Copy the rest, or run `prepare` again.")
    if manifest and (others := sorted({*shards[split]} - {*listed})):
        got = f"{len(others)} {split} files that {MANIFEST} does not list, such as {others[0]}"
        also = f" and {STATE_FOLDER}/" if STATE_FOLDER in names else ""
        do = f"Move them away; or delete {MANIFEST}{also}, and all are read."
        raise UserError(what, got, f"the {len(listed)} files that it lists", do)
    if not shards[split]:
        found = ", ".join(f"{name}-*" for name, files in shards.items() if files)
        how = " --split=0.8,0.2 --overwrite" if manifest and split == "validation" else ""
        if_random = ", if the split was random" if how and shards["test"] else ""
        do = f"Make the {split} split with `resnet-tpu prepare{how}`{if_random}, or {other_split_advice(split)}"
        raise NoSplitError(what, found, f"files named {split}-*", do)
    if not listed:
        _warn_of_missing(data_dir, tuple(shards[split]))


@functools.cache
def _warn_of_missing(data_dir: str, files: tuple[str, ...]) -> None:
    """Warns, once, if files without a manifest are more or fewer than their names say."""
    totals = {int(found[1]) for file in files if (found := re.search(r"-of-(\d{5})", file))}
    if totals and totals != {len(files)}:
        log.warning(
            "%s has %d files such as %s, where their names say %s.",
            data_dir, len(files), files[0], " and ".join(map(str, sorted(totals))),
        )  # fmt: skip
