"""Training with the flags of the original's pruning fork: prune at one checkpoint, reset to another, train on."""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading, tf1
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, require_finite
from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.network import Network
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import OPTIONS, Config, LotteryConfig
from resnet_tpu.parallel import hosts
from resnet_tpu.pruning.former import set_aside
from resnet_tpu.pruning.layers import kernels_of, maskable, masks_of
from resnet_tpu.pruning.masks import Masks, are_equal, density, full_masks
from resnet_tpu.pruning.methods import find_method
from resnet_tpu.pruning.named_checkpoints import find_named, forget_names, name_checkpoints, named_start
from resnet_tpu.pruning.start import fresh_arrays, start_arrays
from resnet_tpu.storage import checked_json
from resnet_tpu.training.loop import train
from resnet_tpu.training.photos_seen import photos_behind, record_photos
from resnet_tpu.training.run import fill_in_counts, resolve_order

log = logging.getLogger(__name__)

REINITIALIZE = "reinitialize"
"""Stands for newly drawn weights, instead of a checkpoint."""

DENSITY = "density_ratio"
"""File in `lottery_results_dir` that holds the density after pruning, from 0 to 1."""

_DESCRIPTION = "lottery.json"
"""File in `model_dir` that describes the run begun there."""


@dataclass(frozen=True)
class _Origin:
    """The arrays of a checkpoint, its masks by layer, its step, and the training images consumed before that."""

    arrays: Arrays
    masks: Masks
    step: int
    position: int


def train_lottery(config: Config) -> None:
    """Prunes if the flags ask for it, trains, and names the kept checkpoints in `lottery_results_dir`.

    Resumes a run that was stopped; sets a different run in `model_dir` aside. Raises UserError for flags that do not
    fit together and for a missing checkpoint, and whatever `train` raises.
    """
    flags = config.lottery
    checkpoints = [flags.lottery_prune_at, flags.lottery_reset_to]
    if any(checkpoints) and not all(checkpoints):
        missing = "lottery_reset_to" if flags.lottery_prune_at else "lottery_prune_at"
        raise UserError(missing, "nothing", "a checkpoint, to prune and reset", f"Give --{missing}=CHECKPOINT.")
    check_options(config)
    with hosts.connected(config.run):
        if flags.lottery_results_dir:
            storage.check_writable(flags.lottery_results_dir)
        start = named_start(config.run.model_dir)
        if not any(checkpoints):
            _warn_of_unused(flags, start)
        if start or any(checkpoints):
            _begin(config, start)
    train(config)
    if flags.lottery_results_dir and hosts.is_first():
        name_checkpoints(config)


def _warn_of_unused(flags: LotteryConfig, named: str | None) -> None:
    """Logs which flags have no effect because nothing is pruned and reset. named: see `_begin`."""
    needs_start = () if named else ("lottery_force_reprune",)
    for name in ("lottery_pruning_method", "lottery_reset_global_step_to", *needs_start):
        if getattr(flags, name) != OPTIONS[name].default:
            log.warning("%s has no effect without lottery_prune_at and lottery_reset_to.", name)


def _begin(config: Config, named: str | None) -> None:
    """Writes the checkpoint that training starts from into `model_dir`, unless this run was begun there already.

    named: the result of `named_start` for `model_dir`. As in the fork, training continues from it if it has the masks
    that the flags ask for; otherwise the network is pruned and reset.
    """
    flags, model_dir = config.lottery, config.run.model_dir
    description = _description(config)
    source = open_source(config.data, "train")
    config = resolve_order(fill_in_counts(config, source), source)
    network = network_of(config)
    masks = _prune(config, network) if flags.lottery_prune_at else None
    existing = _open(named, network, config) if named else None
    if masks and (flags.lottery_force_reprune or (existing and not are_equal(masks, existing.masks))):
        existing = None
    if existing:
        description["begun_at"] = named
    is_there = not flags.lottery_force_reprune and _is_begun(model_dir, description, anywhere=named is None)
    if is_there and (masks is None or _has_masks(model_dir, network, masks)):
        log.info("%s already holds this run: continuing it.", model_dir)
        hosts.wait_for_all()  # until every process has read the file that names the start
    else:
        start = existing or _reset(config, network)
        start = dataclasses.replace(start, masks=masks or start.masks)
        _write_start(config, network, source.class_names, start, description)
    if hosts.is_first():
        if named:  # used only once: at this point, TensorFlow would overwrite the file with its own progress
            storage.remove(storage.join(model_dir, tf1.STATE))
        if masks and flags.lottery_results_dir:
            storage.make_dir(flags.lottery_results_dir)
            text = str(density(masks.values()))
            storage.write_text(storage.join(flags.lottery_results_dir, DENSITY), text)


