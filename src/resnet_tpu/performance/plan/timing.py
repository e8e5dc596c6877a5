"""The time of a step: on TPUs the compiler's estimate plus what it leaves out, on GPUs a lower bound."""

from collections.abc import Iterable
from dataclasses import dataclass

from resnet_tpu.performance.plan.hlo import COLLECTIVES
from resnet_tpu.performance.plan.operations import Operation
from resnet_tpu.performance.plan.topology import Topology


@dataclass(frozen=True)
class Timing:
    """Seconds of a step, one operation after the other. On GPUs the compiler estimates no time; the rest is a bound."""

    compiler: float  # the compiler's cycles divided by the clock rate
    memory: float  # operations without an estimate of cycles: their bytes at the memory's full rate
    network: float  # transfers between chips, likewise: their bytes at the network's full rate
    peak: float  # the network's multiplications and additions at the peak of the matrix units

    @property
    def total(self) -> float:
        """The sum, but at least the time that the matrix units need."""
        return max(self.compiler + self.memory + self.network, self.peak)


def time_step(operations: Iterable[Operation], topology: Topology, flops: float = 0.0) -> Timing:
    """The time of these operations on a device of the slice. flops: those of the network within these operations."""
    cycles, moved, sent = 0, 0, 0.0
    for operation in operations:
        if operation.cycles is not None:
            cycles += operation.cycles
        elif operation.kind in COLLECTIVES:
            sent += operation.bytes * _share_sent(operation.kind, topology.chips)
        else:
            moved += operation.bytes
    generation = topology.generation
    return Timing(
        cycles / generation.clock, moved / topology.device_bandwidth, sent / generation.network_bandwidth,
        flops / topology.device_flops,
    )  # fmt: skip


def _share_sent(kind: str, chips: int) -> float:
    """Bytes that each chip must send for each byte of the result; an all-reduce scatters, then gathers."""
    return (2 if kind == "all-reduce" else 1) * (chips - 1) / chips
