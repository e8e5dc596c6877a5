"""Guards around calls of Orbax: its errors stay off stderr, and signals wait until a call has ended."""

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, cast

import absl.logging

from resnet_tpu.system import signals


def _leave_root_logger_alone() -> None:
    """Keeps absl, by which Orbax logs even as it is imported, from giving the root logger a handler.

    With one, the `logging.basicConfig` of the program that imports this package would do nothing.
    """
    own = ModuleType("logging")
    own.__dict__.update(vars(logging), basicConfig=lambda: None)
    cast("Any", absl.logging).logging = own


_leave_root_logger_alone()

from orbax.checkpoint import v1 as ocp  # noqa: E402

__all__ = ["calling", "ocp"]


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Keeps Orbax from logging a traceback for every array that it cannot read or write; it raises the error anyway.

    The first termination signal takes effect when the call has ended, whether it succeeded or not.
    """
    if not isinstance(sys.unraisablehook, _WithoutLateArrays):
        sys.unraisablehook = _WithoutLateArrays(sys.unraisablehook)
    with _SILENCE, _signals_held():
        yield


class _Silence:
    """A context manager that silences loggers while any thread is within it."""

    def __init__(self, *names: str) -> None:
        self._loggers = [logging.getLogger(name) for name in names]
        self._levels: list[int] = []
        self._count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._levels = [logger.level for logger in self._loggers]
                for logger in self._loggers:
                    logger.setLevel(logging.CRITICAL)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                for logger, level in zip(self._loggers, self._levels, strict=True):
                    logger.setLevel(level)


_SILENCE = _Silence("absl", "asyncio")


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Delays signals, as Orbax takes an exception from a handler, even KeyboardInterrupt, for an error in reading.

    The first signal waits until the block ends. With a second one, both take effect at once; if the handler of the
    first raises, the second takes effect at the end of the block.
    """
    held: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        for number in signals.ENDING:
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            release()

    def release() -> None:
        while handlers:
            signal.signal(*handlers.popitem())
        while held:
            number, frame = held.pop(0)
            if callable(handler := signal.getsignal(number)):  # looked up now: the last handler may have set another
                handler(number, frame)

    for number in handlers:
        signal.signal(number, hold)
    try:
        yield
    finally:
        release()


class _WithoutLateArrays:
    """A `sys.unraisablehook` that ignores arrays which finish after their write or read has failed.

    When an array fails, Orbax closes its event loop and raises. TensorStore's threads find the loop closed when they
    finish the other arrays, at any time until the program ends, and each would print a traceback.
    """

    def __init__(self, otherwise: "Callable[[sys.UnraisableHookArgs], object]") -> None:
        self._otherwise = otherwise

    def __call__(self, found: "sys.UnraisableHookArgs") -> None:
        is_late = isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"
        if found.object is not None or found.err_msg or not is_late:  # errors from C++ name nothing
            self._otherwise(found)