def _write_start(
    config: Config, network: Network, class_names: list[str] | None, start: _Origin, description: Mapping[str, Any]
) -> None:
    """Sets the run in `model_dir` aside, and writes the checkpoint from which the described run starts."""
    model_dir = config.run.model_dir
    arrays = start_arrays(start.arrays, start.masks, maskable(network), step=start.step, rewind_optimizer="restore")
    hosts.wait_for_all()  # until no process reads the files that are set aside below
    if hosts.is_first():
        # before the run is set aside: the checkpoint may be its own
        photos = photos_behind(description["begun_at"] or description["lottery_reset_to"])
        set_aside(model_dir, also=(_DESCRIPTION, DENSITY))
        forget_names(config.lottery.lottery_results_dir, model_dir)
        storage.make_dir(model_dir)
        storage.write_text(storage.join(model_dir, _DESCRIPTION), json.dumps(description, indent=2) + "\n")
        record_photos(model_dir, photos)
    hosts.wait_for_all()
    meta = make_meta(config, class_names, start.position)
    with CheckpointStore(folders.folder_of(model_dir), keep=1) as checkpoints:
        checkpoints.save(start.step, arrays, meta)


def _prune(config: Config, network: Network) -> Masks:
    """The masks that result from pruning as the flags ask."""
    flags = config.lottery
    pruned = _open(flags.lottery_prune_at, network, config)
    kernels = kernels_of(pruned.arrays["params"], maskable(network))
    masks = find_method(flags.lottery_pruning_method, seed=config.train.seed)(kernels, pruned.masks)
    log.info("%s: %.2f %% of the weights kept", flags.lottery_pruning_method, 100 * density(masks.values()))
    return masks


def _reset(config: Config, network: Network) -> _Origin:
    """The arrays, masks and step to train from, as the flags ask."""
    flags = config.lottery
    start = _open(flags.lottery_reset_to, network, config)
    if flags.lottery_reset_global_step_to:
        other = _open(flags.lottery_reset_global_step_to, network, config)
        start = dataclasses.replace(start, step=other.step, position=other.position)
    return start


def _description(config: Config) -> dict[str, Any]:
    """The settings that define the run the flags ask for. Raises UserError for a checkpoint that would be set aside."""
    flags = config.lottery
    run_folder = storage.absolute(folders.folder_of(config.run.model_dir)) + "/"
    description: dict[str, Any] = {
        "lottery_pruning_method": flags.lottery_pruning_method,
        "lottery_force_learning_rate": config.optimizer.lottery_force_learning_rate,
        "lth_use_random_label": config.data.lth_use_random_label,
        "begun_at": None,
    }
    for name in ("lottery_prune_at", "lottery_reset_to", "lottery_reset_global_step_to"):
        path: str = getattr(flags, name)
        description[name] = storage.absolute(find_named(path)) if path not in ("", REINITIALIZE) else path
        if description[name].startswith(run_folder):
            do = "Give another model_dir: the contents of this one are set aside for a new run."
            raise UserError(name, f"{path}, which is in model_dir itself", "a checkpoint of another run", do)
    return description


def _is_begun(model_dir: str, description: Mapping[str, Any], *, anywhere: bool) -> bool:
    """Whether the run in `model_dir` was begun as described; with `anywhere`, whatever checkpoint it began with.

    Logs the differences.
    """
    if not folders.steps_of_run(model_dir):
        return False
    recorded: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):  # a run without the flags, or a damaged file
        recorded = checked_json.loads(storage.read_text(storage.join(model_dir, _DESCRIPTION)))
    names = [name for name in description if not (anywhere and name == "begun_at")]
    changed = [
        f"{name} {recorded.get(name)} -> {description[name]}"
        for name in names
        if recorded.get(name) != description[name]
    ]
    if changed:
        log.warning("This run differs from the one in %s: %s", model_dir, ", ".join(changed))
    return not changed


def _open(path: str, network: Network, config: Config) -> _Origin:
    """Reads the checkpoint at `path` for this network; `reinitialize`: new weights, at step 0."""
    layers = maskable(network)
    if path == REINITIALIZE:
        arrays = fresh_arrays(network, config)
        return _Origin(arrays, full_masks(kernels_of(arrays["params"], layers)), 0, 0)
    found = find_named(path)
    if folders.is_checkpoint(found):
        checkpoint = reading.load_for(network, found)
        require_finite(checkpoint.arrays, path, "Take an earlier checkpoint.")
        masks, position = masks_of(checkpoint.arrays, layers), checkpoint.meta["position"]
        return _Origin(checkpoint.arrays, masks, checkpoint.step, position)
    variables = tf1.read_checkpoint(found)
    restored = tf1.from_tf1(network, variables)
    require_finite(restored, path, "Take an earlier checkpoint.")
    # copied, because the arrays read may be memory-mapped pages of the file
    arrays = fresh_arrays(network, config) | jax.tree.map(np.array, restored)
    if config.optimizer.keeps_average and "ema" not in restored:
        arrays["ema"] = {name: arrays[name] for name in ("params", "batch_stats")}
    step = restored["step"]
    return _Origin(arrays, masks_of(arrays, layers), step, step * config.train.train_batch_size)


def _has_masks(model_dir: str, network: Network, masks: Masks) -> bool:
    found = reading.load_masks(reading.find(model_dir))
    return found is not None and are_equal(masks, masks_of({"masks": found}, maskable(network)))
