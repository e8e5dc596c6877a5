"""Worker processes, each with its own pipe, which end when this process ends, however it ends.

Not a `ProcessPoolExecutor`, which hangs if a worker is killed while others are being started. Here each worker shares
only a pipe with this process, and a pipe that closes shows that its worker died.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any

from resnet_tpu.system import signals

CONTEXT = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang


class Crew:
    """Processes at the other ends of `connections`.

    Each runs `work(connection, *arguments)` until that returns or reaches the end of the connection. `work` must be
    importable; `arguments` are copied. A process that dies closes its connection: using it raises EOFError or OSError.
    """

    def __init__(self, count: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.connections: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        atexit.register(self.close)  # runs before Python would wait for them
        try:
            with _signals_held_back(), _program_left_out():
                for _ in range(count):
                    ours, theirs = CONTEXT.Pipe()
                    self.connections.append(ours)
                    process = CONTEXT.Process(target=_run, args=(work, theirs, *arguments), daemon=True)
                    process.start()
                    self._processes.append(process)
                    theirs.close()  # only the worker holds it: when that dies, our end closes
        except BaseException:
            self.close()
            raise

    def close(self, patience_secs: float = 0) -> None:
        """Ends the processes, by force after `patience_secs`. Harmless when repeated."""
        if patience_secs:
            for connection in self.connections:
                connection.close()
            for process in self._processes:
                process.join(patience_secs)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        atexit.unregister(self.close)


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Keeps signals to the whole process group from processes started in the block, even while they load.

    The parent gets them, and may then still need its workers: training first saves a checkpoint.
    """
    resource_tracker.ensure_running()  # else the first process would start it, and so unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _program_left_out() -> Iterator[None]:
    """Keeps Python from running the program's own file, which may do anything, in processes started in the block."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def _run(work: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    parent = multiprocessing.parent_process()
    if parent:  # when it is killed, nothing else would end this process
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        work(connection, *arguments)


def outcome_of(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns; or the error that it raised, with the traceback as a note, for the parent to raise."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent has to report it
        error.add_note(traceback.format_exc())
        return error
