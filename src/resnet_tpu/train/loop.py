"""Training from start to end: go on where the run stopped, train, evaluate, save."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu import distributed, storage
from resnet_tpu.checkpoints import store
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.checkpoints.weights import Weights
from resnet_tpu.checks import check
from resnet_tpu.config import Config
from resnet_tpu.data.loader import Batches, train_batches
from resnet_tpu.data.source import Source, open_source
from resnet_tpu.errors import NonFiniteLossError, UserError
from resnet_tpu.models.network import Network
from resnet_tpu.train.evaluate import EvalStep, evaluate, log_metrics
from resnet_tpu.train.interrupt import Interruption
from resnet_tpu.train.metrics import MetricsWriter, read_metrics
from resnet_tpu.train.optimizer import make_optimizer
from resnet_tpu.train.profile import Profiler
from resnet_tpu.train.progress import TrainingProgress
from resnet_tpu.train.run import (
    Lengths,
    check_classes,
    lengths,
    make_meta,
    resolve,
    write_description,
)
from resnet_tpu.train.schedule import make_schedule
from resnet_tpu.train.start import find_start, settle_start
from resnet_tpu.train.step import DeviceBatch, make_eval_step, make_train_step

log = logging.getLogger(__name__)

BEST_METRIC = "top_1_accuracy"
"""The best checkpoint, which is always kept, is the one with the highest."""


@dataclass(frozen=True)
class Summary:
    """How a training ended: the optimizer steps done in all, and the last evaluation if there was one."""

    step: int
    evaluation: dict[str, float] | None


def train(config: Config) -> Summary:
    """Trains to `train_steps` and, in mode train_and_eval, evaluates every `steps_per_eval` steps and at the end.

    Goes on from the newest checkpoint in `model_dir`. Ctrl-C and SIGTERM save first. Raises UserError for options, data
    or checkpoints that do not fit, before anything is computed; NonFiniteLossError when the loss is no longer a number.
    """
    if not config.run.model_dir:
        raise UserError("model_dir", "nothing", "a folder for checkpoints and metrics", "Give --model_dir=FOLDER.")
    check(config)
    distributed.start(use_tpu=config.run.use_tpu)
    source = open_source(config.data, "train")
    validation = open_source(config.data, "validation") if config.run.mode == "train_and_eval" else None
    class_names = source.class_names
    if validation is not None:
        check_classes(config.data.data_dir, validation.class_names, class_names)
    config = resolve(config, source)
    mesh = distributed.make_mesh(config.run.num_cores)
    parts = config.optimizer.gradient_accumulation_steps
    distributed.check_divides("train_batch_size", config.train.train_batch_size, mesh.devices.size * parts)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(
            CheckpointStore(storage.join(config.run.model_dir, store.FOLDER), keep=config.train.keep_checkpoint_max)
        )
        config, weights = settle_start(config, checkpoints)
        trainer = Trainer(config, lengths(config), source, validation, class_names, mesh, checkpoints, weights)
        summary = trainer.run(stack)
    if jax.process_index() == 0:
        draw_report(config.run.model_dir)
    return summary


def draw_report(model_dir: str) -> None:
    """Draws the curves of a run into `report/curves.png`."""
    from resnet_tpu.train import curves, style  # matplotlib takes a while to load

    folder = storage.join(model_dir, "report")
    storage.make_dir(folder)
    style.write_png(curves.draw_training(read_metrics(model_dir)), storage.join(folder, "curves.png"))


class Trainer:
    """One training run on its devices."""

    def __init__(
        self,
        config: Config,
        plan: Lengths,
        source: Source,
        validation: Source | None,
        class_names: list[str] | None,
        mesh: Mesh,
        checkpoints: CheckpointStore,
        weights: Weights | None,
    ) -> None:
        """`weights` are what a new training starts from, if not from random ones."""
        self.config, self.plan, self.source, self.validation = config, plan, source, validation
        self.class_names, self.mesh, self.checkpoints = class_names, mesh, checkpoints
        groups = mesh.devices.size if config.model.batch_norm_scope == "replica" else 1
        self.network = Network.create(
            config.model,
            num_classes=config.data.num_label_classes or 0,
            image_size=config.data.image_size,
            batch_norm_groups=groups,
        )
        self.optimizer = make_optimizer(config.optimizer)
        self.train_step = make_train_step(
            self.network,
            self.optimizer,
            make_schedule(config),
            config.optimizer,
            seed=config.train.seed,
            total_steps=plan.total,
            num_devices=mesh.devices.size,
        )
        self.eval_step: EvalStep = make_eval_step(self.network, config.optimizer)
        self.evaluation: dict[str, float] | None = None
        self._is_cold = True
        start = find_start(config, self.network, self.optimizer, checkpoints, class_names, weights, mesh)
        self.state, self.step, self.position = start.state, start.step, start.position

    def run(self, stack: contextlib.ExitStack) -> Summary:
        """Trains from the present step to the last. `stack` closes what this opens."""
        total, model_dir, train = self.plan.total, self.config.run.model_dir, self.config.train
        write_description(model_dir, self.config, self._meta()["class_names"])
        stop = stack.enter_context(Interruption())
        writer = stack.enter_context(MetricsWriter(model_dir, resume_step=self.step))
        for row in read_metrics(model_dir):
            if row["split"] == "eval":
                self.checkpoints.scores[row["step"]] = row[BEST_METRIC]
        if self._is_eval_due():  # the run was stopped between saving and evaluating
            self._evaluate(writer)
        if self.step >= total:
            log.info("Nothing to train: %s is at step %d of %d.", model_dir, self.step, total)
            return Summary(self.step, self.evaluation)
        self._log_start()
        progress = stack.enter_context(TrainingProgress(self.step, total))
        profiler = stack.enter_context(
            Profiler(model_dir, every_n_steps=train.profile_every_n_steps, duration_ms=train.tpu_profile_duration)
        )
        loader = stack.enter_context(self._open_loader())
        batches = distributed.prefetch(loader, self.mesh)
        while self.step < total and not stop.is_requested:
            rows = self._run_loop(self._next_boundary(), batches, progress, profiler, stop)
            if jax.process_index() == 0:
                writer.write("train", rows)
            if loader.skipped:
                log.warning("Damaged examples left out so far: %d", loader.skipped.total())
            eval_is_due = self._is_eval_due()
            if eval_is_due or self.step in (total, self._multiple(self.plan.per_save)) or stop.is_requested:
                self.checkpoints.save(self.step, self.state.to_arrays(), self._meta())
            if eval_is_due and not stop.is_requested:
                self._evaluate(writer)
            profiler.after_loop(self.step)
        self.checkpoints.wait()
        stop.leave()
        return Summary(self.step, self.evaluation)

    def _multiple(self, period: int) -> int:
        """The largest multiple of `period` that is not after the present step."""
        return self.step // period * period

    def _is_eval_due(self) -> bool:
        at_boundary = self.step > 0 and self.step in (self.plan.total, self._multiple(self.plan.per_eval))
        return self.validation is not None and at_boundary and self.step not in self.checkpoints.scores

    def _open_loader(self) -> Batches:
        return train_batches(
            self.source,
            self.config.data,
            batch_size=self.config.train.train_batch_size,
            seed=self.config.train.seed,
            start_position=self.position,
            host_index=jax.process_index(),
            num_hosts=jax.process_count(),
        )

    def _next_boundary(self) -> int:
        """The next step at which the host looks: the end of a loop, an evaluation, a checkpoint, the run."""
        periods = (self.plan.per_loop, self.plan.per_eval, self.plan.per_save)
        return min(self.plan.total, *(self._multiple(period) + period for period in periods))

    def _run_loop(
        self,
        until: int,
        batches: Iterator[DeviceBatch],
        progress: TrainingProgress,
        profiler: Profiler,
        stop: Interruption,
    ) -> dict[int, dict[str, Any]]:
        """Trains to step `until`, or to the end of the step in which a stop is requested.

        Returns the metrics of each step, by the number of updates made before it. Raises NonFiniteLossError.
        """
        first, start, timed_from, waited = self.step, time.perf_counter(), self.step, 0.0
        on_device: list[dict[str, jax.Array]] = []
        while self.step < until and not stop.is_requested:
            with jax.profiler.StepTraceAnnotation("train", step_num=self.step):
                asked = time.perf_counter()
                with jax.profiler.TraceAnnotation("input_wait"):
                    batch = next(batches)
                waited += time.perf_counter() - asked
                self.state, metrics = self.train_step(self.state, batch)
            on_device.append(metrics)
            self.step += 1
            self.position += self.config.train.train_batch_size
            ahead = 0 if self._is_cold else distributed.steps_ahead(self.mesh)
            if len(on_device) > ahead:
                jax.block_until_ready(on_device[-1 - ahead])
            if self._is_cold:  # the first step compiles: it says nothing of the speed
                self._is_cold = False
                log.info("First step after %.1f s", time.perf_counter() - start)
                start, timed_from, waited = time.perf_counter(), self.step, 0.0
            if self.step % self.config.train.log_step_count_steps == 0:
                progress.update(self.step)
            profiler.after_step()
        rows = dict(enumerate(jax.device_get(on_device), first))
        self._check_finite(rows)
        seconds = time.perf_counter() - start
        speed = {}
        if self.step > timed_from:
            num_images = (self.step - timed_from) * self.config.train.train_batch_size
            speed = {"images_per_sec": num_images / seconds, "input_wait_share": waited / seconds}
        return self._describe(rows, speed, progress)

    def _check_finite(self, rows: dict[int, dict[str, Any]]) -> None:
        for step, row in rows.items():
            if not math.isfinite(row["loss"]):
                kept = self.checkpoints.steps()
                last = f"The last good checkpoint is step {kept[-1]}." if kept else "There is no checkpoint yet."
                raise NonFiniteLossError(
                    f"Loss at step {step}", row["loss"], "a finite number",
                    f"{last} Lower base_learning_rate, warm up for longer, or use precision=float32.",
                )  # fmt: skip

    def _describe(
        self, rows: dict[int, dict[str, Any]], speed: dict[str, float], progress: TrainingProgress
    ) -> dict[int, dict[str, Any]]:
        """Adds epoch and speed to the metrics of a loop, and says how it went in one line."""
        batch_size, images = self.config.train.train_batch_size, self.config.data.num_train_images or 1
        loss, top_1 = (
            sum(float(row[name]) for row in rows.values()) / len(rows) for name in ("loss", "top_1_accuracy")
        )
        line = f"loss {loss:.4f}, top-1 {100 * top_1:.1f} %"
        if speed:
            line += f", {speed['images_per_sec']:.1f} images/s, input wait {100 * speed['input_wait_share']:.1f} %"
        progress.update(self.step, line)
        log.info("Step %d of %d, epoch %.2f: %s", self.step, self.plan.total, self.step * batch_size / images, line)
        for step, row in rows.items():
            row["current_epoch"] = step * batch_size / images
        last = max(rows)
        rows[last] |= speed
        return {last: rows[last]} if self.config.train.skip_host_call else rows

    def _evaluate(self, writer: MetricsWriter) -> None:
        start = time.perf_counter()
        assert self.validation is not None
        self.evaluation = evaluate(self.eval_step, *self.state.evaluated(), self.validation, self.config, self.mesh)
        self.checkpoints.scores[self.step] = self.evaluation[BEST_METRIC]
        if jax.process_index() == 0:
            writer.write("eval", {self.step: self.evaluation})
        log_metrics(self.step, self.evaluation, time.perf_counter() - start)

    def _meta(self) -> dict[str, Any]:
        return make_meta(self.config, self.class_names, self.position)

    def _log_start(self) -> None:
        config, device = self.config, jax.devices()[0]
        log.info(
            "ResNet-%d, %d classes, %d px, %s; %d training images; batch %d on %d x %s; steps %d to %d (%.1f epochs)",
            config.model.resnet_depth, config.data.num_label_classes, config.data.image_size, config.model.precision,
            config.data.num_train_images, config.train.train_batch_size, self.mesh.devices.size, device.device_kind,
            self.step, self.plan.total,
            self.plan.total * config.train.train_batch_size / (config.data.num_train_images or 1),
        )  # fmt: skip
