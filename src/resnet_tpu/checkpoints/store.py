"""The checkpoints of a run: written in the background, whole or not at all; the newest and the best are kept."""

import contextlib
import gc
import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import jax

from resnet_tpu import storage
from resnet_tpu.checkpoints import checksums, orbax_calls, sparse
from resnet_tpu.checkpoints.folders import (
    check_name,
    delete,
    delete_unfinished,
    put_aside,
    steps_in,
)
from resnet_tpu.checkpoints.orbax_calls import ocp
from resnet_tpu.checkpoints.reading import (
    META,
    SPARSE,
    Checkpoint,
    DamagedCheckpointError,
    load,
    orbax_context,
    stored_shapes,
)
from resnet_tpu.errors import UserError, describe
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.parallel import hosts

log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of a run, which no other process may write at the same time. Enter it (`with`) in order to save.

    Leaving it waits for the last write.
    `scores` (step -> higher is better) decides which checkpoint is the best; code that evaluates one adds its score.
    """

    def __init__(self, directory: str, *, keep: int, always: Collection[int] = ()) -> None:
        """Keeps the newest `keep`, the best, and those of the steps `always`.

        Raises UserError for a path that Orbax would take for a pattern, and when entered while another process writes
        there.
        """
        check_name(directory)
        self.directory = storage.absolute(directory)  # Orbax does not accept relative paths
        self.scores: dict[int, float] = {}
        self._keep, self._always = keep, always
        self._pending: tuple[int, Future[None]] | None = None  # step, and the future of the write
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
            elif self._pending:  # the error that ended the run matters more than a failed write
                with contextlib.suppress(Exception), orbax_calls.calling():
                    self._finish_pending()
        finally:
            self._reservation.__exit__(kind, *error)

    def steps(self) -> list[int]:
        """The steps of the existing checkpoints, ascending; the last one may still be being written."""
        return sorted([*self._steps, self._pending[0]]) if self._pending else list(self._steps)

    def save(self, step: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        """Starts writing a checkpoint and returns; the arrays may be overwritten at once.

        Does nothing if `step` exists already. Raises UserError if the previous checkpoint could not be written, or if
        this one cannot be for lack of permission or space.
        """
        if step in self.steps():
            return
        self.wait()
        items: dict[str, Any] = {"arrays": arrays, META: dict(meta)}
        if "masks" in arrays:
            items["arrays"], items[SPARSE] = sparse.pack(arrays)
        if not storage.is_remote(self.directory):
            # before Orbax, which would wait 300 s for its folder, and leave it half written on a full disk
            storage.check_writable(self.directory)
            storage.make_dir(self.directory)
            storage.check_room(self.directory, sum(leaf.nbytes for leaf in jax.tree.leaves(items["arrays"])))
        with self._writing(), orbax_context():
            path = storage.join(self.directory, str(step))
            self._pending = step, _with_checksums(ocp.save_checkpointables_async(path, items), path)

    def wait(self) -> None:
        """Returns when everything saved is on disk. Raises UserError when it could not be written."""
        if self._pending is None:
            return
        step = self._pending[0]
        with self._writing():
            self._finish_pending()
        self._steps = sorted([*self._steps, step])
        kept = {*self._steps[-self._keep :], *self._always}
        if scored := [step for step in self._steps if step in self.scores]:
            kept.add(max(scored, key=lambda step: self.scores[step]))
        delete(self.directory, [step for step in self._steps if step not in kept])
        self._steps = [step for step in self._steps if step in kept]

    def _finish_pending(self) -> None:
        """Waits for the write in progress and raises its error. If a signal ends the wait, the checkpoint is lost."""
        assert self._pending is not None
        (step, write), self._pending = self._pending, None
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
            storage.check_writable(self.directory)  # its errors say more about buckets
            raise UserError(
                f"Writing a checkpoint to {self.directory}", got, "a folder that can be written to",
                "Check the free space and the permissions; earlier checkpoints are intact.",
            )  # fmt: skip

    def mask_shapes(self) -> Arrays | None:
        """Shape and dtype of each mask; None if the newest checkpoint is not of a pruned network."""
        for step in reversed(self.steps()):
            with contextlib.suppress(DamagedCheckpointError):  # `restore` skips it and says so
                return stored_shapes(storage.join(self.directory, str(step))).get("masks")
        return None

    def restore(self, shapes: Arrays) -> Checkpoint | None:
        """The newest checkpoint that can be read, or None when there is none.

        `shapes` are `jax.ShapeDtypeStruct`s with the wanted shardings. A damaged checkpoint is renamed (see
        `put_aside`) and skipped, with a warning, in favour of the one before. Raises UserError when all are damaged or
        the arrays are of another network.
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
