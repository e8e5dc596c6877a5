"""Several processes, on one host or many, that train together: how they agree, stop and end.

They connect through `jax.distributed.initialize` and exchange arrays through `jax.experimental.multihost_utils`. JAX's
heartbeats notice a killed process; a collective notices it at once. This module does what JAX has no public function
for. It is built on the key-value store of `jax.distributed`, which Orbax uses too, and which has no public name either:

* Text is exchanged within a time limit, and errors name late processes. `multihost_utils` sends arrays by collectives,
  which wait without limit and are compiled for each length; `assert_equal` does not say which process has which value.
* A process that fails tells the others, which stop too, with its message and its exit code. JAX aborts them instead.
* A signal to one process stops all of them at the same step. `reached_preemption_sync_point` does so for SIGTERM only,
  which it takes away from Python, even before and after training; it does not handle Ctrl-C and SIGHUP.
"""

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax

from resnet_tpu.errors import LostProcessError, UserError, describe, first_line
from resnet_tpu.options.config import RunConfig
from resnet_tpu.parallel import meshes, startup
from resnet_tpu.parallel.rendezvous import meet
from resnet_tpu.system.failures import as_user_error

log = logging.getLogger(__name__)

_ROOT = "resnet_tpu"
_POLL_SECS = 0.5
_GRACE_SECS = 2.0  # for the main thread to end with its own message
_STOP_SECS = 60.0  # for the others to report their step


