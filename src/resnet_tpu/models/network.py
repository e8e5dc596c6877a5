"""A network as a pure function of its arrays."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from resnet_tpu import distributed
from resnet_tpu.config import Config, ModelConfig
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.registry import find_architecture
from resnet_tpu.models.resnet import ResNet
from resnet_tpu.models.training import Training


@dataclass(frozen=True)
class Network:
    """The structure of a network, split from its arrays outside the training loop."""

    _graph: nnx.GraphDef
    _params: nnx.State
    _batch_stats: nnx.State
    model: ModelConfig
    num_classes: int
    image_size: int
    needs_key: bool
    """Whether `apply` draws random numbers in training."""

    @classmethod
    def create(
        cls,
        model: ModelConfig,
        *,
        num_classes: int,
        image_size: int,
        batch_norm_groups: int = 1,
        device_kind: str = "",
        num_devices: int = 1,
    ) -> "Network":
        """The network that the options ask for; see `build_model`. Computes nothing.

        device_kind: of the devices that will train it, as `jax.Device.device_kind` says, and how many they are: another
        kind, or none, costs time, but does no harm. The number on a CPU has to be right.
        """
        module = nnx.eval_shape(
            lambda: build_model(
                model,
                num_classes=num_classes,
                image_size=image_size,
                seed=None,
                batch_norm_groups=batch_norm_groups,
                device_kind=device_kind,
                num_devices=num_devices,
            )
        )
        graph, params, batch_stats = nnx.split(module, nnx.Param, nnx.BatchStat)
        needs_key = find_architecture(model, image_size=image_size).is_random
        return cls(graph, params, batch_stats, model, num_classes, image_size, needs_key)

    def init(self, seed: int) -> tuple[Arrays, Arrays]:
        """Initial (params, batch_stats), float32, drawn from `seed`: the same on any device."""
        module = build_model(self.model, num_classes=self.num_classes, image_size=self.image_size, seed=seed)
        _, params, batch_stats = nnx.split(module, nnx.Param, nnx.BatchStat)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(batch_stats)

    def shapes(self) -> tuple[Arrays, Arrays]:
        """(params, batch_stats) as `jax.ShapeDtypeStruct`s."""
        return nnx.to_pure_dict(self._params), nnx.to_pure_dict(self._batch_stats)

    def apply(
        self,
        params: Arrays,
        batch_stats: Arrays,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
        progress: jax.Array | float = 0.0,
    ) -> tuple[jax.Array, Arrays]:
        """Normalised images [n, h, w, 3] -> (logits float32 [n, num_classes], the batch statistics afterwards).

        In training, `key` is the step's own and `progress` the share of all steps done, float32 []; see `Training`.
        Raises ValueError when training needs a key and gets none.
        """
        states = []
        for template, arrays in ((self._params, params), (self._batch_stats, batch_stats)):
            state = jax.tree.map(lambda leaf: leaf, template)  # a copy, for the next line writes into it
            nnx.replace_by_pure_dict(state, arrays)
            states.append(state)
        module = nnx.merge(self._graph, *states, copy=True)
        logits = module(images, Training(key, progress) if train else None)
        return logits, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))


def network_of(config: Config, mesh: Mesh | None = None) -> Network:
    """The network of a run whose counts are resolved, as it trains on the devices of `mesh`, if there is one.

    Weights without a classifier are of a network with 0 classes. Raises UserError when there is no such network.
    """
    on_devices: dict[str, Any] = {}
    if mesh is not None:
        on_devices = {
            "batch_norm_groups": distributed.batch_norm_groups(config.model, mesh),
            "device_kind": mesh.devices.flat[0].device_kind,
            "num_devices": mesh.devices.size,
        }
    return Network.create(
        config.model,
        num_classes=config.data.num_label_classes or 0,
        image_size=config.data.image_size,
        **on_devices,
    )


def build_model(
    model: ModelConfig,
    *,
    num_classes: int,
    image_size: int,
    seed: int | None = 0,
    batch_norm_groups: int = 1,
    device_kind: str = "",
    num_devices: int = 1,
) -> ResNet:
    """A new network with initial weights drawn from `seed`: the same on any device. With None, kernels are zeros."""
    architecture = find_architecture(
        model,
        image_size=image_size,
        batch_norm_groups=batch_norm_groups,
        device_kind=device_kind,
        num_devices=num_devices,
    )
    rng = None if seed is None else np.random.default_rng(seed)
    return ResNet(architecture, num_classes, dtype=jnp.dtype(model.precision), rng=rng)
