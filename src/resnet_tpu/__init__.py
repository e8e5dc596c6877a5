"""Image classification with ResNets on TPU, GPU and CPU.

Everything in `resnet_tpu.api` is also available here, loaded on first use: `import resnet_tpu as rt`.
"""

# ruff: noqa: F403, F405

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resnet_tpu.api import *

__version__ = "0.1.0"

__all__ = [
    "Config", "Dataset", "DecodeError", "Example", "Experiment", "History", "Model", "NonFiniteError", "Predictions",
    "PrepareOptions", "UserError", "convert", "evaluate", "export", "fetch_flower_photos", "find_recipe",
    "find_topology", "follow_weights", "history", "load_classifier", "load_model", "open_bundle", "open_dataset",
    "plan", "predict", "prepare", "prune", "train", "write_digits",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers would then accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("resnet_tpu.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
