"""Pruned weights in training: each pruned kernel has a mask, and the weights that it masks are 0.

Masks are nested like the parameters, but hold only the masked leaves: bool, each of the shape of its kernel.
"""

from typing import Any

import jax.numpy as jnp

from resnet_tpu.models.arrays import Arrays


def apply_masks(params: Arrays, masks: Arrays) -> Arrays:
    """`params` with 0 wherever a leaf's mask, if it has one, is False; also works inside jit.

    Applied to gradients, it keeps masked weights that are 0 at 0: neither weight decay nor a momentum of 0 moves them.
    Masking the weights themselves in each step would cost more, because convolutions would get another operand.
    """

    def masked(name: str, value: Any) -> Any:
        mask = masks.get(name)
        if mask is None:
            return value
        return apply_masks(value, mask) if isinstance(value, dict) else jnp.where(mask, value, 0)

    return {name: masked(name, value) for name, value in params.items()}
