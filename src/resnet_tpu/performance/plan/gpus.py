"""NVIDIA's GPUs: their rates, and their descriptions for XLA, which cannot query a GPU that is not attached."""

from resnet_tpu.performance.plan.generations import GB, Generation
from resnet_tpu.system.accelerators import find_gpu_peak

_COUNTS = ("1", "2", "4", "8")
"""Possible numbers of GPUs in a machine, connected by NVLink."""

PREALLOCATED = 0.75
"""Fraction of a GPU's memory that JAX reserves at its start for programs (XLA_PYTHON_CLIENT_MEM_FRACTION)."""

_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  core_count: {cores} fpus_per_core: {units} clock_rate_ghz: {ghz} l2_cache_size: {cache}
  shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {block}
  memory_bandwidth: {bandwidth} device_memory_size: {memory} cuda_compute_capability {{ major: {major} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""
"""A `GpuTargetConfigProto` in text. The figures are those that openxla/xla publishes for these devices in
xla/backends/gpu/target_config/specs/; the versions are those of the H200 there."""

_HOPPER = {"cores": 132, "units": 128, "ghz": 1.98, "cache": 52428800, "shared": 233472, "block": 232448, "major": 9}
_AMPERE = {"cores": 108, "units": 64, "ghz": 1.41, "cache": 41943040, "shared": 167936, "block": 166912, "major": 8}


def _gpu(name: str, kind: str, chip: dict[str, float], *, memory: int, bandwidth: int, network: float) -> Generation:
    peak = find_gpu_peak(kind)
    assert peak
    return Generation(
        name, devices=1, clock=chip["ghz"] * 1e9, peak_flops=peak, memory=memory, usable_memory=PREALLOCATED * memory,
        memory_bandwidth=bandwidth, network_bandwidth=network, shapes=_COUNTS, cores=1,
        target=_TARGET.format(name=kind, memory=memory, bandwidth=bandwidth, **chip),
    )  # fmt: skip


_TABLE = (
    _gpu("h200", "NVIDIA H200", _HOPPER, memory=151397597184, bandwidth=4_800_000_000_000, network=450 * GB),
    _gpu("h100", "NVIDIA H100 80GB HBM3", _HOPPER, memory=84942979072, bandwidth=3_352_320_000_000, network=450 * GB),
    _gpu("a100", "NVIDIA A100-SXM4-80GB", _AMPERE, memory=85100068864, bandwidth=2_039_040_000_000, network=300 * GB),
)

GPUS: dict[str, Generation] = {found.name: found for found in _TABLE}
"""By name, with NVLink (SXM). Links: NVIDIA's data sheets."""
