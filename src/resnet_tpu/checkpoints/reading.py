"""Finds, describes and reads our checkpoints: folders `<step>/` in Orbax's format.

A checkpoint holds the arrays and a `meta` mapping (options, class names, position in the data), so that prediction
needs only one path. Arrays are float32 whatever the device computes in, and load on any number of devices.
"""

import contextlib
import dataclasses
import errno
import gc
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import checksums, orbax_calls, sparse
from resnet_tpu.checkpoints.folders import (
    CHECKPOINTS,
    METADATA_FILE,
    folder_of,
    is_checkpoint,
    steps_in,
)
from resnet_tpu.checkpoints.missing import no_checkpoint
from resnet_tpu.checkpoints.orbax_calls import ocp
from resnet_tpu.errors import UserError, describe, is_lack_of_memory
from resnet_tpu.models.arrays import Arrays, leaves
from resnet_tpu.models.network import Network
from resnet_tpu.parallel import placement
from resnet_tpu.storage import buckets, disks
from resnet_tpu.storage.checked_json import as_kind

META, SPARSE = "meta", "sparse"
"""The parts that a checkpoint holds as JSON besides its arrays: its metadata, and the shapes of packed arrays."""

_UNREACHED = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|response code: (401|403|5)")

_REFUSED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error codes of files that this process may not, or for lack of resources cannot open."""


class DamagedCheckpointError(UserError):
    """A checkpoint with a missing or damaged file."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint read back."""

    step: int
    arrays: Arrays
    meta: dict[str, Any]


def find(path: str) -> str:
    """The checkpoint that `path` means: itself, or the newest in a `model_dir` or folder of checkpoints.

    Raises UserError when there is none.
    """
    if not path:  # not the current folder
        raise UserError("Checkpoint", path, "a model_dir or a checkpoint in it", "Give its path.")
    if is_checkpoint(path):
        return storage.absolute(path)
    for folder in (folder_of(path), path):
        if steps := steps_in(folder):
            newest = storage.absolute(storage.join(folder, str(steps[-1])))
            # elsewhere, a folder whose name is a number may be an exported bundle, or hold the photos of a class
            if is_checkpoint(newest) or newest.split("/")[-2] == CHECKPOINTS:
                return newest
    raise no_checkpoint(path)


def orbax_context(*, alone: bool = False) -> ocp.Context:
    """Makes Orbax read and write `meta` as JSON, and read only the arrays that are asked for.

    alone: this process does not wait for others, which may fail to read.
    """
    registry = ocp.handlers.local_registry()
    for name in (META, SPARSE):
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.pytree.loading.partial_load = True
    if alone:
        context.multiprocessing.primary_host = jax.process_index()
        context.multiprocessing.active_processes = {jax.process_index()}
        context.multiprocessing.barrier_sync_key_prefix = f"process {jax.process_index()}"
    return context


def step_of(path: str) -> int:
    """The optimizer step of the checkpoint at `path`. Raises UserError for a copy that is not named by its step."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    if not name.isdecimal():
        do = "Rename its folder to the number of its step."
        raise UserError(f"Checkpoint {path}", f"the name {name}", "the number of its step, as in checkpoints/11259", do)
    return int(name)


def read_meta(path: str) -> dict[str, Any]:
    """The `meta` of the checkpoint at `path`. Raises DamagedCheckpointError."""
    meta = _read_json(path, META)
    with _reading(path):
        _check_names(meta)
    return meta


def _check_names(meta: dict[str, Any]) -> None:
    as_kind(list[str] | None, meta.get("class_names"), "class_names")


def _read_json(path: str, name: str) -> dict[str, Any]:
    with _reading(path), orbax_context(alone=True):
        checksums.check(path, name)
        return ocp.load_checkpointables(storage.absolute(path), {name: None})[name]


def written_at(path: str) -> float:
    """When the checkpoint at `path` was completed, in Unix seconds. Raises DamagedCheckpointError."""
    with _reading(path), orbax_context():
        checksums.check(path, METADATA_FILE)
        nanoseconds = ocp.metadata(storage.absolute(path), "arrays").commit_timestamp_nsecs
        if nanoseconds is None:
            raise OSError("it does not say when it was written")
        return nanoseconds / 1e9


def load(path: str, shapes: Arrays) -> Checkpoint:
    """The checkpoint at `path`: the arrays named in `shapes` (others are left on disk), and `meta`.

    Raises UserError, naming leaf and both shapes, when an array is missing or of another shape, or a collection has one
    that `shapes` lacks; and DamagedCheckpointError.
    """
    return _load(path, shapes, *_stored(path))


def _load(path: str, shapes: Arrays, stored: Arrays, packed: sparse.Shapes) -> Checkpoint:
    check_shapes(path, sparse.described(stored, packed), shapes)
    wanted = sparse.to_load(shapes, stored, packed)
    with _reading(path), orbax_context(alone=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        checksums.check(path, META)
        loaded = ocp.load_checkpointables(storage.absolute(path), {"arrays": wanted, META: None})
        arrays = sparse.unpack(loaded["arrays"], shapes, packed)
        _check_names(loaded[META])
    return Checkpoint(step_of(path), arrays, loaded[META])


def load_all(path: str, collections: Sequence[str] | None = None) -> Checkpoint:
    """The checkpoint at `path` with all arrays of the named collections (default: of all), as NumPy arrays."""
    return _load_all(path, collections, *_stored(path))


def _load_all(path: str, collections: Sequence[str] | None, stored: Arrays, packed: sparse.Shapes) -> Checkpoint:
    shapes = sparse.described(stored, packed)
    wanted = {name: shapes[name] for name in collections or shapes}
    checkpoint = _load(path, placement.with_sharding(wanted, sparse.here()), stored, packed)
    return dataclasses.replace(checkpoint, arrays=jax.tree.map(np.asarray, checkpoint.arrays))


def load_for(network: Network, path: str) -> Checkpoint:
    """`load_all` of a checkpoint that must be of `network`. Raises UserError when it is of another."""
    checkpoint = load_all(path)
    check_shapes(path, checkpoint.arrays, network.shape_trees())
    return checkpoint


def load_named(path: str, collections: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of `load_all` by name: `params/stem/conv/kernel`, ..."""
    return dict(leaves(load_all(path, collections).arrays))


