"""Writes converted weights to a new path, which appears whole or not at all; in a bucket, file by file."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.safetensors_file import SUFFIX
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.options.config import Config
from resnet_tpu.options.run_file import write_description

log = logging.getLogger(__name__)

WeightsForm = Literal["model_dir", "tf1", "safetensors", "timm"]
"""What `convert` writes."""


def check_target(target: str, to: WeightsForm) -> None:
    """Raises UserError when `target` already exists, or its name does not fit the format."""
    if to == "safetensors":
        if not target.endswith(SUFFIX):
            raise UserError("Target", target, f"a file called *{SUFFIX}", f"Write {target}{SUFFIX}.")
        taken = storage.exists(target)
    else:
        # a killed `folder_aside` may have left partial folders, which its next call removes
        names = [name for name in storage.list_dir(target) if not (name[0] == "." and name.endswith(".partial"))]
        taken = bool(names) or (storage.exists(target) and not storage.is_dir(target))
    if taken:
        raise UserError("Target", f"{target}, which already exists", "a new path", "Choose another, or remove it.")


def write_model_dir(target: str, config: Config, arrays: Arrays, class_names: list[str] | None) -> None:
    """Writes a run that every command accepts, with these arrays as its one checkpoint. See `new_folder`."""
    if class_names is None:
        log.info("No class names found: the classes are called 0, 1, ... Use --labels=FILE to name them")
    config, step = config.replace(model_dir=target), int(arrays["step"])
    # the images seen after this many steps, by the batch size in the options
    meta = make_meta(config, class_names, step * config.train.train_batch_size)
    arrays = jax.tree.map(jnp.asarray, arrays | {"step": jnp.int32(step)})
    with new_folder(target) as folder:
        with CheckpointStore(folders.folder_of(folder), keep=1) as checkpoints:
            checkpoints.save(step, arrays, meta)
        write_description(folder, config, meta["class_names"])


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[str]:
    """A folder to write to, which becomes `target` when the block succeeds and is deleted when it raises.

    In a bucket it is `target` itself, and what was written stays even if the block raises. Raises UserError when
    another program has made `target` since `check_target`.
    """
    if storage.is_remote(target):
        check_target(target, "model_dir")  # or another form that is a folder
        yield target
        return
    path = Path(storage.absolute(target)).resolve()  # a link stays, and leads to the new folder
    is_there = path.is_dir()  # an empty folder stays too: it may be a volume, or the current folder
    with storage.folder_aside(str(path if is_there else path.parent), path.name) as aside:
        yield aside
        check_target(target, "model_dir")
        if is_there:
            for written in sorted(Path(aside).iterdir(), key=Path.is_dir):  # checkpoints last: they make it a run
                written.rename(path / written.name)
            Path(aside).rmdir()
        else:
            Path(aside).rename(path)
