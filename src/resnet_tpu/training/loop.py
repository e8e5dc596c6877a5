"""Training from start to end: resume the run, train, evaluate, save.

The host dispatches steps and stays a few steps ahead of the devices. It looks only at metrics of steps that have ended,
so the devices never wait for it. Only evaluations and checkpoints, which belong to the weights of one step, wait for
that step. There is no loop on the device: dispatching one step of a ResNet-50 takes the host 0.4 ms, or 1 to 4 ms for
8 devices, while the devices work on earlier steps of 50 ms and more; and a loop on the device would need all its
batches in device memory.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu.checkpoints import folders
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.sources.source import Source
from resnet_tpu.errors import NonFiniteError
from resnet_tpu.models.network import Network
from resnet_tpu.models.option_checks import options_without_effect
from resnet_tpu.options.config import Config, require_config
from resnet_tpu.options.run_file import write_description
from resnet_tpu.parallel import distributed, hosts
from resnet_tpu.parallel.distributed import DeviceBatch
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.reports.metrics import MetricsWriter, evaluation_at, own_evaluations, read_metrics
from resnet_tpu.reports.progress import TrainingProgress
from resnet_tpu.reports.run_curves import draw_curves
from resnet_tpu.training.agreement import agree_on
from resnet_tpu.training.inference.evaluate import evaluate, log_metrics
from resnet_tpu.training.input_wait import InputWait
from resnet_tpu.training.interrupt import Interruption
from resnet_tpu.training.kernel_choice.resolve import resolve_kernels
from resnet_tpu.training.kernel_choice.setting import stored_form
from resnet_tpu.training.loop_reports import LoopReports
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.schedule import schedule_warnings
from resnet_tpu.training.maths.step import EvalStep, TrainStep, make_eval_step, weight_check_on
from resnet_tpu.training.photos_seen import inherit_photos, remember_photos, warn_of_training_photos
from resnet_tpu.training.profiler import Profiler
from resnet_tpu.training.run import (
    check_start,
    describe_end,
    describe_run,
    keep_earlier_steps,
    note_on_epochs,
    open_run,
    resolve_order,
)
from resnet_tpu.training.start import Start, find_start, resolve_initial_weights
from resnet_tpu.training.steps_in_flight import StepsInFlight

log = logging.getLogger(__name__)

BEST_METRIC = "top_1_accuracy"
"""The checkpoint with the highest value of this metric is the best one, which is always kept."""


OnStep = Callable[[int, dict[str, float]], object]
"""(number of updates before a step, its metrics) -> anything; the result is ignored."""


@dataclass(frozen=True)
class Summary:
    """How a run ended: the optimizer steps done in all, and the last evaluation if there was one."""

    step: int
    evaluation: dict[str, float] | None


def train(
    config: Config,
    *,
    on_step: OnStep | None = None,
    train_step: TrainStep | None = None,
) -> Summary:
    """Trains to `train_steps` and, in mode train_and_eval, evaluates every `steps_per_eval` steps and at the end.

    Resumes from the newest checkpoint in `model_dir`. Ctrl-C, SIGTERM and SIGHUP save one before the program ends.
    Raises UserError for options, data or checkpoints that do not fit, before anything is computed; NonFiniteError when
    a loss or a weight is not finite.
    on_step: called with the number of updates before a step and its `loss`, `top_1_accuracy` and `learning_rate`, for
    every step, in order, once it has ended on the devices; an exception that it raises ends the run.
    train_step: replaces the network's step, to train with another loss, or to measure everything around it.
    """
    require_config(config)
    with hosts.connected(config.run):
        check_start(config)
        config, source, validation, mesh = open_run(config)
        config = keep_earlier_steps(resolve_order(config, source))
        agree_on(config, trains=True, train=source, validation=validation)
        with CheckpointStore(
            folders.folder_of(config.run.model_dir),
            keep=config.train.keep_checkpoint_max,
            always=lengths_of(config).kept,
        ) as checkpoints:
            config, weights = resolve_initial_weights(config, checkpoints)
            if not checkpoints.steps():
                inherit_photos(config.run.model_dir, weights.source if weights else "")
            network = network_on(mesh, config)
            trainer = Trainer(
                config,
                network,
                mesh,
                source=source,
                validation=validation,
                checkpoints=checkpoints,
                start=find_start(config, network, checkpoints, source.class_names, weights, mesh),
                on_step=on_step,
                train_step=train_step,
            )
            if validation is not None:
                warn_of_training_photos(config.run.model_dir, validation, "validation")
            if trainer.step < trainer.lengths.total:
                remember_photos(config.run.model_dir, source)
            summary = trainer.run()
        if hosts.is_first():
            draw_curves(config.run.model_dir)
    return summary


def _read_scores(model_dir: str, *, evaluates: bool) -> dict[int, float]:
    """The accuracy of each evaluation of a run, by step, as process 0 reads them.

    evaluates: whether the run evaluates by itself; then evaluations of other images do not count.
    """
    rows = hosts.from_first(lambda: own_evaluations(model_dir) if evaluates else read_metrics(model_dir, "eval"))
    return {row["step"]: row[BEST_METRIC] for row in rows}


class Trainer:
    """One training run on its devices."""

    def __init__(
        self,
        config: Config,
        network: Network,
        mesh: Mesh,
        *,
        source: Source,
        validation: Source | None,
        checkpoints: CheckpointStore,
        start: Start,
        on_step: OnStep | None,
        train_step: TrainStep | None,
    ) -> None:
        """config: with its counts resolved. on_step, train_step: see `train`."""
        self.config, self.mesh, self.source, self.validation = config, mesh, source, validation
        self.checkpoints = checkpoints
        self.lengths = lengths_of(config)
        self.eval_step: EvalStep = make_eval_step(network, config.optimizer, device=mesh.devices.flat[0])
        self.evaluation: dict[str, float] | None = None
        self._is_cold = True
        self._is_basic = config.data.input_pipeline == "basic"  # nothing overlaps
        self._input_wait = InputWait()
        self._flight = StepsInFlight()
        self._on_step = on_step
        self.state, self.step = start.state, start.step
        self.position, self.class_names = start.position, start.class_names
        self._kernels = start.kernels
        if train_step is None:
            setting = resolve_kernels(config, mesh, start.kernels)
            self._kernels = stored_form(setting, mesh)
            train_step = setting.train_step(network, config, mesh)
        self.train_step: TrainStep = train_step

    def run(self) -> Summary:
        """Trains from the current step to the last."""
        model_dir = self.config.run.model_dir
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(Interruption())
            if self.step == 0:
                self._write_description()
            writer = None
            if hosts.is_first():
                writer = stack.enter_context(MetricsWriter(model_dir, resume_step=self.step))
            self.checkpoints.scores.update(_read_scores(model_dir, evaluates=self.validation is not None))
            if self._is_eval_due():  # the run was stopped between saving and evaluating
                self._evaluate(writer)
            if hosts.is_first() and (note := note_on_epochs(self.config, self.step, self.lengths.total, self.position)):
                log.warning("%s", note)
            if self.step < self.lengths.total:
                self._train(stack, stop, writer)
            else:
                log.info("%s", describe_end(model_dir, self.step, self.lengths.total))
                if self.validation is not None:
                    self.evaluation = hosts.from_first(lambda: evaluation_at(model_dir, self.step)) or None
            stop.end_if_signalled()  # a signal may have come in an evaluation
        return Summary(self.step, self.evaluation)

    def _train(self, stack: contextlib.ExitStack, stop: Interruption, writer: MetricsWriter | None) -> None:
        """Trains from the current step to the last, or until a stop is due."""
        total, model_dir, train = self.lengths.total, self.config.run.model_dir, self.config.train
        self._check_weights()
        if self._is_save_due():  # step 0: the only checkpoint that can be missing here
            self.checkpoints.save(self.step, self.state.to_arrays(), self._meta())
        self._log_start()
        progress = stack.enter_context(TrainingProgress(self.step, total))
        profiler = stack.enter_context(
            Profiler(
                model_dir,
                every_n_steps=train.profile_every_n_steps,
                duration_ms=train.tpu_profile_duration,
                step=self.step,
                total=total,
            )
        )
        stack.enter_context(self._input_wait)
        loader = stack.enter_context(
            train_batches(
                self.source,
                self.config.data,
                batch_size=train.train_batch_size,
                seed=train.seed,
                start_position=self.position,
                host_index=jax.process_index(),
                num_hosts=jax.process_count(),
            )
        )
        batches = distributed.prefetch(loader, self.mesh, ahead=0 if self._is_basic else 2)
        reports = LoopReports(
            self.config,
            total,
            start=(self.step, self.position),
            writer=writer,
            loader=loader,
            progress=progress,
            input_wait=self._input_wait,
        )
        is_stopping = stop.is_due(self.step)
        while self.step < total and not is_stopping:
            self._run_loop(self._next_boundary(), batches, profiler, stop, reports)
            is_stopping, eval_is_due = stop.is_due(self.step), self._is_eval_due()
            if not (is_stopping or eval_is_due or self._is_save_due()):
                continue
            self._land(0, reports)
            if eval_is_due or self.step == total:
                profiler.stop()
            self._check_weights()
            if self.validation is None:  # others may evaluate: `eval --watch`
                self.checkpoints.scores.update(_read_scores(model_dir, evaluates=False))
            self.checkpoints.save(self.step, self.state.to_arrays(), self._meta())
            if eval_is_due and not is_stopping:
                self._evaluate(writer)
        self.checkpoints.wait()
        if is_stopping and self.step < total and self.step in self.checkpoints.steps():
            log.info("Stopped at step %d, which is saved. Start the same training again to go on.", self.step)

    def _log_start(self) -> None:
        """Logs a line on the run, and warns of options that have no effect or not the one that their names suggest."""
        log.info("%s", describe_run(self.config, self.mesh, self.step, self.lengths.total, self.position))
        for line in (*options_without_effect(self.config), *schedule_warnings(self.config)):
            log.warning("%s", line)
        if (counted := self.config.data.num_train_images) != len(self.source):
            log.warning(
                "num_train_images is %d, but there are %d training images: an epoch has %d. To count them again, give "
                "data_dir without num_train_images.",
                counted, len(self.source), counted,
            )  # fmt: skip

    def _write_description(self) -> None:
        """Writes `config.json` and `labels.txt`. Do not call it if nothing is trained: it would overwrite the run's."""
        if hosts.is_first():
            write_description(self.config.run.model_dir, self.config, self._meta()["class_names"])

    def _is_period_end(self, period: int) -> bool:
        """Whether a period of `period` steps, or the run, ends at the current step."""
        return self.step > 0 and (self.step == self.lengths.total or self.step % period == 0)

    def _is_eval_due(self) -> bool:
        is_new = self.step not in self.checkpoints.scores
        return self.validation is not None and is_new and self._is_period_end(self.lengths.per_eval)

    def _is_save_due(self) -> bool:
        return self.step in self.lengths.kept or self._is_period_end(self.lengths.per_save)

    def _next_boundary(self) -> int:
        """The next step at which the host acts: the end of a loop or of the run, an evaluation, or a checkpoint."""
        lengths = self.lengths
        periods = (lengths.per_loop, lengths.per_eval, lengths.per_save)
        kept = (step for step in lengths.kept if step > self.step)
        return min(lengths.total, *kept, *(self.step - self.step % period + period for period in periods))

    def _run_loop(
        self,
        until: int,
        batches: Iterator[DeviceBatch],
        profiler: Profiler,
        stop: Interruption,
        reports: LoopReports,
    ) -> None:
        """Dispatches the steps up to `until`, or until a stop is due; the last ones may still be running on return.

        Reports the loop before, and this one if it has ended. Raises NonFiniteError.
        """
        first = self.step
        if not self._flight:
            reports.start_clock(self.step)
        while self.step < until and not stop.is_due(self.step):
            with jax.profiler.StepTraceAnnotation("train", step_num=self.step):
                asked = time.perf_counter()
                with jax.profiler.TraceAnnotation("input_wait"):
                    batch = next(batches)
                self._input_wait.add(asked, time.perf_counter())
                self.state, metrics = self.train_step(self.state, batch)
                self._input_wait.watch(metrics)
                self._flight.add(self.step, metrics)
                self.step += 1
                self.position += self.config.train.train_batch_size
                with jax.profiler.TraceAnnotation("device_wait"):
                    self._land(0 if self._is_cold or self._is_basic else distributed.steps_ahead(self.mesh), reports)
            if self._is_cold:  # the first step includes compilation: it says nothing about the speed
                self._is_cold = False
                log.info("First step after %.1f s", reports.start_clock(self.step))
                if first > 0:
                    self._write_description()
            profiler.after_step(self.step, may_begin=not self._is_eval_due())
        if self.step > first:
            reports.end_loop(self.step)
            reports.report(self.step - len(self._flight))

    def _land(self, keep: int, reports: LoopReports) -> None:
        """Waits for all steps except the newest `keep`, and reports loops that have ended. Raises NonFiniteError."""
        for step, row in self._flight.land(keep):
            self._check_finite("Loss", step, row["loss"])
            reports.add(step, row)
            if self._on_step:
                self._on_step(step, {name: float(value) for name, value in row.items()})
        reports.report(self.step - len(self._flight))

    def _check_weights(self) -> None:
        """Raises NonFiniteError if a weight or running statistic is not finite: the last loss need not show it."""
        squares = weight_check_on(self.mesh.devices.flat[0])(self.state.params, self.state.batch_stats)
        self._check_finite("Sum of the squared weights", self.step, float(squares))

    def _check_finite(self, what: str, step: int, value: float) -> None:
        check_finite(f"{what} at step {step}", value, lambda: self._advise(step))

    def _advise(self, step: int) -> str:
        """What to do about values of `step` that are not finite."""
        kept = self.checkpoints.steps()
        good = [one for one in kept if one < step]
        last = f"The last good checkpoint is step {good[-1]}." if good else "There is no good checkpoint yet."
        if len(good) < len(kept):
            last += " To go on from it, delete the later ones." if good else " Delete the ones that exist."
        return f"{last} Lower base_learning_rate, warm up for longer, or use precision=float32."

    def _evaluate(self, writer: MetricsWriter | None) -> None:
        start = time.perf_counter()
        assert self.validation is not None
        try:
            self.evaluation = evaluate(
                self.eval_step, *self.state.eval_arrays(), self.validation, self.config, self.mesh, step=self.step
            )
        except NonFiniteError as error:  # the weights are finite: their checkpoint was saved
            raise error.but(do=self._advise(self.step)) from None
        self.checkpoints.scores[self.step] = self.evaluation[BEST_METRIC]
        if writer:
            writer.write("eval", {self.step: self.evaluation})
        log_metrics(self.step, self.evaluation, time.perf_counter() - start)

    def _meta(self) -> dict[str, Any]:
        return make_meta(self.config, self.class_names, self.position) | {"kernels": self._kernels}
