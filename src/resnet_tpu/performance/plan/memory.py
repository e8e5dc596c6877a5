"""The use of a device's memory."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from resnet_tpu.performance.plan.hlo import Computation, array_bytes

_OWNERS = {
    "params": "parameters",
    "opt_state": "optimizer",
    "batch_stats": "statistics",
    "ema": "statistics",
    "batch": "batch",
}


@dataclass(frozen=True)
class Memory:
    """Bytes on one device while a step runs."""

    parameters: int
    optimizer: int
    statistics: int  # of batch norm, and moving averages
    batch: int
    activations: int  # all intermediate values of a step
    program: int
    other: int

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return sum(dataclasses.astuple(self))


def count_memory(entry: Computation, stats: Any) -> Memory:
    """The memory of a step, from its arguments and from `compiled.memory_analysis()`.

    Arguments are distinguished by their names in `make_train_step` and `make_eval_step`.
    """
    sizes = dict.fromkeys([*_OWNERS.values(), "other"], 0)
    for instruction in entry.values():
        if instruction.opcode == "parameter":
            sizes[owner_of(instruction.op_name)] += array_bytes(instruction.shape)
    kept = stats.output_size_in_bytes - stats.alias_size_in_bytes
    sizes["other"] += stats.argument_size_in_bytes - sum(sizes.values()) + kept
    return Memory(**sizes, activations=stats.temp_size_in_bytes, program=stats.generated_code_size_in_bytes)


def owner_of(argument: str) -> str:
    """The field of `Memory` that an argument such as `state.opt_state[0].trace['dense']['bias']` belongs to."""
    first = re.split(r"[.\[]", argument.removeprefix("state."), maxsplit=1)[0]
    return _OWNERS.get(first, "other")
