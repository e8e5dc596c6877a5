"""The interface of kernels: other ways to compute the layers of a network in training.

The functions of `models.layers` define what each layer computes. For the layers that take most of the time, the network
first tries the function in a table of kernels: see `docs/kernels.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax

from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.layers import ConvNorm, Statistics


class ConvNormKernel(Protocol):
    """A convolution and its batch norm, with the ReLU and the max-pool that may follow them."""

    def __call__(
        self, x: jax.Array, layer: ConvNorm, *, stride: int, num_groups: int, relu: bool, pool: PoolPadding | None
    ) -> tuple[jax.Array, Statistics] | None:
        """x [n, h, w, in] -> (result [n, h', w', out], the convolution's statistics); None if it cannot compute it."""
        ...


class AddReluKernel(Protocol):
    """The end of a residual block."""

    def __call__(self, branch: jax.Array, shortcut: jax.Array) -> jax.Array | None:
        """relu(branch + shortcut), [n, h, w, c] each; None if it cannot compute it."""
        ...


class BlockKernel(Protocol):
    """A residual block whose branch consists of convolutions with batch norms and nothing else."""

    def __call__(
        self, x: jax.Array, branch: Sequence[ConvNorm], projection: ConvNorm | None, *, stride: int, num_groups: int
    ) -> tuple[jax.Array, list[Statistics]] | None:
        """x [n, h, w, in] -> (result [n, h/stride, w/stride, out], the statistics of each convolution).

        The statistics are in the order of the branch, then of the projection. A ReLU follows each convolution of the
        branch except the last, and the sum. The first 3x3 convolution and the 1x1 projection have the stride. None if
        it cannot compute the block.
        """
        ...


def _none(*_: object, **__: object) -> None:
    """Handles nothing: the network computes the plain layers."""


@dataclass(frozen=True)
class Kernels:
    """Functions that a training step calls in place of the plain layers, which it falls back to if one returns None."""

    name: str = "plain"
    conv_norm: ConvNormKernel = _none
    add_relu: AddReluKernel = _none
    block: BlockKernel = _none


PLAIN = Kernels()
"""The layers of `models.layers` alone: the reference for all others."""
