"""Peak arithmetic rates of devices."""

import re

from resnet_tpu.performance.plan.generations import GENERATIONS

_TPUS = {
    "TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p",
    "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e",
}  # fmt: skip
"""Generations by JAX's names of their devices."""

_GPUS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200 NVL": 835e12, "H200": 989e12, "B200": 2250e12,
    "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12,
}  # fmt: skip
"""FLOP/s in bfloat16, not counting sparsity, by whole words of the name, longer ones first. Source: NVIDIA's data
sheets."""


def find_peak(device_kind: str) -> float | None:
    """The peak FLOP/s in bfloat16 of one of JAX's devices, by its `device_kind`; None if unknown.

    A device is a core of a TPU v2 or v3, otherwise a chip.
    """
    if generation := GENERATIONS.get(_TPUS.get(device_kind, "")):
        return generation.peak_flops / generation.devices
    return next((peak for name, peak in _GPUS.items() if re.search(rf"\b{name}\b", device_kind)), None)
