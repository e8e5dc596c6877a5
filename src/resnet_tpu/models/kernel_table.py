"""The seam between the network and other ways of computing its layers in training.

The functions of `models.layers` define what each layer computes. For the layers that take most of the time, the network
first asks a table of kernels for another function: see `docs/kernels.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax

from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.layers import ConvNorm, Statistics


class ConvNormKernel(Protocol):
    """A convolution, its batch norm, and the ReLU and the max-pool after them where there are any."""

    def __call__(
        self, x: jax.Array, layer: ConvNorm, *, stride: int, num_groups: int, relu: bool, pool: PoolPadding | None
    ) -> tuple[jax.Array, Statistics] | None:
        """x [n, h, w, in] -> (result [n, h', w', out], the convolution's statistics); None for what it cannot do."""
        ...


class AddReluKernel(Protocol):
    """The end of a residual block."""

    def __call__(self, branch: jax.Array, shortcut: jax.Array) -> jax.Array | None:
        """relu(branch + shortcut), [n, h, w, c] each; None for what it cannot do."""
        ...


class BlockKernel(Protocol):
    """A residual block whose branch is convolutions with batch norms and nothing else."""

    def __call__(
        self, x: jax.Array, branch: Sequence[ConvNorm], projection: ConvNorm | None, *, stride: int, num_groups: int
    ) -> tuple[jax.Array, list[Statistics]] | None:
        """x [n, h, w, in] -> (result [n, h/stride, w/stride, out], the statistics of each convolution in that order).

        A ReLU follows each convolution of the branch but the last, and the sum. The first 3x3 convolution and the
        projection, 1x1, have the stride. None for what it cannot do.
        """
        ...


def _none(*_: object, **__: object) -> None:
    """Handles nothing: the network computes the plain layers."""


@dataclass(frozen=True)
class Kernels:
    """Functions that a training step calls in place of the plain layers. Where one returns None, those are used."""

    name: str = "plain"
    conv_norm: ConvNormKernel = _none
    add_relu: AddReluKernel = _none
    block: BlockKernel = _none


PLAIN = Kernels()
"""The layers of `models.layers` alone: the reference for all others."""
