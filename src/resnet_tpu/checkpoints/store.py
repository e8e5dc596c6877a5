"""Our checkpoints, by Orbax: written in the background, whole or not at all; the newest and the best are kept.

`directory/<step>/` holds the arrays and a `meta` mapping (options, class names, position in the data), so that
prediction needs a single path. Arrays are float32 whatever the device computes in, and load on any device count.
"""

import contextlib
import dataclasses
import gc
import logging
import math
import re
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import checksums, orbax_calls, sparse
from resnet_tpu.checkpoints.folders import (
    FOLDER,
    MARK,
    check_name,
    delete,
    delete_unfinished,
    folder_of,
    is_checkpoint,
    put_aside,
    steps_in,
)
from resnet_tpu.checkpoints.missing import no_checkpoint
from resnet_tpu.checkpoints.orbax_calls import ocp
from resnet_tpu.errors import UserError, describe, is_lack_of_memory
from resnet_tpu.models.arrays import Arrays, leaves
from resnet_tpu.parallel import distributed, hosts
from resnet_tpu.storage import buckets, disks

log = logging.getLogger(__name__)

_META, _SPARSE = "meta", "sparse"
"""What a checkpoint holds as JSON beside its arrays: its metadata, and the shapes of packed arrays."""

_UNREACHED = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|response code: (401|403|5)")


