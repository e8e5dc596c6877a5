"""Variables of the original's pruning fork: translates their names, and applies their masks.

The convolutions are `conv_J_w` and, where a shortcut is projected, `proj_J_P_w`: J counts the convolutions that are not
projections, P all of them, both from 1. Each has a mask, whose name ends in `_m`. CIFAR networks are below
`resnet_model/`.
"""

import bisect
import re
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from resnet_tpu.errors import UserError

_SCOPE = "resnet_model/"
_MASK = "mask"
_LEAVES = {"w": "kernel", "b": "bias", "m": _MASK}
_NAME = re.compile(
    r"(?:conv_(?P<conv>\d{1,9})|proj_(?P<next>\d{1,9})_(?P<position>\d{1,9})|dense)_(?P<leaf>[wbm])(?P<suffix>/.+)?"
)

AnyVariable = TypeVar("AnyVariable")


def rename(variables: Mapping[str, AnyVariable]) -> dict[str, AnyVariable]:
    """`variables` by their names in the original: `conv_1_w/Momentum` is `conv2d/kernel/Momentum`.

    The original has no masks; `conv_1_m` is called `conv2d/mask`. Other names stay as they are.
    """
    names = {name: name.removeprefix(_SCOPE) for name in variables}
    matches = {name: match for name, short in names.items() if (match := _NAME.fullmatch(short))}
    projections = sorted({int(match["next"]) for match in matches.values() if match["next"]})
    for name, match in matches.items():
        if match["conv"]:
            before = bisect.bisect_right(projections, int(match["conv"]))
            layer = _layer(int(match["conv"]) - 1 + before)
        else:
            layer = _layer(int(match["position"]) - 1) if match["position"] else "dense"
        names[name] = f"{layer}/{_LEAVES[match['leaf']]}{match['suffix'] or ''}"
    return {names[name]: variable for name, variable in variables.items()}


def _layer(number: int) -> str:
    return f"conv2d_{number}" if number else "conv2d"


def masks_by_layer(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The masks among `variables`, by the original's names of their layers, such as `conv2d_1`."""
    renamed = rename(variables)
    return {name.removesuffix(f"/{_MASK}"): mask for name, mask in renamed.items() if name.endswith(f"/{_MASK}")}


def masked_variables(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`variables` by the original's names, without the masks; kernels and their copies are 0 where masked.

    Copies are averages and the optimizer's slots: no masked weight may move. A product with the mask would not do: it
    is -0 or nan for some values, which `sparse` does not pack. Raises UserError when a mask has another shape than its
    kernel.
    """
    renamed = rename(variables)
    masks = {f"{layer}/kernel": mask for layer, mask in masks_by_layer(variables).items()}
    masked: dict[str, np.ndarray] = {}
    for name, array in renamed.items():
        if name.endswith(f"/{_MASK}"):
            continue
        mask = masks.get("/".join(name.split("/")[:2]))
        if mask is not None and mask.shape != array.shape:
            got = f"shape {list(mask.shape)}"
            raise UserError(f"Mask of {name}", got, f"{list(array.shape)}", "Give another checkpoint.")
        masked[name] = array if mask is None else np.where(mask.astype(bool), array, array.dtype.type(0))
    return masked
