"""The flags of the original's pruning fork: prune at one checkpoint, reset to another, train on.

Checkpoints are called as there, `DIR/checkpoint_iter_<step>` and `DIR/checkpoint_iter_final`. Here these are small text
files in `lottery_results_dir` that hold the path of one of our checkpoints, so copying them by hand does no harm; where
there is no such file, the checkpoint of that step, or the newest, in the model_dir `DIR` is meant. The fork's own
checkpoints are read too.
"""

import logging
from dataclasses import dataclass

import jax
import numpy as np

from resnet_tpu import distributed, hosts, storage
from resnet_tpu.checkpoints import store, tf1
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.checkpoints.tf1_lottery import masks_by_layer
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.config import Config
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, require_finite
from resnet_tpu.models.network import Network, network_of
from resnet_tpu.prune.layers import kernels_of, maskable
from resnet_tpu.prune.masks import Masks, all_kept, density
from resnet_tpu.prune.methods import find_method
from resnet_tpu.prune.phase import fresh_arrays, masks_of
from resnet_tpu.prune.start import start_with
from resnet_tpu.train.loop import train
from resnet_tpu.train.run import lengths_of, resolve

log = logging.getLogger(__name__)

REINITIALIZE = "reinitialize"
"""Instead of a checkpoint: newly drawn weights."""

DENSITY = "density_ratio"
"""File in `lottery_results_dir` with the density after pruning, from 0 to 1."""

_NAME = "checkpoint_iter_"
_FINAL = "final"


@dataclass(frozen=True)
class _Origin:
    """Arrays of a checkpoint, and its masks by layer."""

    arrays: Arrays
    masks: Masks
    step: int


def train_lottery(config: Config) -> None:
    """Trains, after pruning where the flags ask for it, and names the checkpoints kept in `lottery_results_dir`.

    A training that was stopped goes on. Raises UserError for flags that do not fit together, for a checkpoint that is
    not there, and what `train` raises.
    """
    flags = config.lottery
    asked = [flags.lottery_prune_at, flags.lottery_reset_to]
    if any(asked):
        if not all(asked):
            missing = "lottery_reset_to" if flags.lottery_prune_at else "lottery_prune_at"
            raise UserError(missing, "nothing", "a checkpoint, to prune and reset", f"Give --{missing}=CHECKPOINT.")
        distributed.start(use_tpu=config.run.use_tpu)
        with hosts.joined(config.run):
            _prune(config)
    train(config)
    if flags.lottery_results_dir and hosts.is_first():
        _name_checkpoints(config)


def find_named(path: str) -> str:
    """The checkpoint that a name such as `DIR/checkpoint_iter_11259` means. Raises UserError when there is none."""
    folder, _, name = path.rstrip("/").rpartition("/")
    if name.startswith(_NAME):
        if storage.exists(path) and not storage.is_dir(path) and store.is_checkpoint(kept := storage.read_text(path)):
            return kept
        step = name.removeprefix(_NAME)
        own = storage.join(folder, store.FOLDER, step)
        if store.is_checkpoint(own):
            return own
        if step == _FINAL and store.steps_in(storage.join(folder, store.FOLDER)):
            return store.find(folder)
    if prefix := tf1.find_checkpoint(path):
        return prefix
    return store.find(path)