class DamagedCheckpointError(UserError):
    """A checkpoint with a missing or damaged file."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint read back."""

    step: int
    arrays: Arrays
    meta: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run, which no other process may write meanwhile. To save, enter it as a context manager.

    Leaving it waits for the last write.
    `scores` (step -> higher is better) decides which checkpoint is the best; whoever evaluates one adds to it.
    """

    def __init__(self, directory: str, *, keep: int, always: Collection[int] = ()) -> None:
        """Keeps the newest `keep`, the best, and those of the steps `always`.

        Raises UserError for a path that Orbax would take for a pattern, and when entered while another process writes
        there.
        """
        check_name(directory)
        self.directory = storage.absolute(directory)  # Orbax accepts no relative path
        self.scores: dict[int, float] = {}
        self._keep, self._always = keep, always
        self._writes: tuple[int, Future[None]] | None = None  # step, and the future of the write
        self._steps = steps_in(self.directory)
        self._reservation = contextlib.ExitStack()

    def __enter__(self) -> "CheckpointStore":
        if hosts.is_first():
            self._reservation.enter_context(storage.reserved(self.directory))
        delete_unfinished(self.directory)
        self._steps = steps_in(self.directory)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        try:
            if kind is None:
                self.wait()
            elif self._writes:  # the error that ended the run matters more than what follows from it
                with contextlib.suppress(Exception), orbax_calls.calling():
                    self._end_write()
        finally:
            self._reservation.__exit__(kind, *error)

    def steps(self) -> list[int]:
        """The steps of the checkpoints there are, ascending; the last may still be being written."""
        return sorted([*self._steps, self._writes[0]]) if self._writes else list(self._steps)

    def save(self, step: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Starts writing a checkpoint and returns; the arrays may be overwritten at once.

        Does nothing if `step` exists already. Raises UserError if the previous checkpoint could not be written, or if
        this one cannot be for lack of permission or space.
        """
        if step in self.steps():
            return
        self.wait()
        items: dict[str, Any] = {"arrays": arrays, _META: dict(meta)}
        if "masks" in arrays:
            items["arrays"], items[_SPARSE] = sparse.pack(arrays)
        if not storage.is_remote(self.directory):
            # before Orbax, which would wait 300 s for its folder, and leave it half written on a full disk
            storage.check_writable(self.directory)
            storage.make_dir(self.directory)
            storage.check_room(self.directory, sum(leaf.nbytes for leaf in jax.tree.leaves(items["arrays"])))
        with self._writing(), _context():
            path = storage.join(self.directory, str(step))
            self._writes = step, _with_checksums(ocp.save_checkpointables_async(path, items), path)

    def wait(self) -> None:
        """Returns when everything saved is on disk. Raises UserError when it could not be written."""
        if self._writes is None:
            return
        step = self._writes[0]
        with self._writing():
            self._end_write()
        self._steps = sorted([*self._steps, step])
        kept = {*self._steps[-self._keep :], *self._always}
        if scored := [step for step in self._steps if step in self.scores]:
            kept.add(max(scored, key=lambda step: self.scores[step]))
        delete(self.directory, [step for step in self._steps if step not in kept])
        self._steps = [step for step in self._steps if step in kept]

    def _end_write(self) -> None:
        """Waits for the write that was begun, raises its error. A signal that ends the wait costs the checkpoint."""
        assert self._writes is not None
        (step, write), self._writes = self._writes, None
        try:
            write.result()
        except (KeyboardInterrupt, SystemExit):
            log.warning("The checkpoint of step %d is lost: it was being written. Earlier ones are intact.", step)
            raise
        finally:
            del write  # it would keep its error alive, see `_writing`

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        got = ""
        with orbax_calls.calling():
            try:
                yield
            except (OSError, ValueError, RuntimeError) as error:  # a full disk can raise any of them
                if hosts.is_loss(error):
                    raise
                got = describe(error)
            if got:
                gc.collect()  # now, as Orbax's tasks log their errors when they are collected
        if got:
            storage.check_writable(self.directory)  # says more about buckets
            raise UserError(
                f"Writing a checkpoint to {self.directory}", got, "a folder that can be written to",
                "Check the free space and the permissions; earlier checkpoints are intact.",
            )  # fmt: skip

    def mask_shapes(self) -> Arrays | None:
        """Shape and dtype of each mask; None where the newest checkpoint is of no pruned network."""
        for step in reversed(self.steps()):
            with contextlib.suppress(DamagedCheckpointError):  # `restore` skips it and says so
                return stored_shapes(storage.join(self.directory, str(step))).get("masks")
        return None

    def restore(self, shapes: Arrays) -> Checkpoint | None:
        """The newest checkpoint that can be read, or None when there is none.

        `shapes` are `jax.ShapeDtypeStruct`s with the shardings wanted. Damaged checkpoints are skipped with a warning,
        in favour of the one before, and renamed, see `put_aside`. Raises UserError when all are damaged or the arrays
        are of another network.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            path = storage.join(self.directory, str(step))
            checkpoint, damage = None, ""
            try:
                checkpoint = load(path, shapes)
            except DamagedCheckpointError as error:
                damage = str(error.got)
            damage = next(filter(None, hosts.exchange(damage)), "")  # all processes must resume from the same one
            if checkpoint is None or damage:
                log.warning("Checkpoint %s cannot be read and is skipped: %s", path, damage)
                damaged.append(path)
                continue
            if damaged:
                put_aside(damaged)
                self._steps = steps_in(self.directory)
            return checkpoint
        if damaged:
            raise UserError(
                "Checkpoints", f"{len(damaged)} damaged ({damaged[-1]})", "one that can be read", "Restore a copy."
            )
        return None


def _with_checksums(write: Any, path: str) -> "Future[None]":
    """A future that ends as `write` does, once the checksums of the checkpoint are written as well."""
    done: Future[None] = Future()

    def finish() -> None:
        try:
            write.result()
            if hosts.is_first():
                checksums.write(path)
        except BaseException as error:  # noqa: BLE001  raised again for whoever waits
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=finish, daemon=True, name="resnet_tpu checksums").start()
    return done


def find(path: str) -> str:
    """The checkpoint that `path` means: itself, or the newest in a `model_dir` or folder of checkpoints.

    Raises UserError when there is none.
    """
    if is_checkpoint(path):
        return storage.absolute(path)
    for folder in (folder_of(path), path):
        if steps := steps_in(folder):
            newest = storage.absolute(storage.join(folder, str(steps[-1])))
            # elsewhere, a folder named by a number may be a bundle, or hold the photos of a class
            if is_checkpoint(newest) or newest.split("/")[-2] == FOLDER:
                return newest
    raise no_checkpoint(path)


def _context() -> ocp.Context:
    """How Orbax reads and writes here: `meta` as JSON, and only those arrays that are asked for."""
    registry = ocp.handlers.local_registry()
    for name in (_META, _SPARSE):
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.pytree.loading.partial_load = True
    return context


def _alone(context: ocp.Context) -> ocp.Context:
    """The context in which a process reads alone: it does not wait for others, whose reading may fail."""
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
    return _read_json(path, _META)


def _read_json(path: str, name: str) -> dict[str, Any]:
    with _reading(path), _alone(_context()):
        checksums.check(path, name)
        return ocp.load_checkpointables(storage.absolute(path), {name: None})[name]


def written_at(path: str) -> float:
    """When the checkpoint at `path` was completed, in Unix seconds. Raises DamagedCheckpointError."""
    with _reading(path), _context():
        checksums.check(path, MARK)
        nanoseconds = ocp.metadata(storage.absolute(path), "arrays").commit_timestamp_nsecs
        if nanoseconds is None:
            raise OSError("it does not say when it was written")
        return nanoseconds / 1e9


def load(path: str, shapes: Arrays) -> Checkpoint:
    """The checkpoint at `path`: the arrays named in `shapes` (others are left on disk), and `meta`.

    Raises UserError, naming leaf and both shapes, when an array is missing or of another shape, or a collection has one
    that `shapes` lacks; and DamagedCheckpointError.
    """
    stored, packed = _stored(path)
    check_shapes(path, sparse.described(stored, packed), shapes)
    wanted = sparse.to_load(shapes, stored, packed)
    with _reading(path), _alone(_context()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        checksums.check(path, _META)
        loaded = ocp.load_checkpointables(storage.absolute(path), {"arrays": wanted, _META: None})
        arrays = sparse.unpack(loaded["arrays"], shapes, packed)
    return Checkpoint(step_of(path), arrays, loaded[_META])


def load_all(path: str, collections: Sequence[str] | None = None) -> Checkpoint:
    """The checkpoint at `path` with all arrays of the named collections (default: of all), as NumPy arrays."""
    stored = stored_shapes(path)
    checkpoint = load(path, distributed.placed({name: stored[name] for name in collections or stored}, sparse.here()))
    return dataclasses.replace(checkpoint, arrays=jax.tree.map(np.asarray, checkpoint.arrays))


def load_named(path: str, collections: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of `load_all` by name: `params/stem/conv/kernel`, ..."""
    return dict(leaves(load_all(path, collections).arrays))


