"""Our checkpoints: written in the background, whole or not at all, the newest and the best kept. Orbax underneath.

`directory/<step>/` holds the arrays and a `meta` mapping (options, class names, position in the data), so that one
path is all that prediction needs. Arrays are float32 whatever the device computes in, and load on any device count.
"""

import contextlib
import dataclasses
import gc
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from resnet_tpu import hosts, storage
from resnet_tpu.errors import UserError
from resnet_tpu.models.network import Arrays

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
"""Name of the folder of checkpoints in a `model_dir`."""

MARK = "_CHECKPOINT_METADATA"
"""A file that is in every checkpoint."""


class DamagedCheckpointError(UserError):
    """A checkpoint of which a file is missing or damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint read back."""

    step: int
    arrays: Arrays
    meta: dict[str, Any]


class _KeepNewestAndBest:
    """Which checkpoints outlive the next save: Orbax's PreservationPolicy."""

    def __init__(self, keep: int, always: Collection[int], scores: Mapping[int, float]) -> None:
        self._keep, self._always, self._scores = keep, always, scores

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> Sequence[bool]:
        del context
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        kept = {*steps[-self._keep :], *self._always}
        if scored := [step for step in steps if step in self._scores]:
            kept.add(max(scored, key=lambda step: self._scores[step]))
        return [checkpoint.step in kept for checkpoint in checkpoints]


class CheckpointStore:
    """The checkpoints of one run. A context manager: leaving it waits for the last write.

    `scores` (step -> higher is better) decides which is the best; whoever evaluates a checkpoint adds to it.
    """

    def __init__(self, directory: str, *, keep: int, always: Collection[int] = ()) -> None:
        """Keeps the newest `keep`, the best, and those of the steps `always`. Makes the folder."""
        self.directory = storage.absolute(directory)  # Orbax takes no other
        self.scores: dict[int, float] = {}
        storage.make_dir(directory)
        # Any: Orbax declares its own policies with a narrower type than the one it asks for
        every: Any = ocp.training.save_decision_policies.FixedIntervalPolicy(1)
        policy: Any = _KeepNewestAndBest(keep, always, self.scores)
        self._checkpointer = ocp.training.Checkpointer(
            self.directory, context=_context(), save_decision_policy=every, preservation_policy=policy
        )

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with self._writing():
                self._checkpointer.close()
        else:  # what ended the run is worth more than what may follow from it
            with contextlib.suppress(Exception):
                self._checkpointer.close()

    def steps(self) -> list[int]:
        """The steps of the whole checkpoints there are, ascending."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def save(self, step: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Starts writing a checkpoint and returns; the arrays may be overwritten at once.

        Does nothing when `step` is there already.
        """
        if step in self.steps():
            return
        with self._writing():
            self._checkpointer.save_checkpointables_async(step, {"arrays": arrays, "meta": dict(meta)})

    def wait(self) -> None:
        """Returns when everything saved is on disk. Raises UserError when it could not be written."""
        with self._writing():
            self._checkpointer.wait()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:  # a disk that is full comes as any of them
            if hosts.is_loss(error):
                raise
            raise UserError(
                f"Writing a checkpoint to {self.directory}", _first_line(error), "to write there",
                "Check the free space and the permissions; the checkpoints before it are whole.",
            ) from error  # fmt: skip

    def shapes_of(self, collection: str) -> Arrays | None:
        """Shape and dtype of each array in a collection that not every run has; None where the newest has none."""
        for step in reversed(self.steps()):
            with contextlib.suppress(DamagedCheckpointError):  # `restore` passes over it and says so
                return stored_shapes(storage.join(self.directory, str(step))).get(collection)
        return None

    def restore(self, shapes: Arrays) -> Checkpoint | None:
        """The newest checkpoint that can be read, or None when there is none.

        `shapes` are `jax.ShapeDtypeStruct`s with the shardings wanted. Damaged checkpoints are passed over with a
        warning for the one before, and renamed to `<step>.damaged`. Raises UserError when all are damaged or the arrays
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
            damage = next(filter(None, hosts.exchange(damage)), "")  # all processes go on from the same one
            if checkpoint is None or damage:
                log.warning("Checkpoint %s cannot be read and is passed over: %s", path, damage)
                damaged.append(path)
                continue
            if damaged:
                self._put_aside(damaged)
            return checkpoint
        if damaged:
            raise UserError(
                "Checkpoints", f"{len(damaged)} damaged ({damaged[-1]})", "one that can be read", "Restore a copy."
            )
        return None

    def _put_aside(self, damaged: Sequence[str]) -> None:
        if hosts.is_first():
            for path in damaged:
                storage.move(path, f"{path}.damaged")
        hosts.wait_for_all()
        self._checkpointer.reload()


def find(path: str) -> str:
    """The checkpoint that `path` means: itself, or the newest of the `model_dir` or folder of checkpoints it is.

    Raises UserError when there is none.
    """
    if is_checkpoint(path):
        return storage.absolute(path)
    for folder in (storage.join(path, FOLDER), path):
        if steps := steps_in(folder):
            return storage.absolute(storage.join(folder, str(steps[-1])))
    raise UserError("Checkpoint", path, "a model_dir or a checkpoint in it", "Train first, or check the path.")


def _context() -> ocp.Context:
    """How Orbax reads and writes here: `meta` as JSON, and only those arrays that are asked for."""
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="meta")
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.pytree.loading.partial_load = True
    return context


def _alone(context: ocp.Context) -> ocp.Context:
    """The context in which a process reads by itself: it waits for no other, of which one may fail in reading."""
    context.multiprocessing.primary_host = jax.process_index()
    context.multiprocessing.active_processes = {jax.process_index()}
    context.multiprocessing.barrier_sync_key_prefix = f"process {jax.process_index()}"
    return context


def steps_in(folder: str) -> list[int]:
    """The steps of the checkpoints in a folder of them, ascending; none when it does not exist."""
    return sorted(int(name) for name in storage.list_dir(folder) if name.isdigit())


def is_checkpoint(path: str) -> bool:
    """Whether `path` is a whole checkpoint of ours."""
    return storage.exists(storage.join(path, MARK))


def step_of(path: str) -> int:
    """The optimizer step of the checkpoint at `path`."""
    return int(path.rstrip("/").rsplit("/", 1)[-1])


def read_meta(path: str) -> dict[str, Any]:
    """The `meta` of the checkpoint at `path`. Raises DamagedCheckpointError."""
    with _reading(path), _alone(_context()):
        return ocp.load_checkpointables(path, {"meta": None})["meta"]


def written_at(path: str) -> float:
    """When the checkpoint at `path` was whole, in unix seconds. Raises DamagedCheckpointError."""
    with _reading(path), _context():
        nanoseconds = ocp.metadata(path, "arrays").commit_timestamp_nsecs
        if nanoseconds is None:
            raise OSError("it does not say when it was written")
        return nanoseconds / 1e9


def load(path: str, shapes: Arrays) -> Checkpoint:
    """The checkpoint at `path`: the arrays named in `shapes` (others are left on disk), and `meta`.

    Raises UserError, naming leaf and both shapes, when an array is missing or of another shape, and
    DamagedCheckpointError.
    """
    _check_shapes(path, shapes)
    with _reading(path), _alone(_context()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        loaded = ocp.load_checkpointables(path, {"arrays": shapes, "meta": None})
    return Checkpoint(step_of(path), loaded["arrays"], loaded["meta"])


def load_all(path: str, collections: Sequence[str] | None = None) -> Checkpoint:
    """The checkpoint at `path` with all arrays of the named collections (default: of all), as NumPy's."""
    stored = stored_shapes(path)
    everywhere = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
        {name: stored[name] for name in collections or stored},
    )
    checkpoint = load(path, shapes)
    return dataclasses.replace(checkpoint, arrays=jax.tree.map(np.asarray, checkpoint.arrays))


