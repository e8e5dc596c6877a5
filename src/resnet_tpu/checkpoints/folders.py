"""Folders of checkpoints, on a disk or in a bucket: finds complete checkpoints, deletes some, sets damaged ones aside.

On a disk, Orbax writes a checkpoint under another name, and renames its folder at the end. In a bucket, folders cannot
be renamed: there, the file that Orbax writes last marks a checkpoint as complete, and deleting a checkpoint removes
that file first.
"""

import itertools
import logging
import re
from collections.abc import Collection

from resnet_tpu import storage
from resnet_tpu.errors import UserError, describe
from resnet_tpu.options.overrides import Layer
from resnet_tpu.options.run_file import CHECKPOINTS, read_run
from resnet_tpu.parallel import hosts

log = logging.getLogger(__name__)

METADATA_FILE = "_CHECKPOINT_METADATA"
"""A file that every checkpoint has."""

_COMMIT_FILE = "commit_success.txt"  # which Orbax writes last in a bucket
_DELETED = ".deleted"
_PARTIAL = re.compile(r"\d+(\.orbax-checkpoint-tmp.*|\.deleted)")
_PARTIAL_IN_BUCKET = re.compile(rf"{_PARTIAL.pattern}?")
_GLOB_CHARACTERS = re.compile(r"[\[*?\\]")


def check_name(folder: str) -> None:
    """Raises UserError for a folder in which Orbax cannot write, or would take other files for its own.

    Orbax finds the files of its processes by a glob pattern that begins with the path, and TensorStore takes \\ for /.
    """
    path = storage.absolute(folder)
    if found := _GLOB_CHARACTERS.search(path):
        do = "Choose another folder for checkpoints."
        raise UserError(f"Folder {folder}", f"{found[0]} in {path}", "a path without any of [*?\\", do)


def allowed_name(name: str) -> str:
    """`name` with `_` for each character that `check_name` refuses."""
    return _GLOB_CHARACTERS.sub("_", name)


def check_model_dir(model_dir: str) -> None:
    """Raises UserError as `check_name` does, and for a checkpoint or a folder of them, which cannot be a model_dir."""
    check_name(model_dir)
    newest = [storage.join(model_dir, str(step)) for step in steps_in(model_dir)[-1:]]
    if is_checkpoint(model_dir) or any(map(is_checkpoint, newest)):
        got = f"{model_dir}, {'a folder of checkpoints' if newest else 'a checkpoint'}"
        raise UserError("model_dir", got, f"the folder of a run, which has {CHECKPOINTS}/ in it", "Give that folder.")


def steps_in(folder: str) -> list[int]:
    """The steps of the checkpoints in a folder of them, ascending; none when it does not exist."""
    steps = sorted(int(name) for name in storage.list_dir(folder) if name.isdecimal() and name == str(int(name)))
    if storage.is_remote(folder):
        return [step for step in steps if is_checkpoint(storage.join(folder, str(step)))]
    return steps


def folder_of(model_dir: str) -> str:
    """The folder of the checkpoints of a run."""
    return storage.join(model_dir, CHECKPOINTS)


def steps_of_run(model_dir: str) -> list[int]:
    """The steps of the checkpoints of a run, ascending."""
    return steps_in(folder_of(model_dir))


def run_to_resume(model_dir: str) -> Layer | None:
    """The options of the run in `model_dir` if it has a checkpoint, from which `train` would resume it."""
    return read_run(model_dir) if steps_of_run(model_dir) else None


def run_of(checkpoint: str) -> str:
    """The `model_dir` of the run that a checkpoint belongs to, by its path; empty if it is not in a run's folder."""
    return checkpoint.rpartition(f"/{CHECKPOINTS}/")[0]


def is_checkpoint(path: str) -> bool:
    """Whether `path` is a complete checkpoint of ours."""
    return storage.exists(storage.join(path, _COMMIT_FILE if storage.is_remote(path) else METADATA_FILE))


def delete(folder: str, steps: Collection[int]) -> None:
    """Deletes checkpoints from a folder of them. Every process must call it; the first one does the work.

    A checkpoint that cannot be deleted from the disk stays, with a warning, and training continues. Orbax is not used:
    in a bucket it requires a permission that the roles for reading and writing files do not include.
    """
    if hosts.is_first():
        for step in steps:
            path = storage.join(folder, str(step))
            if storage.is_remote(path):
                storage.remove(storage.join(path, _COMMIT_FILE))
                storage.remove_dir(path)
                continue
            try:  # renamed first: if the process is killed, the rest is not taken for a checkpoint
                storage.move(path, f"{path}{_DELETED}")
                storage.remove_dir(f"{path}{_DELETED}")
            except FileNotFoundError:  # someone else deleted it
                log.info("Checkpoint %s was gone before it was deleted.", path)
            except OSError as error:
                log.warning("Checkpoint %s is not deleted: %s", path, describe(error))
    hosts.wait_for_all()


def delete_unfinished(folder: str) -> None:
    """Deletes partial checkpoints that a killed run left. Every process must call it; the first one does the work."""
    if hosts.is_first():
        partial = _PARTIAL_IN_BUCKET if storage.is_remote(folder) else _PARTIAL
        left = {name for name in storage.list_dir(folder) if partial.fullmatch(name)}
        for name in left - set(map(str, steps_in(folder))):
            path = storage.join(folder, name)
            if not (name.isdecimal() and is_checkpoint(path)):  # the user may have named a checkpoint 012
                storage.remove_dir(path)
    hosts.wait_for_all()


def put_aside(paths: Collection[str]) -> None:
    """Renames damaged checkpoints to `<step>.damaged`, or `<step>.damaged2`, ... if that is taken already.

    Every process must call it; the first one does the work.
    """
    if hosts.is_first():
        for path in paths:
            if storage.is_remote(path):
                storage.remove(storage.join(path, _COMMIT_FILE))
            storage.move(path, _free_name(f"{path}.damaged"))
    hosts.wait_for_all()


def _free_name(path: str) -> str:
    """The first of `path`, `path`2, `path`3, ... that does not exist."""
    names = itertools.chain([path], (f"{path}{number}" for number in itertools.count(2)))
    return next(name for name in names if not storage.exists(name))
