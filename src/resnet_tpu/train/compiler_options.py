"""What the compiler is told of a step, beside the step itself."""

from typing import Any

VMEM_KIB: dict[str, int] = {
    "TPU v5": 49152,
    "TPU v5p": 49152,
    "TPU v5 lite": 49152,
    "TPU v5e": 49152,
    "TPU v6 lite": 65536,
    "TPU v6e": 65536,
}
"""By `device_kind`: KiB of a core's vector memory that one operation may hold.

The compiler's own choice leaves most of it to values that stay there between operations. Those of a convolution network
are too large for that, and the step gains 3 to 9 % by larger windows (benchmarks/tpu_step.md).
"""

_ADD_UP_PRODUCTS = "xla_tpu_enable_multi_level_output_dot_dot_fusion"
"""Two convolutions that add up are one operation, else the result of one is written and read again: so the gradients
by a block's first convolution and by its projection. Not the compiler's own choice; on a v5e the step gains 10 %."""

_SLICES_OF_A_PREFETCH = "xla_tpu_sliced_prefetch_max_slices"
"""In how many slices a value may be fetched into a chip's fast memory ahead of its use; 0: as a whole. By that a v4's
step gains 0.7 %, and a v6e's loses 1 %."""


def compiler_options_for(device: Any) -> dict[str, str] | None:
    """The compiler's options for a step of training on such a device; None: its own choices."""
    if device.platform != "tpu":
        return None
    options = {_ADD_UP_PRODUCTS: "true"}
    if device.device_kind == "TPU v4":
        options[_SLICES_OF_A_PREFETCH] = "0"
    if size := VMEM_KIB.get(device.device_kind):
        options["xla_tpu_scoped_vmem_limit_kib"] = str(size)
    return options
