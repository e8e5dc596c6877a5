"""What the compiler is told of a step, beside the step itself."""

from typing import Any

_ADD_UP_PRODUCTS = {"xla_tpu_enable_multi_level_output_dot_dot_fusion": "true"}
"""Two convolutions that add up are one operation, else the result of one is written and read again: so the gradients
by a block's first convolution and by its projection. Not the compiler's own choice; on a v5e the step gains 10 %."""

_FETCH_WHOLE = {"xla_tpu_sliced_prefetch_max_slices": "0"}
"""Values that are fetched into a chip's fast memory ahead of their use come as a whole, not in slices. By that a v4's
step gains 0.7 %, and a v6e's loses 1 %."""


def _vector_memory(mib: int) -> dict[str, str]:
    """How much of a core's vector memory one operation may hold.

    The compiler's own choice leaves most of it to values that stay there between operations. Those of a convolution
    network are too large for that, and the step gains 3 to 9 % by larger windows (benchmarks/tpu_step.md).
    """
    return {"xla_tpu_scoped_vmem_limit_kib": str(mib * 1024)}


_BY_KIND = {
    "TPU v4": _FETCH_WHOLE,
    "TPU v5": _vector_memory(48),
    "TPU v5p": _vector_memory(48),
    "TPU v5 lite": _vector_memory(48),
    "TPU v5e": _vector_memory(48),
    "TPU v6 lite": _vector_memory(64),
    "TPU v6e": _vector_memory(64),
}
"""What a generation gains by, by `device_kind`."""


def compiler_options_for(device: Any) -> dict[str, str] | None:
    """The compiler's options for a step of training on such a device; None: its own choices."""
    if device.platform != "tpu":
        return None
    return _ADD_UP_PRODUCTS | _BY_KIND.get(device.device_kind, {})
