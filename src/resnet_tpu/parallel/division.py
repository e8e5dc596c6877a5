"""Sizes that devices can share: of batches, and of the groups in which they compute batch norm."""

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, ModelConfig


def check_batch_divides(config: Config, devices: int) -> None:
    """Raises UserError unless every device gets the same number of images in each part of a training batch."""
    batch_size, parts = config.train.train_batch_size, config.optimizer.gradient_accumulation_steps
    units = devices * parts
    if batch_size % units:
        below = batch_size // units * units
        choice = f"{below} or {below + units}" if below else str(units)
        times = f" times gradient_accumulation_steps={parts}" if parts > 1 else ""
        expected = f"a multiple of the {devices} devices{times}"
        raise UserError("train_batch_size", batch_size, expected, f"Use {choice}.")


def round_up(batch_size: int, devices: int) -> int:
    """The smallest batch size of at least `batch_size` that gives every device the same number of images."""
    return -(-batch_size // devices) * devices


def batch_norm_groups(model: ModelConfig, devices: int) -> int:
    """The number of groups of neighbouring devices; each group has its own batch-norm statistics.

    Raises UserError when the devices cannot be divided into groups of `batch_norm_group_size`.
    """
    size = model.batch_norm_group_size
    if model.batch_norm_scope == "global":
        if size != 1:
            got = f"{size} with batch_norm_scope global"
            raise UserError("batch_norm_group_size", got, "1, as all devices are one group", "Leave one of them out.")
        return 1
    if devices % size:
        near = " or ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
        raise UserError("batch_norm_group_size", size, f"a divisor of the {devices} devices", f"Use {near}.")
    return devices // size
