"""Traces of where the time goes, for TensorBoard's Profile tab."""

import logging
import tempfile
import time
from pathlib import Path

import jax

from resnet_tpu import storage
from resnet_tpu.errors import UserError, first_line

log = logging.getLogger(__name__)

FOLDER = "plugins/profile"
"""Where in a model_dir TensorBoard looks for traces, each in a folder named after its time."""


def can_trace() -> bool:
    """Whether traces can be captured: with libtpu loaded but no TPU, the attempt would kill the process."""
    has_tpu = jax.default_backend() == "tpu"  # asking loads libtpu if it is installed
    loaded = Path("/proc/self/maps")
    return has_tpu or not loaded.exists() or "libtpu.so" not in loaded.read_text()


class Profiler:
    """Captures `duration_ms` of trace under `model_dir/plugins/profile` every `every_n_steps` steps; 0 turns it off.

    A capture begins after a step, so it never includes the first step, from `step` on, which compiles. None begins
    after the last step of the run, `total`. A capture ends with the step in which its time is up, or earlier by `stop`,
    which leaving this context manager also calls.
    """

    def __init__(self, model_dir: str, *, every_n_steps: int, duration_ms: int, step: int, total: int) -> None:
        self._model_dir, self._every, self._duration_secs, self._total = (
            model_dir, every_n_steps, duration_ms / 1000, total
        )  # fmt: skip
        self._next_step = step + every_n_steps
        self._started_at: float | None = None
        # XLA writes only to file systems of this machine
        self._scratch = tempfile.TemporaryDirectory() if storage.is_remote(model_dir) else None

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._scratch:
            self._scratch.cleanup()

    def after_step(self, step: int, *, may_begin: bool = True) -> None:
        """Ends the capture when its time is over; starts one when it is due and none is running. step: updates made.

        may_begin: False if something other than a step comes next, which would end the capture at once; it then begins
        after the next step.
        """
        if self._started_at is not None and time.monotonic() >= self._started_at + self._duration_secs:
            self.stop()
        if may_begin and self._every and self._started_at is None and self._next_step <= step < self._total:
            self._next_step = step + self._every
            if can_trace():
                self._start(step)
            else:
                log.warning("No profile: libtpu is installed, but there is no TPU. Pass --use_tpu=False.")

    def stop(self) -> None:
        """Ends the running capture, if any; for example before an evaluation, which is not part of a step.

        Raises UserError when it cannot be written.
        """
        if self._started_at is None:
            return
        started_at, self._started_at = self._started_at, None
        try:
            jax.profiler.stop_trace()
        except jax.errors.JaxRuntimeError as error:  # a full disk gives the message for full device memory
            do = "Check the permissions and the free space, or set profile_every_n_steps=0."
            raise UserError("Profile", first_line(error), f"a file written below {self._model_dir}", do) from None
        seconds = time.monotonic() - started_at
        if self._scratch:
            publish(self._scratch.name, self._model_dir)
        log.info("Profile of %.1f s for TensorBoard's Profile tab", seconds)

    def _start(self, step: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Python frames would make the trace hundreds of times larger
        jax.profiler.start_trace(self._scratch.name if self._scratch else self._model_dir, profiler_options=options)
        self._started_at = time.monotonic()
        log.info("Profiling from step %d on", step)


def publish(folder: str, model_dir: str) -> str:
    """Moves the newest trace below the local `folder` into `model_dir`, which may be in a bucket; returns its path."""
    source = max((Path(folder) / FOLDER).iterdir())
    target = storage.join(model_dir, FOLDER, source.name)
    storage.make_dir(target)
    for file in source.iterdir():
        storage.write_bytes(storage.join(target, file.name), file.read_bytes())
        file.unlink()
    source.rmdir()
    return target
