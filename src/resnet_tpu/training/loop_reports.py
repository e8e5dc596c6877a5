"""Logs and records each loop of steps, once the loop has ended on the devices."""

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from resnet_tpu.data.loader.batches import Batches
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.reports.metrics import ROW_FIELDS, MetricsWriter
from resnet_tpu.reports.progress import TrainingProgress
from resnet_tpu.training.input_wait import InputWait
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.run_state import RunState

log = logging.getLogger(__name__)

_LOGGED = ("loss", "top_1_accuracy")
_RECORDED = (*ROW_FIELDS, "current_epoch", "images_per_sec", "input_wait_share")


def check_names(metrics: Mapping[str, Any]) -> None:
    """Raises UserError unless a step's metrics include those that are logged, and none that is recorded beside them."""
    if missing := [name for name in _LOGGED if name not in metrics]:
        what, expected = "Metrics of train_step", " and ".join(_LOGGED)
        raise UserError(what, f"no {' and no '.join(missing)}", f"{expected} among them", "Return both.")
    if taken := [name for name in _RECORDED if name in metrics]:
        raise UserError("Metric of train_step", taken[0], f"none called {', '.join(_RECORDED)}", "Rename it.")


class LoopReports:
    """Collects the metrics of finished steps, and reports each complete loop; the host may be loops ahead."""

    def __init__(
        self,
        config: Config,
        run: RunState,
        *,
        writer: MetricsWriter | None,
        loader: Batches,
        progress: TrainingProgress,
        input_wait: InputWait,
    ) -> None:
        """run: where the steps begin. writer: None for a process that does not write."""
        self._config, self._total, self._writer, self._loader = config, lengths_of(config).total, writer, loader
        self._progress, self._input_wait = progress, input_wait
        self._start, self._position = run.step, run.position
        self._ended = run.step  # all steps before this one have ended
        self._rows: dict[int, dict[str, Any]] = {}
        self._loop_ends: deque[int] = deque()
        self._timed_from = (0.0, 0)  # time and step up to which the speed has been reported

    def start_clock(self, step: int) -> float:
        """Restarts the clock: the devices begin with `step` now. Returns the seconds since the last call."""
        before, now = self._timed_from[0], time.perf_counter()
        self._timed_from = now, step
        self._input_wait.take()
        return now - before

    def end_loop(self, step: int) -> None:
        """Records that a loop ends before `step`, which may not have ended yet."""
        self._loop_ends.append(step)
        self._report()

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Records the metrics of a step that has ended, as all before it have."""
        self._rows[step] = metrics
        self._ended = step + 1
        if self._ended % self._config.train.log_step_count_steps == 0:
            self._progress.update(self._ended)
        self._report()

    def _report(self) -> None:
        """Logs and records each loop whose steps have all ended."""
        while self._loop_ends and self._loop_ends[0] <= self._ended:
            end = self._loop_ends.popleft()
            rows = {step: self._rows.pop(step) for step in sorted(self._rows) if step < end}
            speed = self._take_speed(end)
            self._log(end, rows, speed)
            if self._writer:
                self._writer.write("train", self._to_record(rows, speed))
            if self._loader.skipped:
                log.warning("Damaged images left out so far: %d", self._loader.skipped.total())

    def _take_speed(self, end: int) -> dict[str, float]:
        """The speed since the last report; nothing if the only step since then included compilation."""
        start, timed_from = self._timed_from
        num_steps = end - timed_from
        waited, ended = self._input_wait.take(num_steps)
        if not num_steps or ended is None:
            return {}
        self._timed_from, seconds = (ended, end), ended - start
        num_images = num_steps * self._config.train.train_batch_size
        return {"images_per_sec": num_images / seconds, "input_wait_share": waited / seconds}

    def _epoch(self, step: int) -> float:
        images = self._position + (step - self._start) * self._config.train.train_batch_size
        return images / self._config.data.images_per_epoch

    def _log(self, end: int, rows: dict[int, dict[str, Any]], speed: dict[str, float]) -> None:
        """Logs a line on the loop before step `end`, and shows it next to the progress bar."""
        loss, top_1 = (
            sum(float(row[name]) for row in rows.values()) / len(rows) for name in ("loss", "top_1_accuracy")
        )
        line = f"loss {loss:.4f}, top-1 {100 * top_1:.1f} %"
        if speed:
            line += f", {speed['images_per_sec']:.1f} images/s, input wait {100 * speed['input_wait_share']:.1f} %"
        self._progress.update(end, line)
        log.info("Step %d of %d, epoch %.2f: %s", end, self._total, self._epoch(end), line)

    def _to_record(self, rows: dict[int, dict[str, Any]], speed: dict[str, float]) -> dict[int, dict[str, Any]]:
        """The rows with their epochs, the last with the speed; with `skip_host_call` only the last."""
        last = max(rows)
        kept = [last] if self._config.train.skip_host_call else rows
        recorded = {step: {**rows[step], "current_epoch": self._epoch(step)} for step in kept}
        recorded[last] |= speed
        return recorded
