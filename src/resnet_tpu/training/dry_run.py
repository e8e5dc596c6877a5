"""A run without its steps: checks everything that can be checked before the first one, and writes nothing."""

import logging

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading, tf1
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.checkpoints.tf1_bundle import read_bundle
from resnet_tpu.checkpoints.tf1_describe import STEP
from resnet_tpu.checkpoints.transfer import start_from
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts
from resnet_tpu.training.description import describe_end, describe_run, note_on_epochs
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.step import train_step_of
from resnet_tpu.training.run import check_start, open_run
from resnet_tpu.training.start import check_newest, resolve_initial_weights

log = logging.getLogger(__name__)


def dry_run(config: Config) -> str:
    """Describes what `train` would do; raises what `train` would raise before its first step. Writes nothing."""
    with hosts.connected(config.run):
        check_start(config)
        config, source, validation, mesh = open_run(config)
        checkpoints = CheckpointStore(folders.folder_of(config.run.model_dir), keep=1)  # only read
        config, weights = resolve_initial_weights(config, checkpoints)
        network = network_on(config, mesh)
        if weights is not None:
            start_from(network, weights, *network.shapes())  # for its errors
        train_step_of(network, config, mesh)
        check_newest(config, network, checkpoints, source.class_names)
        step, position = _start(config, checkpoints)
        lengths = lengths_of(config)
        notes = [note] if (note := note_on_epochs(config, step, lengths.total, position)) else []
        if step >= lengths.total:
            return "\n".join([*notes, describe_end(config.run.model_dir, step, lengths.total)])
        lines = [*notes, describe_run(config, mesh, step, lengths.total, position)]
        if validation is not None:
            count = min(config.data.num_eval_images or len(validation), len(validation))
            lines.append(f"An evaluation on {count} images every {lengths.per_eval} steps")
        return "\n".join([*lines, f"Checkpoints every {lengths.per_save} steps in {config.run.model_dir}"])


def _start(config: Config, checkpoints: CheckpointStore) -> tuple[int, int]:
    """The step and the position to begin at: those of the newest checkpoint, ours or else the original's.

    As in training, a damaged checkpoint is skipped. Raises its error if there is no other.
    """
    damage = None
    for step in reversed(checkpoints.steps()):
        path = storage.join(checkpoints.directory, str(step))
        try:
            reading.stored_shapes(path)
            return step, reading.read_meta(path)["position"]
        except reading.DamagedCheckpointError as error:
            log.warning("Checkpoint %s cannot be read and would be skipped: %s", path, error.got)
            damage = error
    if damage:
        raise damage
    prefix = tf1.find_checkpoint(config.run.model_dir)
    step = int(read_bundle(prefix, [STEP]).get(STEP, 0)) if prefix else 0
    return step, step * config.train.train_batch_size
