"""The layers of a network, each with the name by which it finds its arrays."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from resnet_tpu.models import dropping, evonorm, layers
from resnet_tpu.models.architecture import Architecture, PoolPadding
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.models.layers import ConvNorm, Statistics
from resnet_tpu.models.named_arrays import NamedArrays

_EVONORM_MOMENTUM = 0.9  # as in the original, whatever `bn_momentum` is


@dataclass(frozen=True)
class Training:
    """The random key of a training step, and the progress of training. In evaluation, layers get None instead.

    key: the step's own; may be None for a network that draws no random numbers. progress: fraction of all steps done,
    float32 [].
    """

    key: jax.Array | None = None
    progress: jax.Array | float = 0.0

    def key_of(self, site: int) -> jax.Array:
        """The key of one site of the network, by its number (see `Architecture.first_site`): each draws independently.

        Raises ValueError when the step has no key.
        """
        if self.key is None:
            raise ValueError("key: got None, expected a key, for this network draws random numbers in training")
        return jax.random.fold_in(self.key, site)


class NamedLayers:
    """The layers of one network during one call.

    Activations are [n, h, w, c] in `dtype`, arrays float32. `training` is None in evaluation. In training, batch norms
    normalise by the batch's statistics, and update the running ones in `arrays`.
    """

    def __init__(
        self,
        architecture: Architecture,
        dtype: DTypeLike,
        arrays: NamedArrays,
        *,
        training: Training | None = None,
        kernels: Kernels = PLAIN,
    ) -> None:
        self.architecture = architecture
        self.dtype = dtype
        self.training = training
        self.outputs: dict[str, jax.Array] = {}
        """The outputs of the network's parts, by name, in order."""
        self.scope = arrays.scope
        """See `NamedArrays.scope`."""
        self._arrays = arrays
        self._kernels = kernels

    def conv(
        self, name: str, x: jax.Array, features: int, size: int, stride: int = 1, *, bias: bool = False
    ) -> jax.Array:
        """A `size` x `size` convolution, with or without a bias."""
        with self.scope(name):
            kernel = self._arrays.param("kernel", layers.draw_kernel, (size, size, x.shape[-1], features))
            x = layers.conv(x.astype(self.dtype), kernel, stride)
            return x + self._arrays.param("bias", layers.zeros, (features,)).astype(self.dtype) if bias else x

    def conv_norm(
        self,
        name: str,
        x: jax.Array,
        features: int,
        size: int,
        stride: int = 1,
        *,
        relu: bool = False,
        zero_scale: bool = False,
        pool: PoolPadding | None = None,
    ) -> jax.Array:
        """A convolution and its batch norm, then a ReLU and a max-pool if requested."""
        with self.scope(name):
            if self.training is not None:
                groups = self.architecture.batch_norm_groups
                found = self._kernels.conv_norm(
                    x.astype(self.dtype),
                    self._arrays_of_conv_norm(),
                    stride=stride,
                    num_groups=groups,
                    relu=relu,
                    pool=pool,
                )
                if found is not None:
                    y, statistics = found
                    self._update_statistics(statistics, "norm")
                    return y
            x = self.conv("conv", x, features, size, stride)
            x = self.batch_norm("norm", x, zero_scale=zero_scale)
            x = layers.relu(x) if relu else x
            return layers.max_pool(x, pool) if pool else x

    def conv_act(self, name: str, x: jax.Array, features: int, size: int, stride: int = 1) -> jax.Array:
        """A convolution, normalised and activated as `norm_act_layer` says."""
        if self.architecture.norm_act_layer == "bn_relu":
            return self.conv_norm(name, x, features, size, stride, relu=True)
        with self.scope(name):
            return self.norm_act("norm", self.conv("conv", x, features, size, stride))

    def conv_linear(
        self, name: str, x: jax.Array, features: int, size: int, stride: int = 1, *, zero_scale: bool = False
    ) -> jax.Array:
        """A convolution without activation, normalised unless the network is pre-activated."""
        if self.architecture.pre_activation:
            return self.conv(f"{name}/conv", x, features, size, stride)
        return self.conv_norm(name, x, features, size, stride, zero_scale=zero_scale)

    def block(self, x: jax.Array, stride: int) -> jax.Array | None:
        """In training, the result of a kernel for this whole residual block; None if there is no such kernel."""
        if self.training is None or not self.architecture.has_plain_branches:
            return None
        own = self._arrays.modules()
        branch = [name for name in ("conv1", "conv2", "conv3") if name in own]
        projection = "projection" if "projection" in own else None
        found = self._kernels.block(
            x.astype(self.dtype),
            [self._arrays_of_conv_norm(name) for name in branch],
            self._arrays_of_conv_norm(projection) if projection else None,
            stride=stride,
            num_groups=self.architecture.batch_norm_groups,
        )
        if found is None:
            return None
        y, every = found
        for name, statistics in zip([*branch, projection] if projection else branch, every, strict=True):
            self._update_statistics(statistics, f"{name}/norm")
        return y

    def add_relu(self, branch: jax.Array, shortcut: jax.Array) -> jax.Array:
        """The end of a block: relu(branch + shortcut)."""
        if self.training is not None and (y := self._kernels.add_relu(branch, shortcut)) is not None:
            return y
        return layers.relu(branch + shortcut)

    def norm_act(self, name: str, x: jax.Array) -> jax.Array:
        """The normalisation and activation that `norm_act_layer` names, before the convolutions."""
        kind = self.architecture.norm_act_layer
        return layers.relu(self.batch_norm(name, x)) if kind == "bn_relu" else self._evonorm(name, x, kind)

    def batch_norm(self, name: str, x: jax.Array, *, zero_scale: bool = False) -> jax.Array:
        """Batch norm by the batch's statistics in training, by the running ones in evaluation or if they are frozen.

        Training moves the running statistics towards the mean over the batch's groups, with the unbiased variance:
        `var <- momentum * var + (1 - momentum) * n/(n-1) * batch_var`.
        """
        with self.scope(name):
            features = x.shape[-1:]
            scale = self._arrays.param("scale", layers.zeros if zero_scale else layers.ones, features)
            bias = self._arrays.param("bias", layers.zeros, features)
            mean = self._arrays.stat("mean", layers.zeros, features)
            var = self._arrays.stat("var", layers.ones, features)
            if self._updates_statistics:
                statistics = layers.batch_statistics(x, self.architecture.batch_norm_groups)
                self._update_statistics(statistics)
                mean, var, _ = statistics
            return layers.batch_norm(x, scale, bias, mean, var)

    def _evonorm(self, name: str, x: jax.Array, kind: str) -> jax.Array:
        with self.scope(name):
            shape = (1, 1, 1, x.shape[-1])
            scale, bias = (
                self._arrays.param("scale", layers.ones, shape),
                self._arrays.param("bias", layers.zeros, shape),
            )
            arrays = evonorm.EvoNorm(scale, bias, self._arrays.param("v", layers.ones, shape))
            if kind == "evonorm_s0":
                return evonorm.evonorm_s0(x, arrays)
            var = self._arrays.stat("var", layers.ones, shape)
            if not self._updates_statistics:
                return evonorm.evonorm_b0(x, arrays, var)
            y, found = evonorm.evonorm_b0_by_batch(x, arrays, self.architecture.batch_norm_groups)
            self._arrays.set_stat("var", _interpolate(var, found, _EVONORM_MOMENTUM))
            return y

    def dense(self, name: str, x: jax.Array, features: int) -> jax.Array:
        """The classifier: x [n, in] -> float32 [n, features], whatever the dtype of the network."""
        with self.scope(name):
            kernel = self._arrays.param("kernel", layers.draw_dense_kernel, (x.shape[-1], features))
            return x.astype(jnp.float32) @ kernel + self._arrays.param("bias", layers.zeros, (features,))

    def dropblock(self, x: jax.Array, group: int, site: int) -> jax.Array:
        """DropBlock in `group`, counted from 1, in training. site: see `Training.key_of`."""
        fraction = self.architecture.dropblock_fraction(group)
        if self.training is None or fraction == 0:
            return x
        size, num_groups = self.architecture.dropblock_size, self.architecture.batch_norm_groups
        key, progress = self.training.key_of(site), self.training.progress
        return dropping.dropblock(x, key, progress, fraction=fraction, size=size, num_groups=num_groups)

    def drop_connect(self, x: jax.Array, group: int, site: int) -> jax.Array:
        """Drop connect at the end of a branch in `group`, counted from 1, in training. site: see `Training.key_of`."""
        rate = self.architecture.drop_connect_in(group)
        if self.training is None or rate == 0:
            return x
        return dropping.drop_connect(x, self.training.key_of(site), rate)

    def dropout(self, x: jax.Array, site: int) -> jax.Array:
        """Dropout before the classifier, in training. site: see `Training.key_of`."""
        rate = self.architecture.dropout_rate
        if self.training is None or rate == 0:
            return x
        return dropping.dropout(x, self.training.key_of(site), rate)

    @property
    def _updates_statistics(self) -> bool:
        """Whether norms use the batch's statistics and update the running ones."""
        return self.training is not None and not self.architecture.freeze_batch_norm

    def _arrays_of_conv_norm(self, name: str = "") -> ConvNorm:
        """The arrays of a convolution with batch norm in this scope."""
        prefix = f"{name}/" if name else ""
        kernel, scale, bias = (
            self._arrays.get("params", prefix + array) for array in ("conv/kernel", "norm/scale", "norm/bias")
        )
        if self._updates_statistics:
            return ConvNorm(kernel, scale, bias)
        mean, var = (self._arrays.get("batch_stats", f"{prefix}norm/{array}") for array in ("mean", "var"))
        return ConvNorm(kernel, scale, bias, (mean, var))

    def _update_statistics(self, statistics: Statistics, name: str = "") -> None:
        """Moves the running statistics of the batch norm `name` in this scope towards those of the batch."""
        if not self._updates_statistics:
            return
        prefix, count = f"{name}/" if name else "", statistics.positions
        unbiased = statistics.var.mean(0) * (count / max(count - 1, 1))
        for array, batch in (("mean", statistics.mean.mean(0)), ("var", unbiased)):
            running = self._arrays.get("batch_stats", prefix + array)
            self._arrays.set_stat(prefix + array, _interpolate(running, batch, self.architecture.bn_momentum))


def _interpolate(running: jax.Array, batch: jax.Array, momentum: float) -> jax.Array:
    return momentum * running + (1 - momentum) * jax.lax.stop_gradient(batch)
