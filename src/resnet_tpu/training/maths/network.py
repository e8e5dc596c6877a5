"""The network that a run computes on its devices."""

from jax.sharding import Mesh

from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import division


def network_on(config: Config, mesh: Mesh) -> Network:
    """The network of a run whose counts are resolved, with batch norm in groups of the devices of `mesh`.

    Raises UserError if there is no such network, or the devices cannot be divided into such groups.
    """
    return network_of(config, batch_norm_groups=division.batch_norm_groups(config.model, mesh.devices.size))
