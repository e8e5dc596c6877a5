"""Reserves an output folder: only a run with the same photos and options continues in it; foreign files stay."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_tpu import storage
from resnet_tpu.data.manifest import LABELS, MANIFEST, STATE_FOLDER
from resnet_tpu.data.prepare.assignment import Assignment
from resnet_tpu.data.prepare.shards import result_path
from resnet_tpu.data.split import SPLITS
from resnet_tpu.errors import UserError
from resnet_tpu.storage import checked_json

STATE_FILE = "prepare.json"
REPORT = "report.txt"
_PREFIXES = tuple(f"{split}-" for split in SPLITS)
_SUMMARIES = (MANIFEST, LABELS, REPORT)


@dataclass(frozen=True)
class _Run:
    """What decides which shards a run writes, and their content; kept in the output folder."""

    options: dict[str, Any]
    inputs: dict[str, list[Any]]  # see `Assignment.inputs`
    shards: list[str]  # their names


def reserve(out_dir: str, assignment: Assignment, options: dict[str, Any], *, overwrite: bool) -> None:
    """Reserves `out_dir` for these shards; finished ones of the same photos and options stay, others are refused.

    With `overwrite`, the others are deleted, and so are those of a run that has ended with a data set or with a report
    of bad images. Raises UserError when the folder holds shards of other inputs or options, unless `overwrite`, or
    files that `prepare` did not write and whose names would make them part of the data set.
    """
    run = _Run(options, assignment.inputs, [shard.name for shard in assignment.shards])
    try:
        before = _read_run(out_dir)
        _refuse_foreign(out_dir, [*before.shards, *_SUMMARIES] if before else [])
        changes = _changes(before, run) if before else []
        has_ended = any(storage.exists(storage.join(out_dir, name)) for name in (MANIFEST, REPORT))
        if before and overwrite and (changes or has_ended):
            _remove(out_dir, before.shards)
        elif changes:
            do = "Pass --overwrite to write the shards again, or choose another folder."
            got = f"shards made differently: {'; '.join(changes)}"
            raise UserError(
                f"Output folder {out_dir}", got, "an empty folder, or one of the same photos and options", do
            )
        storage.make_dir(storage.join(out_dir, STATE_FOLDER))
        sweep(out_dir)
        storage.write_text(storage.join(out_dir, STATE_FOLDER, STATE_FILE), json.dumps(vars(run)))
    except OSError as error:
        got, do = error.strerror or error, "Choose another folder or fix its permissions."
        raise UserError(f"Output folder {out_dir}", got, "a writable folder", do) from None


def _read_run(out_dir: str) -> _Run | None:
    """The run that reserved the folder last; None if none did. Raises UserError when its file is damaged."""
    path = storage.join(out_dir, STATE_FOLDER, STATE_FILE)
    if not storage.exists(path):
        return None
    try:
        run = checked_json.as_kind(_Run, checked_json.parse(storage.read_text(path)), "content")
        for values in run.inputs.values():
            if len(values) != 2:
                raise ValueError(f"{values!r:.60} in place of a number of files and a digest")
        return run
    except ValueError as error:
        do = "Remove the output folder and run again."
        raise UserError(path, error, "what an earlier `prepare` wrote", do) from None


def _changes(before: _Run, now: _Run) -> list[str]:
    """The differences, in words."""
    changes = [
        f"{name} was {before.options.get(name)}, is {now.options.get(name)}"
        for name in {**before.options, **now.options}
        if before.options.get(name) != now.options.get(name)
    ]
    for group in sorted({**before.inputs, **now.inputs}):
        (old, old_digest), (new, new_digest) = (run.inputs.get(group, (0, "")) for run in (before, now))
        if old != new:
            changes.append(f"{group} had {old} images, has {new}")
        elif old_digest != new_digest:
            changes.append(f"{group} has other or newer files")
    if not changes and before.shards != now.shards:  # as for photos in train/ alone, once with --split and once without
        changes.append(f"there were {len(before.shards)} shards, there are {len(now.shards)}")
    return changes if len(changes) <= 5 else [*changes[:5], f"and {len(changes) - 5} more changes"]


def _remove(out_dir: str, shards: list[str]) -> None:
    """Deletes what an earlier run wrote. The manifest goes first: without it the folder is known to be unfinished."""
    for name in _SUMMARIES:
        storage.remove(storage.join(out_dir, name))
    for shard in shards:
        storage.remove(result_path(out_dir, shard))
        storage.remove(storage.join(out_dir, shard))
        storage.remove(storage.join(out_dir, "_index", f"{shard}.npy"))


def _refuse_foreign(out_dir: str, known: list[str]) -> None:
    taken = {*storage.list_dir(out_dir)} - {*known}
    foreign = [name for name in sorted(taken) if name.startswith(_PREFIXES) or name in _SUMMARIES]
    if foreign:
        got = f"{len(foreign)} file(s) that prepare did not write here, such as {foreign[0]}"
        expected = "none with names that it uses (train-*, validation-*, test-*, manifest.json, labels.txt, report.txt)"
        raise UserError(f"Output folder {out_dir}", got, expected, "Choose another folder or move them away.")


def sweep(out_dir: str) -> None:
    """Deletes what a killed run was writing: partial files, under the names that `storage.write_whole` gives them.

    Its workers, which outlive it by a moment, may still add some later.
    """
    if storage.is_remote(out_dir):
        return
    for folder in (out_dir, f"{out_dir}/_index", f"{out_dir}/{STATE_FOLDER}"):
        for prefix in (*SPLITS, "manifest", "labels", "report", "prepare", "shards"):
            for left in Path(folder).glob(f".{prefix}[-.]*.partial"):
                left.unlink(missing_ok=True)
