"""Traces of where the time goes, for TensorBoard's Profile tab."""

import logging
import time

import jax

log = logging.getLogger(__name__)


class Profiler:
    """Captures `duration_ms` of trace under `model_dir/plugins/profile` every `every_n_steps` steps; 0 turns it off.

    A capture starts between two loops and goes on while training does. A context manager: leaving it ends the capture.
    """

    def __init__(self, model_dir: str, *, every_n_steps: int, duration_ms: int) -> None:
        self._model_dir, self._every, self._duration_secs = model_dir, every_n_steps, duration_ms / 1000
        self._next_step: int | None = None
        self._ends_at: float | None = None

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def after_loop(self, step: int) -> None:
        """Starts a capture when one is due and none runs. The first loop, which compiles, never starts one."""
        if not self._every or self._ends_at is not None or (self._next_step is not None and step < self._next_step):
            return
        first, self._next_step = self._next_step is None, step + self._every
        if first:
            return
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Python frames would make the trace hundreds of times larger
        jax.profiler.start_trace(self._model_dir, profiler_options=options)
        self._ends_at = time.monotonic() + self._duration_secs
        log.info(
            "Profile of %.1f s from step %d on, under %s/plugins/profile", self._duration_secs, step, self._model_dir
        )

    def after_step(self) -> None:
        """Ends the capture when its time is over."""
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self._stop()

    def _stop(self) -> None:
        if self._ends_at is not None:
            jax.profiler.stop_trace()
            self._ends_at = None
