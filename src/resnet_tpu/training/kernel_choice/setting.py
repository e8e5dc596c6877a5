"""A way to compute a training step: its kernels and its compiler options."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from resnet_tpu.kernels.choose import KERNELS, why_not
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.training.compiler_options import compiler_options_for, required_options_for
from resnet_tpu.training.maths.step import TrainStep, train_step_of


@dataclass(frozen=True)
class KernelSetting:
    """The kernels of a training step, and whether the compiler is tuned."""

    kernels: str
    tuned_compiler: bool = False
    """Whether to set the compiler options that should make the step faster, by the compiler's own estimate. It has not
    been confirmed on any device, so only `tune` chooses this."""

    def __str__(self) -> str:
        return self.kernels + (", with compiler options" if self.tuned_compiler else "")

    def train_step(self, network: Network, config: Config, mesh: Mesh) -> TrainStep:
        """The training step of a run whose options are resolved, with these kernels and compiler options."""
        kernels, tuned = KERNELS[self.kernels], self.tuned_compiler
        return train_step_of(network, config, mesh, kernels=kernels, tuned_compiler=tuned)


def candidates(config: Config, mesh: Mesh) -> list[KernelSetting]:
    """All settings that are possible on these devices, the plain one first."""
    names = [name for name in KERNELS if not why_not(name, config.model.precision, mesh)]
    tunings = (False, True) if _has_options(mesh) else (False,)
    return [KernelSetting(name, tuned) for name in names for tuned in tunings]


def is_on_accelerator(mesh: Mesh) -> bool:
    """Whether the devices are TPUs or GPUs."""
    return mesh.devices.flat[0].platform != "cpu"


def stored_form(setting: KernelSetting, mesh: Mesh) -> dict[str, Any]:
    """The setting in the form in which a checkpoint keeps it."""
    return {**dataclasses.asdict(setting), "device": mesh.devices.flat[0].device_kind}


def setting_before(entry: dict[str, Any], config: Config, mesh: Mesh) -> KernelSetting | None:
    """The setting in a checkpoint's entry (see `stored_form`), if it was for devices of this kind and can run here."""
    is_for_such = entry.get("device") == mesh.devices.flat[0].device_kind
    return runnable(setting_from(entry), config, mesh) if is_for_such else None


def runnable(setting: KernelSetting | None, config: Config, mesh: Mesh) -> KernelSetting | None:
    """The stored setting, if there is one and these devices can run it."""
    if setting and not _has_options(mesh):  # older versions stored tuned_compiler=True even then
        setting = KernelSetting(setting.kernels)
    return setting if setting in candidates(config, mesh) else None


def setting_from(entry: dict[str, Any]) -> KernelSetting | None:
    """The setting in an entry of a checkpoint (see `stored_form`) or of `memory`; None if there is none."""
    kernels, tuned = entry.get("kernels"), entry.get("tuned_compiler")
    return KernelSetting(kernels, tuned) if isinstance(kernels, str) and isinstance(tuned, bool) else None


def _has_options(mesh: Mesh) -> bool:
    """Whether there are compiler options for these devices besides those that every program needs."""
    device = mesh.devices.flat[0]
    return compiler_options_for(device) != required_options_for(device)