def load_masks(path: str) -> Arrays | None:
    """The masks of the checkpoint at `path`, nested as its params; None where it has none. No other array is loaded."""
    stored, packed = _stored(path)
    return _load_all(path, ("masks",), stored, packed).arrays["masks"] if "masks" in stored else None


def stored_shapes(path: str) -> Arrays:
    """Shape and dtype of each array of the checkpoint at `path`, whose checksums are verified.

    Raises DamagedCheckpointError.
    """
    return sparse.described(*_stored(path))


def stored_bytes(path: str) -> int:
    """Bytes of the arrays of the checkpoint at `path` in the form in which they are stored.

    Orbax's files take more, and differ in size between equal checkpoints. Raises DamagedCheckpointError.
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(_stored(path)[0]))


def _stored(path: str) -> tuple[Arrays, sparse.Shapes]:
    """Descriptions of the arrays as they are stored, and the shapes of those that are packed."""
    with _reading(path), orbax_context():
        checksums.check(path, "arrays")
        metadata: Any = ocp.metadata(storage.absolute(path), "arrays").metadata
        if metadata is None:  # Orbax logs the error and continues
            raise OSError("the description of its arrays cannot be read")
    return metadata, _read_json(path, SPARSE) if sparse.is_packed(metadata) else {}


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns errors in reading into DamagedCheckpointError, or into UserError if the checkpoint may be intact."""
    # clients of buckets raise OSErrors with the same codes; `_check_bucket` names those
    reaching = contextlib.nullcontext() if storage.is_remote(path) else disks.reaching(path)
    with orbax_calls.calling():
        try:
            with reaching:
                yield
        except UserError:  # a disk that cannot be reached, or a bucket that does not exist or denies access
            raise
        except Exception as error:  # Orbax, TensorStore and the file system raise errors of their own
            if is_lack_of_memory(error):
                raise
            _check_bucket(path, error)
            _check_refused(path, error)
            got = describe(error)
            del error
            gc.collect()  # the last tracebacks are logged when Orbax's tasks are collected
            raise DamagedCheckpointError(
                f"Checkpoint {path}", got, "a whole checkpoint of resnet_tpu", "Use another step, or restore a copy."
            ) from None


def check_shapes(path: str, stored: Arrays, shapes: Arrays) -> None:
    """Raises UserError, as `load` does, when `stored`, of the checkpoint at `path`, does not fit `shapes`."""
    saved, expected = dict(leaves(stored)), dict(leaves(shapes))
    for name in saved:
        if name.partition("/")[0] in shapes and name not in expected:
            got = f"{name}, which the network does not have"
            raise UserError(f"Checkpoint {path}", got, "the same network", "Use the options of its run.")
    for name, leaf in expected.items():
        if name not in saved and name.startswith("ema/"):
            do = "Leave moving_average_decay out, or give another model_dir."
            raise UserError(f"Checkpoint {path}", "no moving averages", "those that moving_average_decay asks for", do)
        if name not in saved:
            raise UserError(f"Checkpoint {path}", f"no array {name}", "the same network", "Use the options of its run.")
        if tuple(saved[name].shape) != tuple(leaf.shape):
            raise UserError(
                f"Checkpoint {path}, {name}",
                f"shape {tuple(saved[name].shape)}",
                f"{tuple(leaf.shape)}",
                "Use the options it was trained with (resnet_depth, resnet_width, stem, image_size, classes), or "
                "another model_dir or checkpoint.",
            )


def _check_bucket(path: str, error: Exception) -> None:
    """Raises UserError if a checkpoint in a bucket could not be reached, and so may be intact."""
    buckets.require_bucket(path)
    if storage.is_remote(path) and (buckets.storage_error(error) or _UNREACHED.search(str(error))):
        do = "Check the network and the permissions, then run the same command again."
        raise UserError(f"Checkpoint {path}", describe(error), "an answer from the bucket", do) from error


def _check_refused(path: str, error: Exception) -> None:
    """Raises UserError if files of a checkpoint on a disk cannot be opened here, though they may be intact."""
    if storage.is_remote(path):
        return
    errors = [error]
    try:
        with disks.reaching(path):
            checksums.open_all(path)  # again, as Orbax hides the cause of some of its errors
    except OSError as refusal:
        errors.append(refusal)
    for one in errors:
        if (isinstance(one, OSError) and one.errno in _REFUSED) or "can't start new thread" in str(one):
            do = "Check its permissions, and the limits on open files, threads and memory."
            raise UserError(f"Checkpoint {path}", describe(one), "one that this process can open", do) from None
