"""Where a run begins: at its newest checkpoint, at one of the original, from another run's weights, or random ones."""

import contextlib
import dataclasses
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading, tf1
from resnet_tpu.checkpoints.meta import changed_options, config_of
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.checkpoints.tf1_describe import LARS, contents
from resnet_tpu.checkpoints.transfer import origin_options, replace_and_log, start_from, with_options_of_weights
from resnet_tpu.checkpoints.weights import FIXED_BY_WEIGHTS, Weights, open_weights
from resnet_tpu.data.class_names import check_classes
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, OptimizerConfig
from resnet_tpu.options.run_file import read_run
from resnet_tpu.parallel import hosts, meshes, placement
from resnet_tpu.training.maths.state import TrainState, create_state, start_state
from resnet_tpu.training.run_state import RunState

log = logging.getLogger(__name__)

_START = "resnet_checkpoint"


def initial_weights(config: Config) -> Weights | None:
    """The weights that a new run in `model_dir` starts from; None if none are given, or there is a run already.

    Raises UserError when `resnet_checkpoint` holds no weights.
    """
    path, model_dir = config.train.resnet_checkpoint, config.run.model_dir
    is_new = path and not (model_dir and (folders.steps_of_run(model_dir) or tf1.find_checkpoint(model_dir)))
    return open_weights(path) if is_new else None


def resolve_initial_weights(config: Config, checkpoints: CheckpointStore) -> tuple[Config, Weights | None]:
    """The options, some of which come with the weights, and the weights that a new run starts from.

    An existing run keeps its own weights. Raises UserError when `resnet_checkpoint` holds no weights, or those of
    another network.
    """
    model_dir = config.run.model_dir
    if checkpoints.steps():
        run = read_run(model_dir)
        values = run.values if run else {}
        fixed = {name: value for name, value in values.items() if name in FIXED_BY_WEIGHTS}
        requested = config.train.resnet_checkpoint
        start = values.get(_START, "")
        if requested not in ("", start) and hosts.is_first():
            do = "To start from it, give another model_dir."
            log.warning("%s %s is not used: %s has checkpoints. %s", _START, requested, model_dir, do)
        config = config.replace(**origin_options(values), **{_START: start})
        return replace_and_log(config, fixed, f"the checkpoints in {model_dir}"), None
    weights = initial_weights(config)
    return with_options_of_weights(config, weights) if weights else config, weights


def check_newest(config: Config, network: Network, checkpoints: CheckpointStore, class_names: list[str] | None) -> None:
    """Raises UserError, as `find_start` would, if the newest checkpoint is of another network or other classes."""
    steps = checkpoints.steps()
    if not steps:
        if original := tf1.find_checkpoint(config.run.model_dir):
            _read_original(network, config.optimizer, original)
        return
    path = storage.join(checkpoints.directory, str(steps[-1]))
    with contextlib.suppress(reading.DamagedCheckpointError):  # training skips a damaged one
        check_classes(config.data.location, class_names, reading.read_meta(path)["class_names"])
        reading.check_shapes(path, reading.stored_shapes(path), _shapes(config, network, checkpoints).to_arrays())


def _shapes(config: Config, network: Network, checkpoints: CheckpointStore) -> TrainState:
    """The state of a run as shapes and dtypes, with the masks of its newest checkpoint."""
    new_state = functools.partial(create_state, network, config.optimizer, config.train.seed)
    return dataclasses.replace(jax.eval_shape(new_state), masks=checkpoints.mask_shapes())


def find_start(
    config: Config,
    network: Network,
    checkpoints: CheckpointStore,
    class_names: list[str] | None,
    weights: Weights | None,
    mesh: Mesh,
) -> RunState:
    """The newest checkpoint of `model_dir`, ours or else the original's; without one, `weights` or random ones.

    Raises UserError when a checkpoint is of another network or other classes.
    """
    shapes = _shapes(config, network, checkpoints)
    try:
        checkpoint = checkpoints.restore(placement.with_sharding(shapes.to_arrays(), meshes.replicated(mesh)))
    except UserError:
        check_newest(config, network, checkpoints, class_names)  # names the classes, where shapes only count them
        raise
    if checkpoint is not None:
        names = checkpoint.meta["class_names"]
        check_classes(config.data.location, class_names, names)
        if hosts.is_first() and (changed := changed_options(config_of(checkpoint.meta), config)):
            log.warning("Resuming with options that differ from before: %s", ", ".join(changed))
        log.info("Resuming from step %d of %s", checkpoint.step, checkpoints.directory)
        meta = checkpoint.meta
        state = shapes.with_arrays(checkpoint.arrays)
        return RunState(state, checkpoint.step, meta["position"], class_names or names, meta.get("kernels"))
    if original := tf1.find_checkpoint(config.run.model_dir):
        state = _continue_original(network, config.optimizer, original)
    elif weights is not None:
        params, batch_stats, report = start_from(
            network, weights, *network.init(config.train.seed), class_names=class_names
        )
        log.info("%s", report)
        state = start_state(config.optimizer, params, batch_stats)
    else:
        state = create_state(network, config.optimizer, config.train.seed)
    step = int(state.step)
    return RunState(placement.put_replicated(state, mesh), step, step * config.train.train_batch_size, class_names)


def _read_original(network: Network, config: OptimizerConfig, prefix: str) -> Arrays:
    """The arrays of a checkpoint of the original. Raises UserError for those of another network or optimizer."""
    variables = tf1.read_checkpoint(prefix)
    restored, slots = tf1.from_tf1(network, variables), contents(variables).optimizer
    if slots and (slots in LARS) != config.enable_lars:
        kinds = {True: "those of LARS (enable_lars=true)", False: "those of momentum (enable_lars=false)"}
        do = "Set enable_lars as that run did, or start another one from its weights with --init_from."
        raise UserError(f"Optimizer slots of {prefix}", kinds[not config.enable_lars], kinds[config.enable_lars], do)
    return restored


def _continue_original(network: Network, config: OptimizerConfig, prefix: str) -> TrainState:
    """The state that a run of the original program saved, step and optimizer included."""
    restored = _read_original(network, config, prefix)
    log.info("Resuming from step %d of the original's checkpoint %s", restored["step"], prefix)
    if "ema" in restored and not config.keeps_average:
        if hosts.is_first():
            log.warning("Its moving averages are dropped, because moving_average_decay is not set.")
        del restored["ema"]
    # copied, because the arrays may be mapped from the file
    arrays = jax.tree.map(jnp.array, restored | {"step": np.int32(restored["step"])})
    state = start_state(config, arrays["params"], arrays["batch_stats"])
    return state.with_arrays(state.to_arrays() | arrays)