class ProcessGroup:
    """The processes that work together, seen from one of them; made by `connected`."""

    def __init__(self, *, index: int, count: int, timeout_secs: float) -> None:
        from jax._src.distributed import global_state

        self.index, self.count = index, count
        self._client: Any = global_state.client
        self._timeout_secs = timeout_secs
        self._calls = 0
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._step = -1
        self._stop_at: int | None = None
        self._stop_signal: int | None = None
        self._signal: Callable[[], int | None] = lambda: None
        atexit.register(self.stop_watching)  # before JAX shuts down, after which the store is gone
        threading.Thread(target=self._watch, daemon=True, name="resnet_tpu hosts").start()

    @property
    def is_ending(self) -> bool:
        """Whether this process is ending already, and need not tell the others why."""
        return self._ending.is_set()

    def exchange(self, text: str) -> list[str]:
        """The texts that the processes passed to the same call, in order. All must call it; waits for the slowest."""
        self._calls += 1
        found = self._gather(f"exchange/{self._calls}", text, self._timeout_secs)
        # all are in this call, so none still reads the last one
        self._client.key_value_delete(f"{_ROOT}/exchange/{self._calls - 1}/{self.index}")
        return found

    def stop_signal(self, step: int, signal: Callable[[], int | None]) -> int | None:
        """The signal that makes all processes stop before step `step`, or None: the same answer in all of them.

        `signal` returns the one that this process has received, if any. Until a process has received one, this call
        costs nothing. Then the processes tell each other their steps, in the background, and stop where the furthest
        is.
        """
        with self._lock:
            self._signal, self._step = signal, step
            due = self._stop_at is not None and step >= self._stop_at
            return self._stop_signal if due else None

    def fail(self, message: str, code: int) -> None:
        """Tells the others why this process ends, so that they end too; it then exits without JAX's shutdown."""
        self._ending.set()
        with contextlib.suppress(Exception):  # the store itself may be lost
            self._client.key_value_set(f"{_ROOT}/failed/{self.index}", json.dumps([message, code]))
        atexit.register(self._exit, code)
        # a thread that waits for a device, which waits for another process, would keep this one from ending
        hurry = threading.Timer(3 * _GRACE_SECS, self._exit, [code])
        hurry.daemon = True
        hurry.start()

    def follow_failure(self) -> None:
        """Ends this process in the same way as another that has failed, if that reports why within `_GRACE_SECS`."""
        until = time.monotonic() + _GRACE_SECS
        with contextlib.suppress(Exception):  # the store itself may be lost
            while time.monotonic() < until and not self.is_ending:
                if failed := self._failed():
                    self._follow(*failed[0], 0)
                time.sleep(_POLL_SECS / 5)

    def stop_watching(self) -> None:
        """Call it when all processes will end alike: this one then neither tells the others nor follows them."""
        self._ending.set()

    def _gather(self, name: str, text: str, timeout_secs: float) -> list[str]:
        self._client.key_value_set(f"{_ROOT}/{name}/{self.index}", text)
        until = time.monotonic() + timeout_secs
        texts = []
        for index in range(self.count):
            timeout_ms = max(1, int(1000 * (until - time.monotonic())))
            try:
                texts.append(self._client.blocking_key_value_get(f"{_ROOT}/{name}/{index}", timeout_ms))
            except Exception as error:
                is_late = _status(error) == "DEADLINE_EXCEEDED"
                got = f"nothing from it within {timeout_secs:.0f} s" if is_late else first_line(error)
                raise _lost(f"Process {index} of {self.count}", got) from error
        return texts

    def _watch(self) -> None:
        """Ends this process when another has failed, and takes part in agreeing on the step to stop at."""
        try:
            while not self._ending.wait(_POLL_SECS):
                if failed := self._failed():
                    self._follow(*failed[0], _GRACE_SECS)
                number = self._signal()
                if number is not None and self._stop_at is None:
                    self._client.key_value_set(f"{_ROOT}/stop/{self.index}", str(number), allow_overwrite=True)
                asked = [] if self._stop_at is not None else self._client.key_value_dir_get(f"{_ROOT}/stop/")
                if asked:
                    self._agree_to_stop(int(asked[0][1]))
        # The store ended with process 0. JAX may end the program, or the main thread may have noticed it.
        except Exception as error:  # noqa: BLE001
            if not self._ending.wait(_GRACE_SECS):
                lost = error if isinstance(error, LostProcessError) else _lost("Process 0", first_line(error))
                self._end(str(lost), lost.exit_code)

    def _failed(self) -> list[tuple[str, str]]:
        """(key in the store, report) for each process that has reported its failure."""
        return self._client.key_value_dir_get(f"{_ROOT}/failed/")

    def _agree_to_stop(self, number: int) -> None:
        # The lock is held until all have answered: no process begins a step meanwhile, so none is ahead of its answer.
        with self._lock:
            steps = self._gather("stop_at", str(self._step), _STOP_SECS)
            self._stop_signal, self._stop_at = number, max(map(int, steps)) + 1

    def _follow(self, key: str, failure: str, grace_secs: float) -> None:
        failed = key.rsplit("/", 1)[-1]
        message, code = json.loads(failure)
        if not self._ending.wait(grace_secs):
            # only now: process 0 ends once all have heard, the store with it, and JAX aborts those still running
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{_ROOT}/followed/{self.index}", "", allow_overwrite=True)
            self._ending.set()
            self._end(f"Process {failed} of {self.count} stopped, and so does this one. {message}", code)

    def _end(self, message: str, code: int) -> NoReturn:
        print(f"[process {self.index}] {message}", file=sys.stderr)
        self._exit(code)

    def _exit(self, code: int) -> NoReturn:
        """Ends without JAX's shutdown, which waits for processes that may be gone."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if self.index == 0:  # the store ends with this process: the others must read it first
            with contextlib.suppress(Exception):
                until = time.monotonic() + 5 * _GRACE_SECS
                while time.monotonic() < until and self._is_any_unaware():
                    time.sleep(_POLL_SECS / 5)
        os._exit(code)

    def _is_any_unaware(self) -> bool:
        """Whether some process has neither failed itself nor heard of the failure."""
        told = {key.rsplit("/", 1)[-1] for kind in ("failed", "followed") for key, _ in
                self._client.key_value_dir_get(f"{_ROOT}/{kind}/")}  # fmt: skip
        return len(told) < self.count


_group: ProcessGroup | None = None


def process_group() -> ProcessGroup | None:
    """The processes that this one works with; None when it works alone."""
    return _group


@contextlib.contextmanager
def connected(run: RunConfig) -> Iterator[None]:
    """Runs the block on the devices that the options ask for (see `startup.start_jax`), with any other processes.

    Enter it before anything touches a device; the processes stay connected until the program ends. An error in the
    block ends all processes; one caused by the loss of another process becomes LostProcessError. Raises UserError for
    invalid options, and when the others do not connect within `coordinator_timeout`.
    """
    startup.start_jax(use_tpu=run.use_tpu)
    if _group is None:
        _connect(run)
    group = process_group()
    if group is None:
        yield
        return
    try:
        _open_channels(run)
        yield
    except BaseException as error:
        try:
            ended = _translated(error, group)
        except BaseException as again:  # noqa: BLE001  # a signal
            ended = again
        if not group.is_ending:
            group.fail(describe(ended), _exit_code(ended))
        if ended is error:
            raise
        raise ended from error


def _open_channels(run: RunConfig) -> None:
    """Connects the devices of all processes once, at a time when all processes are known to be there.

    Between CPUs, the first to arrive waits for only 30 s. Later, a process that has a step in its cache would arrive
    long before one that has to compile it.
    """
    agree({"num_cores": run.num_cores}, "Start all with the same options.")
    mesh = meshes.make_mesh(run.num_cores)
    if mesh.devices.flat[0].platform == "cpu":
        meshes.add_up(mesh)


def agree(values: Mapping[str, Any], do: str) -> None:
    """Raises UserError in every process, naming values and processes, unless all processes give the same values."""
    group = process_group()
    if group is None:
        return
    answers = [json.loads(text) for text in group.exchange(json.dumps({k: str(v) for k, v in values.items()}))]
    names = sorted({name for answer in answers for name in answer})
    differing = {
        name: by_value
        for name in names
        if len(by_value := _by_value([answer.get(name, "nothing") for answer in answers])) > 1
    }
    if differing:
        group.stop_watching()
        got = "; ".join(
            f"{name} " + ", ".join(f"{value} in {_processes(where)}" for value, where in by_value.items())
            for name, by_value in differing.items()
        )
        raise UserError("Processes", got, f"the same in all {group.count} processes", do)


def exchange(text: str) -> list[str]:
    """The texts that the processes passed to the same call, in order; every process must call it."""
    group = process_group()
    return [text] if group is None else group.exchange(text)


def from_first(make: Callable[[], Any]) -> Any:
    """The result of `make`, which only process 0 calls, sent to all as JSON; every process must call this."""
    return json.loads(exchange(json.dumps(make()) if is_first() else "")[0])


def is_first() -> bool:
    """Whether this process works alone or is number 0: the one that logs, and writes what is written only once."""
    group = process_group()
    return group is None or group.index == 0


def wait_for_all() -> None:
    """Returns when every process has called it."""
    exchange("")


def _by_value(values: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, value in enumerate(values):
        found.setdefault(value, []).append(index)
    return found


def _processes(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"process {named}" if len(numbers) == 1 else f"processes {named}"


def is_loss(error: BaseException) -> bool:
    """Whether a JAX error means that another process ended."""
    if process_group() is None or not isinstance(error, ValueError | RuntimeError):
        return False
    if _status(error) == "UNAVAILABLE":
        return True
    # errors of collectives between CPUs have no status: JAX turns Gloo's message into a ValueError
    return any(origin in str(error) for origin in ("CoordinationServiceError", "Gloo"))


def _status(error: Exception) -> str | None:
    """The status of an error of XLA or of the store; None for others."""
    return getattr(error, "error_code_string", None)


def _translated(error: BaseException, group: ProcessGroup) -> BaseException:
    if not is_loss(error):
        return (isinstance(error, Exception) and as_user_error(error)) or error
    group.follow_failure()
    return _lost(f"One of {group.count} processes", f"a stop in the middle of the work ({first_line(error)})")


def _lost(what: str, got: str) -> LostProcessError:
    expected = "all processes to finish"
    return LostProcessError(what, got, expected, "Start them all again: a training continues from its last checkpoint.")


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1


def _connect(run: RunConfig) -> None:
    """Connects to the other processes, if there are any."""
    global _group
    meet(run)
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        index, count = jax.process_index(), jax.process_count()
        _group = ProcessGroup(index=index, count=count, timeout_secs=run.coordinator_timeout)
        _configure_log(index)
        log.info("%d processes with %d devices in all", count, jax.device_count())


def _configure_log(index: int) -> None:
    """Lets process 0 log everything, and the others only warnings, with their number."""
    if index:
        logger = logging.getLogger("resnet_tpu")
        logger.setLevel(logging.WARNING)
        for handler in logger.handlers:
            handler.setFormatter(logging.Formatter(f"[process {index}] %(message)s"))
