"""Peak rates and sizes of the TPU generations, per chip."""

from dataclasses import dataclass

GB, GIB = 1e9, 2**30


@dataclass(frozen=True)
class Generation:
    """A generation of TPU, or a GPU. All rates and sizes are per chip; peaks are for bfloat16."""

    name: str
    devices: int  # that JAX sees in a chip: its cores on v2 and v3, the chip on v4 and later
    clock: float  # Hz
    peak_flops: float  # per second
    memory: float  # bytes
    usable_memory: float  # bytes that the compiler gives to programs; it reserves the rest
    memory_bandwidth: float  # bytes/s
    network_bandwidth: float  # bytes/s to other chips of the slice, in one direction, over all links
    chip_config: str  # tells the compiler which devices JAX sees
    target: str = ""  # of a GPU: its description for XLA; empty for a TPU
    most_on_a_host: int = 4  # chips of the largest slice with a single host


_TABLE = (
    Generation("v2", 2, 0.70e9, 46e12, 16 * GIB, 2 * 7.48 * GIB, 700 * GB, 248 * GB, "default"),
    Generation("v3", 2, 0.94e9, 123e12, 32 * GIB, 2 * 15.48 * GIB, 900 * GB, 328 * GB, "default"),
    Generation("v4", 1, 1.05e9, 275e12, 32 * GIB, 30.75 * GIB, 1228 * GB, 300 * GB, "megacore"),
    Generation("v5e", 1, 1.50e9, 197e12, 16 * GIB, 15.75 * GIB, 819 * GB, 200 * GB, "default", most_on_a_host=8),
    Generation("v5p", 1, 1.75e9, 459e12, 95 * GIB, 95.73 * GIB, 2765 * GB, 600 * GB, "default"),
    Generation("v6e", 1, 1.75e9, 918e12, 32 * GIB, 31.24 * GIB, 1640 * GB, 400 * GB, "default", most_on_a_host=8),
)

GENERATIONS: dict[str, Generation] = {found.name: found for found in _TABLE}
"""By name. Sources:

* peaks, memory, bandwidths and hosts: "System architecture" and the page of each generation in the documentation of
  Cloud TPU (cloud.google.com/tpu/docs/system-architecture-tpu-vm);
* clocks and links of v2 and v3: Norrie et al., "The Design Process for Google's Training Chips: TPUv2 and TPUv3",
  IEEE Micro 41(2), 2021; of v4: arXiv:2304.01433, table 4; of v5e: the book "How to Scale Your Model"
  (jax-ml.github.io/scaling-book/tpus); of v5p and v6e: the peak divided by the matrix units' operations per cycle;
* usable memory: the limits in libtpu 0.0.51's error messages for programs that do not fit.

With these clocks, the compiler's cycles of a large matrix product come to 88 to 98 % of the peaks; to 70 % on v6e.
"""
