"""Image classification with ResNets on TPU, GPU and CPU.

Everything in `resnet_tpu.api` is here too, and only loaded when it is used: `import resnet_tpu as rt`.
"""

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resnet_tpu.api import *  # noqa: F403

__version__ = "0.1.0"

_NAMES = (
    "Config", "Dataset", "Example", "Experiment", "History", "Model", "Predictions", "PrepareOptions", "UserError",
    "evaluate", "fetch_flower_photos", "find_recipe", "find_topology", "history", "load_classifier", "load_model",
    "open_bundle", "open_dataset", "predict", "prepare", "write_digits",
)  # fmt: skip
_PACKAGES = ("export", "plan", "prune", "train")
"""Names in the API that packages have too: these can be called."""


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("resnet_tpu.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])


class _Callable(types.ModuleType):
    """A package that is also the function of its name in the API."""

    @property
    def __wrapped__(self) -> Any:  # whose signature is shown
        return getattr(importlib.import_module("resnet_tpu.api"), self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


for _name in _PACKAGES:
    importlib.import_module(f"resnet_tpu.{_name}").__class__ = _Callable
