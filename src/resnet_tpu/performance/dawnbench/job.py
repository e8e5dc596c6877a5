"""The original's DAWNBench job: train with a checkpoint per epoch, evaluate each in a process of its own."""

import contextlib
import itertools
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts, startup
from resnet_tpu.performance.dawnbench.options import DawnbenchOptions, write_job
from resnet_tpu.performance.dawnbench.results import RESULTS, START, follow, started_at, verdict
from resnet_tpu.system.program import run_program
from resnet_tpu.training.loop import train
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.run import check_training

log = logging.getLogger(__name__)

_ALL = 10**9


class Phase(NamedTuple):
    """A phase of fast training: its last epoch, the size of its images, whether these are from `data_dir_small`."""

    last_epoch: int
    image_size: int
    is_small: bool


FAST = (Phase(18, 128, is_small=True), Phase(41, 224, is_small=False), Phase(50, 288, is_small=False))
"""The phases of the original's fast training."""

FAST_BOUNDARIES = "4,21,35,43"
"""Its `learning_rate_boundaries`."""


def dawnbench(config: Config, options: DawnbenchOptions) -> None:
    """Runs or resumes the job. At its end, `model_dir/results.tsv` has a row per epoch.

    Mode train_and_eval trains in this process and evaluates in a second one, on the CPU if training uses a TPU; train
    only trains; eval only evaluates the checkpoints that appear in `model_dir`, on this or another machine, until the
    last step. Raises UserError for options, data or checkpoints that do not fit, and when the evaluation failed.
    """
    _check(config, options)
    with hosts.connected(config.run):
        if config.run.mode == "eval":
            _evaluate(config, lengths_of(phases_of(config, options)[-1]).total)
        else:
            _train(config, options)


def _train(config: Config, options: DawnbenchOptions) -> None:
    config = config.replace(num_train_images=config.data.num_train_images or len(open_source(config.data, "train")))
    phases = phases_of(config, options)
    open_source(config.data, "validation")  # reports missing data now, not hours later
    for phase in phases:
        check_training(phase)
    with _evaluation(config, lengths_of(phases[-1]).total):
        if hosts.is_first():
            _mark_start(config, options)
        for phase in _unfinished(phases):
            train(phase)


def _check(config: Config, options: DawnbenchOptions) -> None:
    config.run.require_model_dir()
    if config.run.mode == "predict":
        raise UserError("mode", "predict", "train, eval or train_and_eval", "Change the value.")
    if options.data_dir_small and not options.use_fast_lr:
        expected = "use_fast_lr, which alone trains on small images"
        raise UserError("data_dir_small", options.data_dir_small, expected, "Give --use_fast_lr too, or leave it out.")
    optimizer = config.optimizer
    if options.use_fast_lr and (optimizer.enable_lars or optimizer.learning_rate_schedule != "step"):
        other = "enable_lars" if optimizer.enable_lars else f"learning_rate_schedule {optimizer.learning_rate_schedule}"
        raise UserError(
            "use_fast_lr", f"true with {other}", "one of them", "It has a schedule of its own: leave one out."
        )
    check_options(config)
    there = storage.exists(storage.join(config.run.model_dir, START))
    if there:
        started_at(config.run.model_dir)
    if config.run.mode == "eval" and not there:
        do = "Start the job with --mode=train, then run this."
        raise UserError("model_dir", f"{config.run.model_dir} without {START}", "a DAWNBench job", do)
    if not there and folders.steps_of_run(config.run.model_dir):
        got = f"{config.run.model_dir}, which has checkpoints but no {START}"
        raise UserError("model_dir", got, "an empty folder or a DAWNBench job", "Choose another model_dir.")


def phases_of(config: Config, options: DawnbenchOptions) -> list[Config]:
    """The options of the successive phases of training in `model_dir`, each up to its own train_steps."""
    whole = config.replace(
        mode="train",
        save_checkpoints_steps=config.train.save_checkpoints_steps or "1epochs",
        keep_checkpoint_max=_ALL,
    )
    if not options.use_fast_lr:
        return [whole]
    total, images = lengths_of(whole).total, config.data.images_per_epoch
    ends = [int(phase.last_epoch * images / config.train.train_batch_size) for phase in FAST]
    return [
        whole.replace(
            image_size=phase.image_size,
            data_dir=(options.data_dir_small if phase.is_small else "") or config.data.data_dir,
            train_steps=min(end, total),
            learning_rate_boundaries=FAST_BOUNDARIES,
        )
        for phase, (start, end) in zip(FAST, itertools.pairwise([0, *ends]), strict=True)
        if start < total
    ]


def _unfinished(phases: list[Config]) -> list[Config]:
    """The phases that the newest checkpoint has not completed; at least the last, which logs if it is complete too."""
    steps = folders.steps_of_run(phases[0].run.model_dir)
    newest = steps[-1] if steps else 0
    return [phase for phase in phases if lengths_of(phase).total > newest] or phases[-1:]


def _mark_start(config: Config, options: DawnbenchOptions) -> None:
    """Writes the job's options and, at the first start, the time."""
    write_job(config, options)
    start = storage.join(config.run.model_dir, START)
    if not storage.exists(start):
        storage.write_text(start, f"{time.time():.3f}\n")


@contextlib.contextmanager
def _evaluation(config: Config, last_step: int) -> Iterator[None]:
    """Within the block, evaluates in a second process if the mode says so; waits for it at the end."""
    if config.run.mode == "train":
        yield
        return
    if hosts.process_group() is not None:
        got = f"train_and_eval in {jax.process_count()} processes"
        do = "Run --mode=train on all of them, and --mode=eval on one machine at the same time or afterwards."
        raise UserError("mode", got, "train or eval", do)
    backend = jax.default_backend()
    if backend == "tpu":  # only one process can use it
        config = config.replace(use_tpu=False)
    elif backend == "gpu":  # training has already taken most of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    process = multiprocessing.get_context("spawn").Process(target=_evaluate_beside, args=(config, last_step))
    process.start()
    try:
        yield
        process.join()
    finally:
        process.terminate()
        process.join()
    if process.exitcode:
        do = "See its message above, then run the same command again: finished evaluations are kept."
        raise UserError("Evaluation", f"a process that ended with {process.exitcode}", "exit code 0", do)


def _evaluate_beside(config: Config, last_step: int) -> None:
    """The second process. It ends if training ends early."""
    os.environ["TTY_COMPATIBLE"] = "0"  # otherwise its progress bars would overwrite those of training

    def work(_: object) -> None:
        startup.start_jax(use_tpu=config.run.use_tpu)
        _evaluate(config, last_step)

    sys.exit(run_program(work, []))


def _evaluate(config: Config, last_step: int) -> None:
    parent = multiprocessing.parent_process()
    rows = follow(config, last_step, is_wanted=lambda: parent is None or parent.is_alive())
    log.info("%s Epoch by epoch: %s", verdict(rows), storage.join(config.run.model_dir, RESULTS))
