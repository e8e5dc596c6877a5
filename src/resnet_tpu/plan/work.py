"""How much arithmetic a network is: the multiplications and additions of its matrix products."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from resnet_tpu.models.network import Network

TRAINING = 3
"""Forward passes that a training step is worth: its backward pass computes two products for each of the forward's."""


def forward_flops(network: Network) -> int:
    """FLOPs of the convolutions and the classifier for one image: two for each multiplication with its addition.

    ResNet-50 at 224 px: 8.2e9. Nothing else is counted, as usual for the utilisation of matrix units.
    """
    side = network.image_size
    images = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    traced = jax.make_jaxpr(lambda *arrays: network.apply(*arrays, train=False)[0])(*network.shapes(), images)
    return _count(traced.jaxpr)


def _count(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            _, kernel = (operand.aval.shape for operand in equation.invars)
            layout = equation.params["dimension_numbers"].rhs_spec  # (features out, in, rows, columns)
            products = math.prod(kernel) // kernel[layout[0]]  # for one number of the result
            total += 2 * math.prod(equation.outvars[0].aval.shape) * products
        elif equation.primitive.name == "dot_general":
            left = equation.invars[0].aval.shape
            (contracted, _), _ = equation.params["dimension_numbers"]
            products = math.prod(left[axis] for axis in contracted)
            total += 2 * math.prod(equation.outvars[0].aval.shape) * products
        else:
            inner = (equation.params.get(name) for name in ("jaxpr", "call_jaxpr"))
            total += sum(_count(getattr(one, "jaxpr", one)) for one in inner if one is not None)
    return total