def load_named(path: str, collections: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of `load_all` by name: `params/stem/conv/kernel`, ..."""
    return dict(leaves(load_all(path, collections).arrays))


def stored_shapes(path: str) -> Arrays:
    """Shape and dtype of each array of the checkpoint at `path`. Raises DamagedCheckpointError."""
    with _reading(path), _context():
        metadata: Any = ocp.metadata(path, "arrays").metadata
        if metadata is None:  # Orbax logs what is wrong and goes on
            raise OSError("the description of its arrays cannot be read")
        return metadata


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns whatever reading raises into DamagedCheckpointError."""
    with _quiet("absl", "asyncio"):  # Orbax also logs every array that it could not read, with a trace
        try:
            yield
        except Exception as error:  # noqa: BLE001  Orbax, TensorStore and the file system each raise their own
            got = _first_line(error)
            del error
            gc.collect()  # the last of these traces come when Orbax's tasks are collected
            raise DamagedCheckpointError(
                f"Checkpoint {path}", got, "a whole checkpoint of resnet_tpu", "Use another step, or restore a copy."
            ) from None


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _check_shapes(path: str, shapes: Arrays) -> None:
    found = dict(leaves(stored_shapes(path)))
    for name, leaf in leaves(shapes):
        if name not in found:
            raise UserError(f"Checkpoint {path}", f"no array {name}", "the same network", "Use the options of its run.")
        if tuple(found[name].shape) != tuple(leaf.shape):
            raise UserError(
                f"Checkpoint {path}, {name}",
                f"shape {tuple(found[name].shape)}",
                f"{tuple(leaf.shape)}",
                "Use the options it was trained with (resnet_depth, resnet_width, classes), or another model_dir.",
            )


def leaves(arrays: Arrays) -> list[tuple[str, Any]]:
    """Each array with its name, `group1/block1/conv1/conv/kernel`."""
    flat, _ = jax.tree_util.tree_flatten_with_path(arrays)
    return [("/".join(str(getattr(key, "key", key)) for key in path), leaf) for path, leaf in flat]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
