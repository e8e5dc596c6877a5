"""Checks combinations of options that are each valid, before any work begins."""

import math
from collections.abc import Iterator

from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import CIFAR_DEPTHS
from resnet_tpu.models.from_options import resolve_architecture
from resnet_tpu.options.config import Config, DataConfig, ModelConfig, OptimizerConfig, epoch_boundaries


def check_options(config: Config) -> None:
    """Raises UserError for options that cannot work as given, before data are opened or a device is used.

    Options of the network are checked when it is created: see `models.from_options.resolve_architecture`.
    """
    resolve_architecture(config.model, image_size=config.data.image_size)
    _check_images(config.data)
    _check_input(config.data)
    _check_stem(config.model)
    _check_colors(config.model)
    _check_optimizer(config.optimizer)
    _check_average(config)
    _check_accumulation(config.optimizer.gradient_accumulation_steps, config.train.train_batch_size)


def options_without_effect(config: Config) -> Iterator[str]:
    """A line for the log for each given option that has no effect because of other options."""
    default = Config()
    optimizer, model = config.optimizer, config.model
    schedule = "lars" if optimizer.enable_lars else optimizer.learning_rate_schedule
    if optimizer.warmup_steps is not None and schedule not in ("cosine", "constant"):
        given = f"warmup_steps {optimizer.warmup_steps}"
        yield f"{given} has no effect with the schedule {schedule}, only with cosine and constant."
    if optimizer.learning_rate_epochs is not None and (schedule != "step" or optimizer.learning_rate_boundaries):
        yield "learning_rate_epochs has an effect only with the schedule step and without learning_rate_boundaries."
    if optimizer.enable_lars and optimizer.base_learning_rate != default.optimizer.base_learning_rate:
        yield f"base_learning_rate {optimizer.base_learning_rate:g} has no effect with enable_lars: see poly_rate."
    if optimizer.enable_lars and optimizer.nesterov != default.optimizer.nesterov:
        yield "nesterov has no effect with enable_lars, which uses plain momentum."
    if optimizer.poly_rate and not optimizer.enable_lars:
        yield f"poly_rate {optimizer.poly_rate:g} has no effect without enable_lars."
    if model.dropblock_keep_prob is not None and not model.dropblock_groups:
        yield f"dropblock_keep_prob {model.dropblock_keep_prob:g} has no effect without dropblock_groups."
    if model.dropblock_size != default.model.dropblock_size and not model.dropblock_groups:
        yield f"dropblock_size {model.dropblock_size} has no effect without dropblock_groups."
    if config.data.augment_flavor != default.data.augment_flavor and not config.data.augment_name:
        yield f"augment_flavor {config.data.augment_flavor} has no effect without augment_name."


def _check_images(data: DataConfig) -> None:
    for name in ("randaug_num_layers", "randaug_magnitude"):
        value = getattr(data, name)
        if value is not None and data.augment_name != "randaugment":
            got = f"{value} with augment_name {data.augment_name or 'null'}"
            raise UserError(name, got, "augment_name randaugment", f"Set augment_name=randaugment or {name}=null.")


def _check_stem(model: ModelConfig) -> None:
    """Checks the stem. Not done in `resolve_architecture`, so that a run begun with such options can still be read."""
    if model.stem == "imagenet" and model.resnet_depth in CIFAR_DEPTHS:
        got, expected = f"imagenet at resnet_depth {model.resnet_depth}", "small, the only stem of the CIFAR networks"
        raise UserError("stem", got, expected, "Set stem=auto, or choose another depth.")


def _check_colors(model: ModelConfig) -> None:
    do = "Colours are from 0 to 1 here: divide values measured from 0 to 255 by 255."
    if min(model.mean_rgb) < 0 or max(model.mean_rgb) > 1:
        raise UserError("mean_rgb", model.mean_rgb, "three numbers from 0 to 1", do)
    if min(model.stddev_rgb) <= 0 or max(model.stddev_rgb) > 1:
        raise UserError("stddev_rgb", model.stddev_rgb, "three numbers above 0 and at most 1", do)


def _check_input(data: DataConfig) -> None:
    for name, kinds in (("cache_short_side", ("decoded",)), ("cache_memory", ("records", "decoded"))):
        value = getattr(data, name)
        if value is not None and data.cache not in kinds:
            do = f"Set cache={kinds[-1]} or {name}=null."
            raise UserError(name, f"{value} with cache {data.cache}", f"cache {' or '.join(kinds)}", do)
    if data.input_pipeline == "basic" and data.input_workers == "processes":
        got = "processes with input_pipeline basic"
        raise UserError("input_workers", got, "threads, as that pipeline uses only one", "Leave one of them out.")


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    for name in ("label_smoothing", "moving_average_decay"):
        if (value := getattr(optimizer, name)) >= 1:
            raise UserError(name, value, "less than 1", "Change the value.")
    if optimizer.enable_lars and optimizer.learning_rate_schedule != "step":
        name, got = "learning_rate_schedule", f"{optimizer.learning_rate_schedule} with enable_lars"
        raise UserError(name, got, "step, as LARS has its own schedule", f"Set {name}=step.")
    if optimizer.enable_lars and optimizer.decay_batch_norm:
        expected = "false, as LARS decays only kernels"
        raise UserError("decay_batch_norm", "true with enable_lars", expected, "Set decay_batch_norm=false.")
    boundaries = epoch_boundaries(optimizer.learning_rate_boundaries)
    if boundaries and (optimizer.enable_lars or optimizer.learning_rate_schedule != "step"):
        name = "learning_rate_boundaries"
        other = "enable_lars" if optimizer.enable_lars else f"learning_rate_schedule {optimizer.learning_rate_schedule}"
        got = f"{optimizer.learning_rate_boundaries} with {other}"
        raise UserError(name, got, "the schedule step, the only one with boundaries", f"Set {name} to nothing.")


def _check_average(config: Config) -> None:
    """Checks bn_momentum: running statistics that the moving average smooths must not be averages already."""
    decay, bn_momentum = config.optimizer.moving_average_decay, config.model.bn_momentum
    if decay > 0 and bn_momentum != 0:
        got = f"{decay} with bn_momentum {'left to its default' if bn_momentum is None else bn_momentum}"
        expected = "bn_momentum 0, as running statistics are averaged like the weights"
        raise UserError("moving_average_decay", got, expected, "Set bn_momentum=0.")


def _check_accumulation(parts: int, batch_size: int) -> None:
    if batch_size % parts:
        low = [n for n in range(1, math.isqrt(min(batch_size, 2**40)) + 1) if batch_size % n == 0]
        divisors = {*low, *(batch_size // n for n in low)}
        near = [max(n for n in divisors if n < parts), *sorted(n for n in divisors if n > parts)[:1]]
        expected = f"a divisor of train_batch_size {batch_size}"
        raise UserError("gradient_accumulation_steps", parts, expected, f"Use {' or '.join(map(str, near))}.")
