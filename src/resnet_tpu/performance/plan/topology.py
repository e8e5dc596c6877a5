"""TPU slices, by the names that the compiler and Google Cloud give them, and the GPUs of one machine."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from resnet_tpu.errors import UserError, check_kind, nearest
from resnet_tpu.performance.plan.generations import GENERATIONS, Generation
from resnet_tpu.performance.plan.gpus import GPUS

_CHIPS_ON_A_HOST = 4  # in slices with several hosts


@dataclass(frozen=True)
class Topology:
    """A TPU slice, which is a grid of chips of one generation; or the GPUs of a machine, in a row."""

    generation: Generation
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The compiler's name, such as `v5e:2x4`; for GPUs `h200:8`."""
        return f"{self.generation.name}:{'x'.join(map(str, self.shape))}"

    @property
    def is_gpu(self) -> bool:
        """Whether these are GPUs."""
        return bool(self.generation.target)

    @property
    def chips(self) -> int:
        """The number of chips, which determines the price."""
        return math.prod(self.shape)

    @property
    def cores(self) -> int:
        """The number of cores, after which Google Cloud names the slice: v4-8 has 8 in 4 chips."""
        return self.chips * self.generation.cores

    @property
    def hosts(self) -> int:
        """The number of machines; training runs on each of them."""
        if self.is_gpu or self.chips <= self.generation.most_on_a_host:
            return 1
        return self.chips // _CHIPS_ON_A_HOST

    @property
    def devices(self) -> int:
        """The number of devices that JAX sees: cores on v2 and v3, else chips."""
        return self.chips * self.generation.devices

    @property
    def device_memory(self) -> float:
        """Bytes that a program may use on each device."""
        return self.generation.usable_memory / self.generation.devices

    @property
    def device_flops(self) -> float:
        """bfloat16 peak of each device, FLOP/s."""
        return self.generation.peak_flops / self.generation.devices

    @property
    def device_bandwidth(self) -> float:
        """Bytes/s between each device and its memory."""
        return self.generation.memory_bandwidth / self.generation.devices


def _by_name(generations: Mapping[str, Generation]) -> dict[str, Topology]:
    found = [Topology(one, tuple(map(int, shape.split("x")))) for one in generations.values() for shape in one.shapes]
    return {topology.name: topology for topology in found}


TPU_SLICES = _by_name(GENERATIONS)
"""All slices by the compiler's name, in the order of generation and size."""

_GPUS = _by_name(GPUS)
_OF_GOOGLE = {f"{found.generation.name}-{found.cores}": found for found in TPU_SLICES.values()}


def find_tpu_slice(name: str) -> Topology | None:
    """The slice called `name`: `v5e:2x4` as the compiler calls it, or `v3-32` as Google Cloud does.

    None for a name that is not a slice. Source: Cloud TPU's documentation of each generation.
    """
    name = name.replace("v5litepod", "v5e")
    return TPU_SLICES.get(name) or _OF_GOOGLE.get(name)


def find_topology(name: str) -> Topology:
    """The slice called `name`: `v5e:2x4` as in the compiler, or `v3-32` as in Google Cloud; or GPUs: `h200:8`.

    Raises UserError, naming those that exist, for any other name.
    """
    check_kind("topology", name, str, "Give its name: 'v5e-8'.")
    if topology := find_tpu_slice(name) or _GPUS.get(name):
        return topology
    known_names, name = [*TPU_SLICES, *_GPUS], name.replace("v5litepod", "v5e")
    generation = re.split("[:-]", name)[0]
    if generation not in GENERATIONS | GPUS:
        expected = f"a slice of {', '.join(GENERATIONS)} such as v5e:2x4 or v3-32, or {', '.join(GPUS)} such as h200:8"
        raise UserError("--topology", name, expected, f"Choose one.{nearest(name, known_names)}")
    sizes = ", ".join(slice_name for slice_name in known_names if slice_name.startswith(f"{generation}:"))
    raise UserError("--topology", name, f"one of {sizes}", f"Choose one.{nearest(name, known_names, count=1)}")


def smallest_like(topology: Topology) -> Topology:
    """A slice of four chips of the same generation."""
    return Topology(topology.generation, {1: (4,), 2: (2, 2), 3: (2, 2, 1)}[len(topology.shape)])
