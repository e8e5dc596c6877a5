"""Training from start to end: resume the run, train, evaluate, save.

Evaluations and checkpoints, which belong to the weights of one step, wait for that step; see `dispatcher` for the rest.
"""

import functools
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu.checkpoints import folders
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.data.loader.batches import Batches, train_batches
from resnet_tpu.data.sources.source import Source
from resnet_tpu.errors import NonFiniteError
from resnet_tpu.options.config import Config, require_config
from resnet_tpu.options.run_file import write_description
from resnet_tpu.parallel import hosts, placement
from resnet_tpu.reports.metrics import MetricsWriter, evaluation_at, own_evaluations, read_metrics
from resnet_tpu.reports.progress import TrainingProgress
from resnet_tpu.reports.run_curves import draw_curves
from resnet_tpu.training.agreement import agree_on
from resnet_tpu.training.description import describe_end, describe_run, note_on_epochs, start_warnings
from resnet_tpu.training.dispatcher import Dispatcher
from resnet_tpu.training.divergence import advice, check_loss, check_weights
from resnet_tpu.training.inference.evaluate import evaluate, log_metrics
from resnet_tpu.training.input_wait import InputWait
from resnet_tpu.training.interrupt import Interruption
from resnet_tpu.training.kernel_choice.resolve import resolve_kernels
from resnet_tpu.training.kernel_choice.setting import stored_form
from resnet_tpu.training.loop_reports import LoopReports, check_names
from resnet_tpu.training.maths.lengths import Lengths, lengths_of
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.step import EvalStep, TrainStep, make_eval_step
from resnet_tpu.training.photos_seen import inherit_photos, remember_photos, warn_of_training_photos
from resnet_tpu.training.profiler import Profiler
from resnet_tpu.training.run import check_start, keep_earlier_steps, open_run, resolve_order
from resnet_tpu.training.run_state import RunState
from resnet_tpu.training.start import find_start, resolve_initial_weights
from resnet_tpu.training.steps_in_flight import steps_ahead

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
    train_step: replaces the network's step, to train with another loss, or to measure everything around it. Its metrics
    must include `loss` and `top_1_accuracy`; others are recorded too. A name that the run itself records, such as
    `current_epoch`, is refused.
    """
    require_config(config)
    with hosts.connected(config.run):
        check_start(config)
        config, source, validation, mesh = open_run(config)
        config = keep_earlier_steps(resolve_order(config, source))
        agree_on(config, {"train": source, "validation": validation}, trains=True)
        with CheckpointStore(
            folders.folder_of(config.run.model_dir),
            keep=config.train.keep_checkpoint_max,
            always=lengths_of(config).kept,
        ) as checkpoints:
            config, weights = resolve_initial_weights(config, checkpoints)
            if not checkpoints.steps():
                inherit_photos(config.run.model_dir, weights.source if weights else "")
            network = network_on(config, mesh)
            run = find_start(config, network, checkpoints, source.class_names, weights, mesh)
            if train_step is None:
                setting = resolve_kernels(config, mesh, run.kernels)
                run.kernels = stored_form(setting, mesh)
                train_step = setting.train_step(network, config, mesh)
            trainer = Trainer(
                config=config,
                mesh=mesh,
                source=source,
                validation=validation,
                checkpoints=checkpoints,
                run_state=run,
                train_step=train_step,
                eval_step=make_eval_step(network, config.optimizer, device=mesh.devices.flat[0]),
                on_step=on_step,
            )
            if validation is not None:
                warn_of_training_photos(config.run.model_dir, validation, "validation")
            if run.step < trainer.lengths.total:
                remember_photos(config.run.model_dir, source)
            summary = trainer.run()
        if hosts.is_first():
            draw_curves(config.run.model_dir)
    return summary


def _read_scores(model_dir: str, *, evaluates: bool) -> dict[int, float]:
    """The accuracy of each evaluation of a run, by step, as process 0 reads them.

    evaluates: whether the run evaluates by itself; if so, evaluations on other images do not count.
    """
    rows = hosts.from_first(lambda: own_evaluations(model_dir) if evaluates else read_metrics(model_dir, "eval"))
    return {row["step"]: row[BEST_METRIC] for row in rows}


@dataclass(kw_only=True)
class Trainer:
    """One training run on its devices, from the state that it has reached to its last step."""

    config: Config
    """With its counts resolved."""
    mesh: Mesh
    source: Source
    validation: Source | None
    checkpoints: CheckpointStore
    run_state: RunState
    train_step: TrainStep
    eval_step: EvalStep
    on_step: OnStep | None
    evaluation: dict[str, float] | None = None
    """The last one, if there was one."""

    def run(self) -> Summary:
        """Trains from the current step to the last."""
        model_dir, run, total = self.config.run.model_dir, self.run_state, self.lengths.total
        with Interruption() as stop:
            if run.step == 0:
                self._write_description()
            with MetricsWriter(model_dir, resume_step=run.step) if hosts.is_first() else nullcontext() as writer:
                self.checkpoints.scores.update(_read_scores(model_dir, evaluates=self.validation is not None))
                if self._is_eval_due():  # the run was stopped between saving and evaluating
                    self._evaluate(writer)
                if hosts.is_first() and (note := note_on_epochs(self.config, run.step, total, run.position)):
                    log.warning("%s", note)
                if run.step < total:
                    self._train(stop, writer)
                else:
                    log.info("%s", describe_end(model_dir, run.step, total))
                    if self.validation is not None:
                        self.evaluation = hosts.from_first(lambda: evaluation_at(model_dir, run.step)) or None
            stop.end_if_signalled()  # a signal may have arrived during an evaluation
        return Summary(run.step, self.evaluation)

    def _train(self, stop: Interruption, writer: MetricsWriter | None) -> None:
        """Trains from the current step to the last, or until a stop is due."""
        run, lengths, first = self.run_state, self.lengths, self.run_state.step
        check_weights(run, self.mesh, self.checkpoints.steps())
        if lengths.saves_at(first):  # step 0: the only checkpoint that can be missing here
            self._save()
        log.info("%s", describe_run(self.config, self.mesh, first, lengths.total, run.position))
        for line in start_warnings(self.config, len(self.source)):
            log.warning("%s", line)
        with (
            TrainingProgress(first, lengths.total) as progress,
            self._open_profiler() as profiler,
            InputWait() as input_wait,
            self._open_loader() as loader,
        ):
            is_basic = self.config.data.input_pipeline == "basic"  # nothing overlaps
            ahead = 0 if is_basic else steps_ahead(self.mesh)
            batches = placement.prefetch(loader, self.mesh, ahead=0 if is_basic else 2)
            reports = LoopReports(
                self.config, run, writer=writer, loader=loader, progress=progress, input_wait=input_wait
            )
            steps = Dispatcher(run, self.train_step, batches, input_wait, functools.partial(self._end_step, reports))
            is_stopping = stop.is_due(first)
            reports.start_clock(first)
            while run.step < lengths.total and not is_stopping:
                is_first = run.step == first
                steps.dispatch(ahead=0 if is_first else ahead)
                if is_first:  # includes compilation, so it says nothing about the speed
                    log.info("First step after %.1f s", reports.start_clock(run.step))
                    if first > 0:
                        self._write_description()
                is_stopping, eval_is_due = stop.is_due(run.step), self._is_eval_due()
                profiler.after_step(run.step, may_begin=not eval_is_due)
                if is_stopping or lengths.reports_at(run.step):
                    reports.end_loop(run.step)
                if not (is_stopping or eval_is_due or lengths.saves_at(run.step)):
                    continue
                steps.land()
                if eval_is_due or run.step == lengths.total:
                    profiler.stop()
                check_weights(run, self.mesh, self.checkpoints.steps())
                self._save()
                if eval_is_due and not is_stopping:
                    self._evaluate(writer)
                is_stopping = stop.is_due(run.step)  # a signal may have arrived in the meantime
                reports.start_clock(run.step)
        self.checkpoints.wait()
        if is_stopping and run.step < lengths.total and run.step in self.checkpoints.steps():
            log.info("Stopped at step %d, which is saved. Start the same run again to continue.", run.step)

    @functools.cached_property
    def lengths(self) -> Lengths:
        """When the run evaluates, reports, saves and ends."""
        return lengths_of(self.config)

    def _open_profiler(self) -> Profiler:
        train = self.config.train
        return Profiler(
            self.config.run.model_dir,
            every_n_steps=train.profile_every_n_steps,
            duration_ms=train.tpu_profile_duration,
            step=self.run_state.step,
            total=self.lengths.total,
        )

    def _open_loader(self) -> Batches:
        return train_batches(
            self.source,
            self.config.data,
            batch_size=self.config.train.train_batch_size,
            seed=self.config.train.seed,
            start_position=self.run_state.position,
            host_index=jax.process_index(),
            num_hosts=jax.process_count(),
        )

    def _is_eval_due(self) -> bool:
        step = self.run_state.step
        return self.validation is not None and step not in self.checkpoints.scores and self.lengths.evaluates_at(step)

    def _end_step(self, reports: LoopReports, step: int, metrics: dict[str, Any]) -> None:
        """Checks and reports a step that has ended on the devices."""
        check_names(metrics)
        check_loss(metrics["loss"], step, self.checkpoints.steps())
        if self.on_step:
            self.on_step(step, {name: float(value) for name, value in metrics.items()})
        reports.add(step, metrics)

    def _save(self) -> None:
        if self.validation is None:  # others may evaluate: `eval --watch`
            self.checkpoints.scores.update(_read_scores(self.config.run.model_dir, evaluates=False))
        self.checkpoints.save(self.run_state.step, self.run_state.state.to_arrays(), self.run_state.meta(self.config))

    def _evaluate(self, writer: MetricsWriter | None) -> None:
        begun, step = time.perf_counter(), self.run_state.step
        assert self.validation is not None
        try:
            self.evaluation = evaluate(
                self.eval_step, *self.run_state.state.eval_arrays(), self.validation, self.config, self.mesh, step=step
            )
        except NonFiniteError as error:  # the weights are finite: their checkpoint was saved
            raise error.but(do=advice(step, self.checkpoints.steps())) from None
        self.checkpoints.scores[step] = self.evaluation[BEST_METRIC]
        if writer:
            writer.write("eval", {step: self.evaluation})
        log_metrics(step, self.evaluation, time.perf_counter() - begun)

    def _write_description(self) -> None:
        """Writes `config.json` and `labels.txt`, over the run's earlier ones: only call it if something is trained."""
        if hosts.is_first():
            write_description(self.config.run.model_dir, self.config, self.run_state.meta(self.config)["class_names"])
