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
    shapes: tuple[str, ...]  # of its slices: how their chips are wired
    cores: int = 2  # of a chip, as the names of slices count them: v4-8 has 4 chips, v5e-8 has 8
    target: str = ""  # of a GPU: its description for XLA; empty for a TPU
    most_on_a_host: int = 4  # chips of the largest slice with a single host


# From 4 chips on, each has twice as many as the one before; the first grid has 1.
_GRIDS = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")

_TABLE = (
    Generation("v2", 2, 0.70e9, 46e12, 16 * GIB, 2 * 7.48 * GIB, 700 * GB, 248 * GB, "default", _GRIDS[1:8]),
    Generation("v3", 2, 0.94e9, 123e12, 32 * GIB, 2 * 15.48 * GIB, 900 * GB, 328 * GB, "default", _GRIDS[1:]),
    Generation("v4", 1, 1.05e9, 275e12, 32 * GIB, 30.75 * GIB, 1228 * GB, 300 * GB, "megacore", _CUBES),
    Generation(
        "v5e", 1, 1.50e9, 197e12, 16 * GIB, 15.75 * GIB, 819 * GB, 200 * GB, "default", _GRIDS[:8], cores=1,
        most_on_a_host=8,
    ),
    Generation("v5p", 1, 1.75e9, 459e12, 95 * GIB, 95.73 * GIB, 2765 * GB, 600 * GB, "default", _CUBES),
    Generation(
        "v6e", 1, 1.75e9, 918e12, 32 * GIB, 31.24 * GIB, 1640 * GB, 400 * GB, "default", _GRIDS[:8], cores=1,
        most_on_a_host=8,
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
