"""What the compiler is told of a step, beside the step itself."""

from typing import Any

VMEM_KIB = {"TPU v5": 65536, "TPU v5p": 65536}
"""By `device_kind`: KiB of a core's vector memory that one operation may hold.

The compiler's own choice leaves most of it to values that stay there between operations. Those of a convolution network
are too large for that, and on a v5p its step gains 7 % by larger windows. On v5e the same gains 2 %, not worth three
times the compiler's time (benchmarks/tpu_step.md).
"""


def compiler_options_for(device: Any) -> dict[str, str] | None:
    """The compiler's options for a step of training on such a device; None: its own choices."""
    size = VMEM_KIB.get(device.device_kind)
    return {"xla_tpu_scoped_vmem_limit_kib": str(size)} if size else None
