"""The report of the DAWNBench job: evaluates every checkpoint, and writes `results.tsv`."""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts, meshes
from resnet_tpu.performance.dawnbench.options import read_job
from resnet_tpu.reports.metrics import own_evaluations
from resnet_tpu.training.inference.evaluate_run import evaluate_checkpoint
from resnet_tpu.training.inference.trained import Trained, load_trained
from resnet_tpu.training.inference.waiting import Patience

log = logging.getLogger(__name__)

START = "START"
"""File in `model_dir` with the time when training began, in unix seconds."""

RESULTS = "results.tsv"

TOP_5_GOAL = 93.0
"""The accuracy in percent at which DAWNBench stops its clock. Source: DAWNBench, ImageNet training."""


class Row(NamedTuple):
    """A line of `results.tsv`: the epoch and hours of a checkpoint, and its accuracies in percent."""

    epoch: int
    hours: float
    top_1: float
    top_5: float


def follow(config: Config, last_step: int, *, is_wanted: Callable[[], bool] = lambda: True) -> list[Row]:
    """Evaluates every checkpoint of `model_dir` as it appears, in order, and writes `results.tsv` after each.

    Ends after the checkpoint of `last_step`, when none has appeared for `eval_timeout` seconds, or when `is_wanted`
    returns False. Does not evaluate a checkpoint twice. `config` must contain the number of training images. Returns
    the rows of `results.tsv`. Raises DamagedCheckpointError.
    """
    mesh = meshes.make_mesh(config.run.num_cores)
    folder = folders.folder_of(config.run.model_dir)
    rows = _known_rows(config, folder)
    patience = Patience(config.eval.eval_timeout)
    while True:
        # every process acts on what the first one sees
        waiting, is_over, is_given_up = hosts.from_first(
            lambda: ([step for step in folders.steps_in(folder) if step not in rows][:1], patience.is_over,
                     not is_wanted())
        )  # fmt: skip
        is_done = not waiting and last_step in rows
        is_late = not waiting and not is_done and is_over
        if is_late or is_done or is_given_up:
            break
        if not waiting:
            after = max(rows, default=0)
            patience.wait(functools.partial("a checkpoint after step {}, up to step {}".format, after, last_step))
            continue
        path = storage.join(folder, str(waiting[0]))
        rows[waiting[0]] = _row(config, path, evaluate_checkpoint(_of_job(config, load_trained(path, mesh)), config))
        patience.begin()
        _write(config, rows)
    if is_late:
        log.info("No new checkpoint within %d s.", config.eval.eval_timeout)
    return _write(config, rows)


def _of_job(config: Config, trained: Trained) -> Trained:
    """The network as one of the job's own images, on which its early epochs are evaluated too."""
    job = read_job(config.run.model_dir)
    if not job or trained.config.data.data_dir != job.values.get("data_dir_small"):
        return trained
    return dataclasses.replace(trained, config=trained.config.replace(data_dir=config.data.data_dir))


def _known_rows(config: Config, folder: str) -> dict[int, Row]:
    """The rows of the checkpoints that have been evaluated, by step."""
    there = set(folders.steps_in(folder))
    return {
        metrics["step"]: _row(config, storage.join(folder, str(metrics["step"])), metrics)
        for metrics in own_evaluations(config.run.model_dir)
        if metrics["step"] in there
    }


def _row(config: Config, path: str, metrics: dict[str, float]) -> Row:
    """The original's figures: epochs, from whole steps per epoch; hours from START to the time of the checkpoint."""
    steps_per_epoch = max(config.data.images_per_epoch // config.train.train_batch_size, 1)
    seconds = reading.written_at(path) - started_at(config.run.model_dir)
    accuracies = (100 * metrics["top_1_accuracy"], 100 * metrics["top_5_accuracy"])
    return Row(reading.step_of(path) // steps_per_epoch, seconds / 3600, *accuracies)


def started_at(model_dir: str) -> float:
    """The time when the job began, in unix seconds. Raises UserError if the file does not contain it."""
    path = storage.join(model_dir, START)
    text = storage.read_bytes(path).decode(errors="backslashreplace")
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)):
            return seconds
    do = "Write into it the time at which training began, or choose another model_dir."
    raise UserError(path, repr(text[:80]), "a time in unix seconds", do)


def _write(config: Config, rows: dict[int, Row]) -> list[Row]:
    """Writes the rows to `results.tsv` in order, and returns them."""
    ordered = [rows[step] for step in sorted(rows)]
    if hosts.is_first():
        write_tsv(config.run.model_dir, ordered)
    return ordered


def write_tsv(model_dir: str, rows: list[Row]) -> None:
    """Writes `results.tsv` in the format of DAWNBench: tabs, a header, percent with two decimals."""
    lines = [f"{row.epoch}\t{row.hours:.6f}\t{row.top_1:.2f}\t{row.top_5:.2f}\n" for row in rows]
    header = "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"
    storage.write_text(storage.join(model_dir, RESULTS), header + "".join(lines))


def verdict(rows: list[Row]) -> str:
    """A sentence that says whether and when DAWNBench's goal was reached."""
    for row in rows:
        if row.top_5 >= TOP_5_GOAL:
            return f"Top-5 accuracy {TOP_5_GOAL:g} % first at epoch {row.epoch}, after {row.hours:.2f} hours."
    best = max((row.top_5 for row in rows), default=0.0)
    return f"Top-5 accuracy {TOP_5_GOAL:g} % was not reached; the best was {best:.2f} %."
