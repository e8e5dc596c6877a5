"""Peak arithmetic rates of devices."""

from resnet_tpu.performance.plan.generations import GENERATIONS
from resnet_tpu.system.accelerators import TPU_GENERATIONS, find_gpu_peak


def find_peak(device_kind: str) -> float | None:
    """The peak FLOP/s in bfloat16 of one of JAX's devices, by its `device_kind`; None if unknown.

    A device is a core of a TPU v2 or v3, otherwise a chip.
    """
    if generation := GENERATIONS.get(TPU_GENERATIONS.get(device_kind, "")):
        return generation.peak_flops / generation.devices
    return find_gpu_peak(device_kind)
