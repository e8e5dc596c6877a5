"""Checkpoints by their names in the original's pruning fork, `DIR/checkpoint_iter_<step>` and `..._final`.

Here these are small text files in `lottery_results_dir` that hold the path of one of our checkpoints, so they can be
copied by hand. If there is no such file, the name means the checkpoint of that step, or the newest, in the model_dir
`DIR`. The fork's own checkpoints have such names too, and can be read.
"""

import re

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading, tf1
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.lengths import kept_steps

_GRAPH = "graph.pbtxt"
"""File that the fork's scripts copy along with a checkpoint. It held TensorFlow's graph; here it is empty."""

_NAME = "checkpoint_iter_"
_FINAL = "final"


def find_named(path: str) -> str:
    """The checkpoint that a name such as `DIR/checkpoint_iter_11259` stands for. Raises UserError if there is none."""
    folder, _, name = path.rstrip("/").rpartition("/")
    if _is_name(name):
        if storage.exists(path) and not storage.is_dir(path) and folders.is_checkpoint(kept := storage.read_text(path)):
            return kept
        step = name.removeprefix(_NAME)
        checkpoint = storage.join(folders.folder_of(folder), step)
        if folders.is_checkpoint(checkpoint):
            return checkpoint
        if step == _FINAL and folders.steps_of_run(folder):
            return reading.find(folder)
    if prefix := tf1.find_checkpoint(path):
        return prefix
    return reading.find(path)


def named_start(model_dir: str) -> str | None:
    """The checkpoint to begin with, as named by the file `checkpoint` that the fork's scripts write in `model_dir`.

    None if it names anything but a `checkpoint_iter_<step>`: TensorFlow also writes this file, to record how far it has
    trained. None also for the newest checkpoint of `model_dir`, from which training resumes anyway. Raises UserError
    when the checkpoint is missing.
    """
    state = storage.join(model_dir, tf1.STATE)
    path = tf1.read_state(state)
    name = re.split(r"[/\\]", path or "")[-1]
    if path is None or not name.startswith(_NAME):
        return None
    try:
        checkpoint = find_named(storage.join(model_dir, name))
    except UserError:
        do = f"Copy {name}* of the earlier run there too, or delete this file."
        raise UserError(f"File {state}", path, f"the name of a checkpoint in {model_dir}", do) from None
    steps = folders.steps_of_run(model_dir)
    return None if steps and checkpoint == reading.find(model_dir) else checkpoint


def name_checkpoints(config: Config) -> None:
    """Writes the names of the checkpoints that the run was to keep, and of its last one, in `lottery_results_dir`."""
    results_dir = config.lottery.lottery_results_dir
    folder = storage.absolute(folders.folder_of(config.run.model_dir))
    saved = folders.steps_in(folder)
    asked = kept_steps(config.train.lottery_checkpoint_iters)
    kept = {str(step): step for step in asked if step in saved} | {_FINAL: saved[-1]}
    storage.make_dir(results_dir)
    for name, step in kept.items():
        storage.write_text(storage.join(results_dir, f"{_NAME}{name}"), storage.join(folder, str(step)))
    storage.write_text(storage.join(results_dir, _GRAPH), "")


def forget_names(results_dir: str, model_dir: str) -> None:
    """Deletes the names of checkpoints that were in `model_dir`: they would now refer to those of the new run."""
    own = storage.absolute(folders.folder_of(model_dir)) + "/"
    for name in storage.list_dir(results_dir) if results_dir else []:
        path = storage.join(results_dir, name)
        if _is_name(name) and storage.read_text(path).startswith(own):
            storage.remove(path)


def _is_name(file: str) -> bool:
    """Whether a file names one of our checkpoints. Files of the fork's own checkpoints have a suffix after a dot."""
    return file.startswith(_NAME) and "." not in file
