"""Evaluates the checkpoints of a run: the newest, or each as it appears."""

import dataclasses
import functools
import logging
import time

from jax.sharding import Mesh

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.data.class_names import check_classes
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError, listed
from resnet_tpu.options.config import Config, DataConfig, require_config
from resnet_tpu.options.overrides import Layer
from resnet_tpu.options.run_file import model_dir_of, read_run
from resnet_tpu.parallel import hosts, meshes
from resnet_tpu.reports.metrics import MetricsWriter, evaluation_at
from resnet_tpu.training.agreement import agree_on
from resnet_tpu.training.inference.evaluate import evaluate, log_metrics
from resnet_tpu.training.inference.trained import Trained, data_for_network, is_elsewhere, load_trained
from resnet_tpu.training.inference.waiting import Patience
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.maths.step import make_eval_step
from resnet_tpu.training.photos_seen import warn_of_training_photos

log = logging.getLogger(__name__)

_MOST_NAMES = 5  # of the files in a folder, for messages


def evaluate_run(config: Config, *, watch: bool = False, train_steps: int | str | None = None) -> dict[str, float]:
    """Evaluates the newest checkpoint of `model_dir` on the validation images and records the result next to it.

    `model_dir` may also be its folder of checkpoints, or one checkpoint, whose result is not recorded. A result on
    images or crops other than the run's is marked as such, and not recorded if the step already has a result. With
    `watch`, keeps evaluating the newest checkpoint, until that of the last step, or until no new one has
    appeared for `eval_timeout` seconds. Returns the last result: `loss`, and `top_1_accuracy` and `top_5_accuracy` from
    0 to 1.
    config: the options of the run, as in `load_model(model_dir).config`; they decide how images are cropped.
    train_steps: the last step to watch for, or a length in epochs; None: that of the run itself. Raises UserError when
    there is no checkpoint or, with `watch`, when none appears within `eval_timeout` seconds.
    """
    require_config(config)
    config = config.replace(model_dir=model_dir_of(config.run.model_dir))
    model_dir = config.run.model_dir
    with hosts.connected(config.run):  # includes the checks: a process that fails them ends all processes
        is_alone = folders.is_checkpoint(model_dir)
        if not is_alone and watch:
            storage.check_writable(model_dir)
        elif not is_alone:
            newest = reading.find(model_dir)  # its error says what is there instead
            storage.check_writable(model_dir, f"evaluate the checkpoint itself, {newest}: that records nothing")
        mesh = meshes.make_mesh(config.run.num_cores)
        if is_alone or not watch:
            return evaluate_checkpoint(load_trained(model_dir, mesh), config)
        return _follow(config, mesh, train_steps)


def await_options(config: Config) -> Layer:
    """Waits until the run in `model_dir` has begun; returns its options. Raises UserError after `eval_timeout`."""
    model_dir, patience = config.run.model_dir, Patience(config.eval.eval_timeout)
    while (own := read_run(model_dir)) is None:
        if patience.is_over:
            raise _no_checkpoint_error(config)
        patience.wait(functools.partial(_first_checkpoint, model_dir))
    return own


def _follow(config: Config, mesh: Mesh, train_steps: int | str | None) -> dict[str, float]:
    metrics: dict[str, float] = {}
    model_dir, patience = config.run.model_dir, Patience(config.eval.eval_timeout)
    last_step, awaited = -1, functools.partial(_first_checkpoint, model_dir)
    while True:
        # every process acts on what the first one sees
        path, is_late = hosts.from_first(lambda: (_newest(model_dir), patience.is_over))
        if path is not None and reading.step_of(path) > last_step:
            trained = load_trained(model_dir, mesh)
            metrics = evaluate_checkpoint(trained, config)
            last_step, run_config = trained.step, trained.config
            total = lengths_of(run_config.replace(train_steps=train_steps or run_config.train.train_steps)).total
            if last_step >= total:
                return metrics
            awaited = functools.partial("a checkpoint after step {}, up to step {}".format, last_step, total)
            patience.begin()
        elif is_late and not metrics:
            raise _no_checkpoint_error(config)
        elif is_late:
            log.info("No new checkpoint within %d s.", config.eval.eval_timeout)
            return metrics
        else:
            patience.wait(awaited)


def _newest(model_dir: str) -> str | None:
    try:
        return reading.find(model_dir)
    except UserError:
        return None


def _first_checkpoint(model_dir: str) -> str:
    return f"a checkpoint in {model_dir}, which is {_contents(model_dir)}"


def _no_checkpoint_error(config: Config) -> UserError:
    got, expected = _contents(config.run.model_dir), f"a checkpoint within {config.eval.eval_timeout} s"
    return UserError(f"model_dir {config.run.model_dir}", got, expected, "Check the path, or start the training first.")


def _contents(model_dir: str) -> str:
    """Describes a `model_dir` without a checkpoint, for messages."""
    names = storage.list_dir(model_dir)
    if names:
        return f"a folder of {listed(names, _MOST_NAMES)}"
    return "an empty folder" if storage.exists(model_dir) else "no such folder"


def evaluate_checkpoint(trained: Trained, config: Config) -> dict[str, float]:
    """Evaluates one checkpoint on the validation images and records the result in `model_dir`, as training does.

    If `model_dir` names the checkpoint itself, its run is unknown, and the result is not recorded. A result on images
    or crops other than the run's is marked as such, and not recorded if the step already has a result.
    """
    start = time.monotonic()
    data = data_for_network(config.data, trained.config.data)
    source = open_source(data, "validation")
    check_classes(data.location, source.class_names, trained.class_names)
    warn_of_training_photos(folders.run_of(trained.path), source, "validation")
    agree_on(config, {"validation": source}, writes=trained.belongs_to(config.run.model_dir))
    eval_config = dataclasses.replace(trained.config, data=data).replace(eval_batch_size=config.eval.eval_batch_size)
    eval_step = make_eval_step(trained.network, trained.config.optimizer, device=trained.mesh.devices.flat[0])
    metrics = evaluate(
        eval_step, trained.params, trained.batch_stats, source, eval_config, trained.mesh, step=trained.step
    )
    log_metrics(trained.step, metrics, time.monotonic() - start)  # now, in case that it cannot be recorded
    if not trained.belongs_to(config.run.model_dir):
        log.info("The result is not recorded: %s is a checkpoint, not a model_dir.", config.run.model_dir)
    elif hosts.is_first():
        is_other = _differs_from_run(data, trained.config.data)
        if is_other and evaluation_at(config.run.model_dir, trained.step):
            log.info("The result is not recorded: step %d already has one, of other images or crops.", trained.step)
        else:
            with MetricsWriter(config.run.model_dir) as writer:
                writer.write("eval", {trained.step: metrics}, of_other_images=is_other)
    return metrics


def _differs_from_run(data: DataConfig, run_data: DataConfig) -> bool:
    """Whether an evaluation uses other images or other crops than the run's own evaluations."""
    names = ("num_eval_images", "eval_crop", "lth_use_random_label")
    return is_elsewhere(data, run_data) or any(getattr(data, name) != getattr(run_data, name) for name in names)
