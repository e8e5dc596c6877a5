"""Chooses the kernels that a training run uses."""

import jax.numpy as jnp
from jax.sharding import Mesh

from resnet_tpu.errors import UserError
from resnet_tpu.kernels import native
from resnet_tpu.kernels.cpu import CPU
from resnet_tpu.kernels.fused import FUSED
from resnet_tpu.kernels.gpu import GPU
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.options.config import ModelConfig

KERNELS: dict[str, Kernels] = {"plain": PLAIN, "cpu": CPU, "gpu": GPU, "fused": FUSED}
"""Kernels by name."""


def choose_kernels(model: ModelConfig, mesh: Mesh) -> Kernels:
    """The kernels that the option `kernels` names; for `auto`, the default for these devices, used if none were timed.

    Raises UserError when these devices cannot run the kernels named.
    """
    name = _for_devices(model.precision, mesh) if model.kernels == "auto" else model.kernels
    if why := why_not(name, model.precision, mesh):
        able = [other for other in KERNELS if not why_not(other, model.precision, mesh)]
        expected = f"one of auto, {', '.join(able)} here"
        raise UserError("kernels", name, expected, f"{why[0].upper()}{why[1:]}. Change the value.")
    return KERNELS[name]


def why_not(name: str, precision: str, mesh: Mesh) -> str:
    """Why the kernels `name` cannot be used to train on these devices; empty if they can."""
    if name not in ("cpu", "gpu"):
        return ""
    if (platform := mesh.devices.flat[0].platform) != name:
        return f"kernels {name} are for a {name.upper()}, but this is a {platform}"
    if name == "gpu":
        return ""
    if mesh.devices.size > 1:  # the partitioner cannot split the library's layers
        return f"kernels {name} are for one device, but there are {mesh.devices.size}"
    types = native.load()
    if not types:
        return "the library in C is not available; resnet-tpu doctor says why"
    if jnp.dtype(precision).name not in types:
        return f"the library in C lacks {precision} on this processor; --precision={min(types)} is faster here"
    return ""


def _for_devices(precision: str, mesh: Mesh) -> str:
    """The default: `cpu`, which was measured, where it can run; else the plain layers, which define the results."""
    return "plain" if why_not("cpu", precision, mesh) else "cpu"
