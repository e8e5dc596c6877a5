"""TPUs and GPUs by the names that JAX gives them, their `device_kind`."""

import re

TPU_GENERATIONS = {
    "TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p",
    "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e",
}  # fmt: skip
"""The generation of each kind of TPU, as Google Cloud calls it."""

_GPU_PEAKS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200 NVL": 835e12, "H200": 989e12, "B200": 2250e12,
    "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12,
}  # fmt: skip
"""FLOP/s in bfloat16, not counting sparsity, by whole words of the name, longer ones first. Source: NVIDIA's data
sheets."""


def find_gpu_peak(device_kind: str) -> float | None:
    """The peak FLOP/s in bfloat16 of an NVIDIA GPU; None for an unknown one, and for other devices."""
    return next((peak for name, peak in _GPU_PEAKS.items() if re.search(rf"\b{name}\b", device_kind)), None)
