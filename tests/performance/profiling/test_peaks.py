"""Peak speeds of devices, by the names that JAX gives them."""

import pytest

from resnet_tpu.performance.profiling.peaks import find_peak


@pytest.mark.parametrize(
    ("device_kind", "teraflops"),
    [
        ("TPU v2", 23), ("TPU v3", 61.5), ("TPU v4", 275), ("TPU v5 lite", 197), ("TPU v5p", 459), ("TPU v6 lite", 918),
        ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989), ("NVIDIA H200 NVL", 835), ("NVIDIA L4", 121), ("NVIDIA L40S", 362),
    ],
)  # fmt: skip
def test_known_devices(device_kind: str, teraflops: float) -> None:
    assert find_peak(device_kind) == teraflops * 1e12


@pytest.mark.parametrize(
    "device_kind", ["cpu", "NVIDIA GeForce GTX 1080", "TPU v9", "NVIDIA A10G", "NVIDIA L40", "NVIDIA RTX A1000"]
)
def test_others_are_not_known(device_kind: str) -> None:
    assert find_peak(device_kind) is None
