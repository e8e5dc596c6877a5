"""Measures how long devices were idle because their next batch was not ready."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax


class InputWait:
    """Adds up, over the steps of a loop, the time that the devices of this process waited for input.

    The host runs ahead of the devices. While it waits for a batch, they may still be busy with earlier steps, and the
    wait costs nothing. Only the part of a wait after the last dispatched step has ended counts; a thread records when
    that step ends. So a loop whose input is 1 % slower than its step shows 1 %, although the host waits nearly all of
    the time. The transfer of a batch to the device counts as part of the step.
    A context manager: leaving it ends the thread.
    """

    def __init__(self) -> None:
        self._watcher = ThreadPoolExecutor(1, thread_name_prefix="step_end")
        self._waits: list[tuple[float, float]] = []
        self._ends: list[Future[float]] = []  # when the same steps ended
        self._end_before: float | None = None  # when the step before these ended

    def add(self, requested: float, received: float) -> None:
        """Records that the host waited for a batch from `requested` to `received`, by `time.perf_counter`."""
        self._waits.append((requested, received))

    def watch(self, results: Any) -> None:
        """Records when the step on that batch ends; its `results`, a pytree of arrays, have just been dispatched."""
        self._ends.append(self._watcher.submit(_end_of, results))

    def take(self, count: int | None = None) -> tuple[float, float | None]:
        """(seconds waited, over the oldest `count` steps not yet taken, or all; when the last of them ended).

        Blocks until they end. Waiting counts only from the end of the step before, so no time is counted twice.
        """
        waited, count = 0.0, len(self._waits) if count is None else count
        for (requested, received), end in zip(self._waits[:count], self._ends[:count], strict=True):
            waited += max(0.0, received - (requested if self._end_before is None else max(requested, self._end_before)))
            self._end_before = end.result()
        del self._waits[:count], self._ends[:count]
        return waited, self._end_before

    def __enter__(self) -> "InputWait":
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.shutdown()


def _end_of(results: Any) -> float:
    jax.block_until_ready(results)
    return time.perf_counter()
