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
    shapes: tuple[str, ...]  # of its slices: how their chips are wired
    chip_config: str = "default"  # tells the compiler which devices JAX sees
    cores: int = 2  # of a chip, as the names of slices count them: v4-8 has 4 chips, v5e-8 has 8
    target: str = ""  # of a GPU: its description for XLA; empty for a TPU
    most_on_a_host: int = 4  # chips of the largest slice with a single host


# From 4 chips on, each has twice as many chips as the one before; the first grid has 1.
_GRIDS = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")

_TABLE = (
    Generation(
        "v2", devices=2, clock=0.70e9, peak_flops=46e12, memory=16 * GIB, usable_memory=2 * 7.48 * GIB,
        memory_bandwidth=700 * GB, network_bandwidth=248 * GB, shapes=_GRIDS[1:8],
    ),
    Generation(
        "v3", devices=2, clock=0.94e9, peak_flops=123e12, memory=32 * GIB, usable_memory=2 * 15.48 * GIB,
        memory_bandwidth=900 * GB, network_bandwidth=328 * GB, shapes=_GRIDS[1:],
    ),
    Generation(
        "v4", devices=1, clock=1.05e9, peak_flops=275e12, memory=32 * GIB, usable_memory=30.75 * GIB,
        memory_bandwidth=1228 * GB, network_bandwidth=300 * GB, shapes=_CUBES, chip_config="megacore",
    ),
    Generation(
        "v5e", devices=1, clock=1.50e9, peak_flops=197e12, memory=16 * GIB, usable_memory=15.75 * GIB,
        memory_bandwidth=819 * GB, network_bandwidth=200 * GB, shapes=_GRIDS[:8], cores=1, most_on_a_host=8,
    ),
    Generation(
        "v5p", devices=1, clock=1.75e9, peak_flops=459e12, memory=95 * GIB, usable_memory=95.73 * GIB,
        memory_bandwidth=2765 * GB, network_bandwidth=600 * GB, shapes=_CUBES,
    ),
    Generation(
        "v6e", devices=1, clock=1.75e9, peak_flops=918e12, memory=32 * GIB, usable_memory=31.24 * GIB,
        memory_bandwidth=1640 * GB, network_bandwidth=400 * GB, shapes=_GRIDS[:8], cores=1, most_on_a_host=8,
    ),
)  # fmt: skip

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
