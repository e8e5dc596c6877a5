"""Pruned weights in training: a mask beside each kernel that was pruned, and what it masks is 0.

Masks are nested as the parameters are, but hold only the leaves that are masked: bool, of the shape of their kernel.
"""

from resnet_tpu.models.network import Arrays


def apply_masks(params: Arrays, masks: Arrays) -> Arrays:
    """`params` with each leaf that has a mask times that mask; NumPy or JAX, inside jit too.

    In the loss it keeps a masked weight that is 0 at 0: no gradient gets through, weight decay and a momentum that is
    0 as well move nothing.
    """

    def masked(name: str, value: Arrays) -> Arrays:
        mask = masks.get(name)
        if mask is None:
            return value
        return apply_masks(value, mask) if isinstance(value, dict) else value * mask.astype(value.dtype)

    return {name: masked(name, value) for name, value in params.items()}
