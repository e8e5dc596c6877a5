"""How several processes that train together exchange text, stop and end: JAX has no public functions for it.

They exchange arrays through `jax.experimental.multihost_utils`. JAX's heartbeats notice a killed process; a collective
notices it at once. The rest goes through a `KeyValueStore`:

* Text is exchanged within a time limit, and errors name late processes. `multihost_utils` sends arrays by collectives,
  which wait without limit and are compiled for each length; `assert_equal` does not say which process has which value.
* A process that fails tells the others, which stop too, with its message and its exit code. JAX aborts them instead.
* A signal to one process stops all of them at the same step. `reached_preemption_sync_point` does so for SIGTERM only,
  which it takes away from Python, even before and after training; it does not handle Ctrl-C and SIGHUP.
"""

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from resnet_tpu.errors import LostProcessError, first_line
from resnet_tpu.parallel.key_values import KeyValueStore

_POLL_SECS = 0.5
_GRACE_SECS = 2.0  # for the main thread to end with its own message
_STOP_SECS = 60.0  # for the others to report their step


class ProcessGroup:
    """The processes that work together, seen from one of them."""

    def __init__(self, *, index: int, count: int, timeout_secs: float) -> None:
        self.index, self.count = index, count
        self._store = KeyValueStore(index)
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
        # all are in this call, so none still reads the values of the last one
        self._store.delete(f"exchange/{self._calls - 1}")
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
            self._store.set("failed", json.dumps([message, code]))
        atexit.register(self._exit, code)
        # a thread that waits for a device, which waits for another process, would keep this one from ending
        hurry = threading.Timer(3 * _GRACE_SECS, self._exit, [code])
        hurry.daemon = True
        hurry.start()

    def follow_failure(self) -> None:
        """Ends this process in the same way as another that has failed, if that one says why within `_GRACE_SECS`."""
        until = time.monotonic() + _GRACE_SECS
        with contextlib.suppress(Exception):  # the store itself may be lost
            while time.monotonic() < until and not self.is_ending:
                self._follow_any(grace_secs=0)
                time.sleep(_POLL_SECS / 5)

    def stop_watching(self) -> None:
        """Call it when all processes will end alike: this one then neither tells the others nor follows them."""
        self._ending.set()

    def _gather(self, topic: str, text: str, timeout_secs: float) -> list[str]:
        """The texts of all processes on a topic, in order. Raises LostProcessError, naming the first that is late."""
        self._store.set(topic, text)
        until = time.monotonic() + timeout_secs
        texts = []
        for index in range(self.count):
            try:
                texts.append(self._store.wait_for(topic, index, until - time.monotonic()))
            except Exception as error:
                is_late = status_of(error) == "DEADLINE_EXCEEDED"
                got = f"nothing from it within {timeout_secs:.0f} s" if is_late else first_line(error)
                raise lost_process(f"Process {index} of {self.count}", got) from error
        return texts

    def _watch(self) -> None:
        """Ends this process when another has failed, and takes part in agreeing on the step to stop at."""
        try:
            while not self._ending.wait(_POLL_SECS):
                self._follow_any(grace_secs=_GRACE_SECS)
                if self._stop_at is None:
                    self._look_for_signal()
        # The store ended with process 0. JAX may end the program, or the main thread may have noticed it.
        except Exception as error:  # noqa: BLE001
            if not self._ending.wait(_GRACE_SECS):
                lost = error if isinstance(error, LostProcessError) else lost_process("Process 0", first_line(error))
                self._end(str(lost), lost.exit_code)

    def _look_for_signal(self) -> None:
        """Once any process has received a signal, agrees with the others on the step to stop at."""
        if (number := self._signal()) is not None:
            self._store.set("stop", str(number))
        if asked := self._store.values("stop"):
            # The lock is held until all have answered: none begins a step meanwhile, so none is ahead of its answer.
            with self._lock:
                steps = self._gather("stop_at", str(self._step), _STOP_SECS)
                self._stop_signal, self._stop_at = int(next(iter(asked.values()))), max(map(int, steps)) + 1

    def _follow_any(self, grace_secs: float) -> None:
        """Ends this process if another has reported its failure, unless it ends by itself within `grace_secs`."""
        failures = self._store.values("failed")
        if failures and not self._ending.wait(grace_secs):
            # only now: once all have heard, process 0 and the store end, and JAX aborts processes that still run
            with contextlib.suppress(Exception):
                self._store.set("followed", "")
            self._ending.set()
            failed, report = next(iter(failures.items()))
            message, code = json.loads(report)
            self._end(f"Process {failed} of {self.count} stopped, so this one stops too. {message}", code)

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
        return len({*self._store.values("failed"), *self._store.values("followed")}) < self.count


def status_of(error: BaseException) -> str | None:
    """The status of an error of XLA or of the store; None for others."""
    return getattr(error, "error_code_string", None)


def lost_process(what: str, got: str) -> LostProcessError:
    """The error for the loss of another process."""
    expected = "all processes to finish"
    return LostProcessError(what, got, expected, "Start them all again: training continues from its last checkpoint.")