def stored_shapes(path: str) -> Arrays:
    """Shape and dtype of each array of the checkpoint at `path`. Raises DamagedCheckpointError."""
    return sparse.described(*_stored(path))


def stored_bytes(path: str) -> int:
    """Bytes of the arrays of the checkpoint at `path` in the form in which they are stored.

    Orbax's files take more, and differ in size between equal checkpoints. Raises DamagedCheckpointError.
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(_stored(path)[0]))


def _stored(path: str) -> tuple[Arrays, sparse.Shapes]:
    """Descriptions of the arrays as they lie on disk, and the shapes of those that are packed."""
    with _reading(path), _context():
        checksums.check(path, "arrays")
        metadata: Any = ocp.metadata(storage.absolute(path), "arrays").metadata
        if metadata is None:  # Orbax logs what is wrong and continues
            raise OSError("the description of its arrays cannot be read")
    return metadata, _read_json(path, _SPARSE) if sparse.is_packed(metadata) else {}


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns whatever reading raises into DamagedCheckpointError."""
    # clients of buckets raise OSErrors with the same codes; `_check_bucket` names those
    reaching = contextlib.nullcontext() if storage.is_remote(path) else disks.reaching(path)
    with orbax_calls.calling():
        try:
            with reaching:
                yield
        except UserError:  # about a disk that cannot be reached, or a bucket that does not exist or refuses
            raise
        except Exception as error:  # Orbax, TensorStore and the file system raise errors of their own
            if is_lack_of_memory(error):
                raise
            _check_bucket(path, error)
            got = describe(error)
            del error
            gc.collect()  # the last tracebacks are logged when Orbax's tasks are collected
            raise DamagedCheckpointError(
                f"Checkpoint {path}", got, "a whole checkpoint of resnet_tpu", "Use another step, or restore a copy."
            ) from None


def check_shapes(path: str, stored: Arrays, shapes: Arrays) -> None:
    """Raises UserError, as `load` does, when `stored`, of the checkpoint at `path`, does not fit `shapes`."""
    found, asked = dict(leaves(stored)), dict(leaves(shapes))
    for name in found:
        if name.partition("/")[0] in shapes and name not in asked:
            got = f"{name}, which the network does not have"
            raise UserError(f"Checkpoint {path}", got, "the same network", "Use the options of its run.")
    for name, leaf in asked.items():
        if name not in found and name.startswith("ema/"):
            do = "Leave moving_average_decay out, or give another model_dir."
            raise UserError(f"Checkpoint {path}", "no moving averages", "those that moving_average_decay asks for", do)
        if name not in found:
            raise UserError(f"Checkpoint {path}", f"no array {name}", "the same network", "Use the options of its run.")
        if tuple(found[name].shape) != tuple(leaf.shape):
            raise UserError(
                f"Checkpoint {path}, {name}",
                f"shape {tuple(found[name].shape)}",
                f"{tuple(leaf.shape)}",
                "Use the options it was trained with (resnet_depth, resnet_width, classes), or another model_dir or "
                "checkpoint.",
            )


def _check_bucket(path: str, error: Exception) -> None:
    """Raises UserError when a checkpoint in a bucket could not be reached, and may be intact."""
    buckets.require_bucket(path)
    if storage.is_remote(path) and (buckets.named(error) or _UNREACHED.search(str(error))):
        do = "Check the network and the permissions, then run the same command again."
        raise UserError(f"Checkpoint {path}", describe(error), "an answer from the bucket", do) from error