def _prune(config: Config) -> None:
    """Writes the checkpoint of the pruned network into `model_dir`, unless the network there has the same masks."""
    flags, model_dir = config.lottery, config.run.model_dir
    source = open_source(config.data, "train")
    config = resolve(config, source)
    network = network_of(config)
    layers = maskable(network)
    pruned = _open(flags.lottery_prune_at, network, config)
    require_finite(pruned.arrays, flags.lottery_prune_at, "Prune an earlier checkpoint.")
    masks = find_method(flags.lottery_pruning_method)(kernels_of(pruned.arrays["params"], layers), pruned.masks)
    if flags.lottery_results_dir and hosts.is_first():
        storage.make_dir(flags.lottery_results_dir)
        storage.write_text(storage.join(flags.lottery_results_dir, DENSITY), str(density(masks.values())))
    log.info("%s: %.2f %% of the weights kept", flags.lottery_pruning_method, 100 * density(masks.values()))
    if not flags.lottery_force_reprune and _has_masks(model_dir, network, masks):
        log.info("%s is pruned already: going on with it.", model_dir)
        return
    reset = _open(flags.lottery_reset_to, network, config)
    step = reset.step
    if flags.lottery_reset_global_step_to:
        step = _open(flags.lottery_reset_global_step_to, network, config).step
    arrays = start_with(reset.arrays, masks, layers, step=step, rewind_optimizer="restore")
    hosts.wait_for_all()  # nobody still reads what is in the way
    if hosts.is_first():
        _set_aside(model_dir)
    hosts.wait_for_all()
    position = step * config.train.train_batch_size
    with CheckpointStore(storage.join(model_dir, store.FOLDER), keep=1) as checkpoints:
        checkpoints.save(step, arrays, make_meta(config, source.class_names, position))


def _open(path: str, network: Network, config: Config) -> _Origin:
    """What is at `path`, for this network; `reinitialize`: new weights, at step 0."""
    layers = maskable(network)
    if path == REINITIALIZE:
        arrays = fresh_arrays(network, config)
        return _Origin(arrays, all_kept(kernels_of(arrays["params"], layers)), 0)
    found = find_named(path)
    if store.is_checkpoint(found):
        checkpoint = store.load_all(found)
        return _Origin(checkpoint.arrays, masks_of(checkpoint.arrays, layers), checkpoint.step)
    variables = tf1.read_checkpoint(found)
    restored = tf1.from_tf1(network, variables)
    arrays = fresh_arrays(network, config) | {
        name: jax.tree.map(np.array, array)  # copies, for what was read may still be the pages of the file
        for name, array in restored._asdict().items()
        if name != "global_step" and array is not None
    }
    theirs = masks_by_layer(variables)
    names = {place: name.removesuffix("/kernel") for name, (_, place) in tf_names(network).items()}
    masks = all_kept(kernels_of(arrays["params"], layers))
    masks |= {name: theirs[names[place]].astype(bool) for name, place in layers.items() if names[place] in theirs}
    return _Origin(arrays, masks, restored.global_step or 0)


def _has_masks(model_dir: str, network: Network, masks: Masks) -> bool:
    if not store.steps_in(storage.join(model_dir, store.FOLDER)):
        return False
    found = store.load_all(store.find(model_dir))
    if "masks" not in found.arrays:
        return False
    present = masks_of(found.arrays, maskable(network))
    return all(np.array_equal(present[name], mask) for name, mask in masks.items())


def _set_aside(model_dir: str) -> None:
    """Renames the checkpoints of another network in `model_dir`, which would be gone on with otherwise."""
    folder = storage.join(model_dir, store.FOLDER)
    if not store.steps_in(folder):
        return
    names = storage.list_dir(model_dir)
    number = next(n for n in range(1, len(names) + 2) if f"{store.FOLDER}.{n}" not in names)
    log.warning("The checkpoints that were in %s are in %s.%d now.", model_dir, store.FOLDER, number)
    storage.move(folder, f"{folder}.{number}")


def _name_checkpoints(config: Config) -> None:
    results_dir = config.lottery.lottery_results_dir
    folder = storage.absolute(storage.join(config.run.model_dir, store.FOLDER))
    saved = store.steps_in(folder)
    kept = {str(step): step for step in lengths_of(config).kept if step in saved} | {_FINAL: saved[-1]}
    storage.make_dir(results_dir)
    for name, step in kept.items():
        storage.write_text(storage.join(results_dir, f"{_NAME}{name}"), storage.join(folder, str(step)))
