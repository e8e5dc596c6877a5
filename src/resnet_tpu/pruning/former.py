"""Moves an earlier run out of the way when another is to begin in its `model_dir`."""

import itertools
import logging
from collections.abc import Collection

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.options.run_file import CHECKPOINTS, CONFIG_FILE

log = logging.getLogger(__name__)

_WRITTEN = (CONFIG_FILE, "labels.txt", "training_photos.json", "metrics.jsonl", "eval", "report", "plugins")
_EVENTS = "events.out.tfevents."


def set_aside(model_dir: str, *, also: Collection[str] = ()) -> None:
    """Moves the files of a run from `model_dir` to `former.<n>` in it, which is a valid `model_dir`, and logs that.

    Does nothing if there is no checkpoint. also: names of further files that belong to the run.
    """
    if not folders.steps_of_run(model_dir):
        return
    places = (storage.join(model_dir, f"former.{number}") for number in itertools.count(1))
    folder = next(folder for folder in places if not folders.steps_of_run(folder))
    storage.make_dir(folder)
    written = {name for name in storage.list_dir(model_dir) if name in {*_WRITTEN, *also} or name.startswith(_EVENTS)}
    # checkpoints last: while they are still here, the move is incomplete
    for name in [*sorted(written), CHECKPOINTS]:
        storage.move(storage.join(model_dir, name), storage.join(folder, name))
    log.warning("The run that was in %s was moved to %s.", model_dir, folder)
