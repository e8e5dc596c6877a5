"""What a run holds between two steps."""

from dataclasses import dataclass
from typing import Any

from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.state import TrainState


@dataclass
class RunState:
    """Everything that a run's checkpoint holds besides the options. It advances when a step is dispatched."""

    state: TrainState
    """On the devices."""
    step: int
    position: int
    """Training images consumed before this step."""
    class_names: list[str] | None
    """From the data or, if these have none, from the checkpoint."""
    kernels: dict[str, Any] | None = None
    """What computes the steps, see `kernel_choice.setting.stored_form`; None for a caller's own step in a new run."""

    def meta(self, config: Config) -> dict[str, Any]:
        """The metadata of a checkpoint of this state."""
        return make_meta(config, self.class_names, self.position) | {"kernels": self.kernels}
