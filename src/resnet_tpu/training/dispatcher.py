"""Dispatches the steps of a run, some ahead of the devices, and receives their metrics once they have ended.

The host looks only at the metrics of steps that have ended, so the devices do not wait for it. There are three
exceptions, in which no step is dispatched ahead: after the first step, with `input_pipeline=basic`, and with several
CPU devices. There is no loop on the device. Dispatching one step of a ResNet-50 takes the host 0.4 ms, or 1 to 4 ms for
8 devices, while the devices work on earlier steps of 50 ms and more; and a loop on the device would need all its
batches in device memory.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.training.input_wait import InputWait
from resnet_tpu.training.maths.step import TrainStep
from resnet_tpu.training.run_state import RunState
from resnet_tpu.training.steps_in_flight import StepsInFlight


class Dispatcher:
    """Advances the state of a run, step by step."""

    def __init__(
        self,
        run: RunState,
        train_step: TrainStep,
        batches: Iterator[DeviceBatch],
        input_wait: InputWait,
        on_end: Callable[[int, dict[str, Any]], None],
    ) -> None:
        """on_end: called with the number and the metrics of each step, in order, once it has ended on the devices."""
        self._run, self._train_step, self._batches, self._input_wait = run, train_step, batches, input_wait
        self._on_end = on_end
        self._flight = StepsInFlight()

    def dispatch(self, *, ahead: int) -> None:
        """Dispatches the next step, then waits until at most `ahead` dispatched ones are unfinished."""
        run = self._run
        with jax.profiler.StepTraceAnnotation("train", step_num=run.step):
            asked = time.perf_counter()
            with jax.profiler.TraceAnnotation("input_wait"):
                batch = next(self._batches)
            self._input_wait.add(asked, time.perf_counter())
            run.state, metrics = self._train_step(run.state, batch)
            self._input_wait.watch(metrics)
            self._flight.add(run.step, metrics)
            run.step += 1
            run.position += len(batch["label"])
            with jax.profiler.TraceAnnotation("device_wait"):
                self.land(ahead)

    def land(self, ahead: int = 0) -> None:
        """Waits for the dispatched steps until at most `ahead` are unfinished."""
        for step, metrics in self._flight.ended(ahead):
            self._on_end(step, metrics)
