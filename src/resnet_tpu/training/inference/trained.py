"""A trained network as read back from its checkpoint: arrays, options, class names."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from jax.sharding import Mesh

from resnet_tpu import storage
from resnet_tpu.checkpoints import reading
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.data.class_names import completed
from resnet_tpu.models.arrays import Arrays, first_not_finite
from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.parallel import hosts, meshes, placement


@dataclass(frozen=True)
class Trained:
    """The network of one checkpoint, on the devices of `mesh`."""

    path: str
    step: int
    config: Config
    class_names: list[str]
    network: Network
    params: Arrays
    batch_stats: Arrays
    mesh: Mesh

    def advice(self) -> str:
        """What to do if its outputs are not finite."""
        return advice_on({"params": self.params, "batch_stats": self.batch_stats}, self.config.model.precision)

    def belongs_to(self, model_dir: str) -> bool:
        """Whether it belongs to the run `model_dir`. False if that is a checkpoint, to which nothing may be added."""
        return self.path.startswith(storage.absolute(model_dir) + "/")


def data_for_network(data: DataConfig, network_data: DataConfig, *, also: Collection[str] = ()) -> DataConfig:
    """The options `data` with the image size and the number of classes of the network.

    network_data: the data options that the network was trained with. `data_dir` is taken from them too if `data` has
    none. also: names of further options to take from them.
    """
    fixed = {name: getattr(network_data, name) for name in ("image_size", "num_label_classes", *also)}
    return dataclasses.replace(data, data_dir=data.data_dir or network_data.data_dir, **fixed)


def is_elsewhere(data: DataConfig, run_data: DataConfig) -> bool:
    """Whether the images of `data` lie elsewhere than those of the run."""
    return storage.resolved(data.location) != storage.resolved(run_data.location)


def load_newest(config: Config) -> Trained:
    """The newest network of `model_dir`, as `predict` and `export` use it; see `load_trained`."""
    mesh = meshes.make_mesh(config.run.num_cores)
    return load_trained(config.run.model_dir, mesh, moving_average=config.eval.export_moving_average)


def load_trained(path: str, mesh: Mesh, *, moving_average: bool = True) -> Trained:
    """The network of a checkpoint, or of the newest one of a `model_dir`. Raises UserError when there is none.

    Its arrays are the moving averages if the run kept them, unless `moving_average` is off. If training replaces the
    newest checkpoint by a newer one while it is being read, the newer one is used. With several processes, all must
    call this, and all read the checkpoint that the first one finds.
    """
    while True:
        checkpoint = hosts.from_first(lambda: reading.find(path))
        trained, damage = None, None
        try:
            trained = _load(checkpoint, mesh, moving_average=moving_average)
        except reading.DamagedCheckpointError as error:
            damage = error
        if not any(hosts.exchange(str(damage or ""))) and trained is not None:
            return trained
        if hosts.from_first(lambda: reading.find(path)) == checkpoint and damage is not None:
            raise damage


def _load(path: str, mesh: Mesh, *, moving_average: bool) -> Trained:
    meta = reading.read_meta(path)
    config = config_of(meta)
    network = network_of(config)
    shapes = placement.with_sharding(network.shape_trees(), meshes.replicated(mesh))
    if moving_average and config.optimizer.keeps_average:
        checkpoint = reading.load(path, {"ema": shapes})
        arrays = checkpoint.arrays["ema"]
    else:
        checkpoint = reading.load(path, shapes)
        arrays = checkpoint.arrays
    names = completed(meta["class_names"], network.num_classes)
    return Trained(path, checkpoint.step, config, names, network, arrays["params"], arrays["batch_stats"], mesh)


def advice_on(weights: Arrays, precision: str) -> str:
    """What to do if a network's outputs, computed in `precision`, are not finite."""
    if name := first_not_finite(weights):
        return f"The weights are not finite either ({name}): take an earlier checkpoint, and lower base_learning_rate."
    also = "" if precision == "float32" else ", or train with precision=float32"
    return f"The weights are finite, but too large: take an earlier checkpoint, lower base_learning_rate{also}."
