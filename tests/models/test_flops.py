"""Multiply-adds per kernel: totals equal known ones, and counts equal those of the products in the traced network."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from resnet_tpu.models.flops import forward_flops, multiply_adds
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config


def network(image_size: int = 32, num_classes: int = 10, **options: Any) -> Network:
    config = Config().replace(**({"resnet_width": 8} | options))
    return create_network(config.model, num_classes=num_classes, image_size=image_size)


def test_flops_are_those_that_are_known() -> None:
    known = network(224, 1000, resnet_width=None)
    assert forward_flops(known) == 2 * 4_089_184_256  # torchvision's and timm's count of ResNet-50 v1.5, 4.09 G


def test_more_classes_cost_a_product_with_each_feature() -> None:
    wide, small = (network(num_classes=classes) for classes in (20, 10))
    assert forward_flops(wide) - forward_flops(small) == 2 * 10 * 256


@pytest.mark.parametrize(
    ("image_size", "options"),
    [
        (32, {"resnet_depth": 20, "resnet_width": None}),
        (37, {"resnet_depth": 18}),
        (70, {"resnet_depth": 34, "project_first_group": False, "use_resnetd_stem": True, "resnetd_shortcut": True}),
        (75, {"resnet_depth": 50, "use_resnetd_stem": True, "resnetd_shortcut": True, "se_ratio": 0.25}),
        (64, {"resnet_depth": 50, "replace_stem_max_pool": True, "pre_activation": True, "norm_act_layer": "bn_relu"}),
        (32, {"resnet_depth": 20, "inner_channels": "3,5,7,9,11,13,1,2,4"}),
    ],
)
def test_each_count_is_that_of_the_traced_network(image_size: int, options: dict[str, Any]) -> None:
    net = network(image_size, **options)
    assert sorted(multiply_adds(net).values()) == sorted(traced(net))


def traced(net: Network) -> list[int]:
    """Multiply-adds of each product that evaluating one image computes."""
    images = jax.ShapeDtypeStruct((1, net.image_size, net.image_size, 3), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda *arrays: net.apply(*arrays, train=False)[0])(*net.shapes(), images)
    return list(products(jaxpr.jaxpr))


def products(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        result = math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "conv_general_dilated":
            kernel, layout = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec
            yield result * math.prod(kernel) // kernel[layout[0]]
        elif equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            yield result * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        else:
            inner = (equation.params.get(name) for name in ("jaxpr", "call_jaxpr"))
            for one in inner:
                if one is not None:
                    yield from products(getattr(one, "jaxpr", one))
