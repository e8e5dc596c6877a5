"""What a run settles before its first step, and what it leaves behind: definite options, lengths, a description."""

import json
from dataclasses import dataclass
from typing import Any

from resnet_tpu import __version__, storage
from resnet_tpu.config import OPTIONS, Config
from resnet_tpu.data.source import Source
from resnet_tpu.errors import UserError
from resnet_tpu.options import steps


@dataclass(frozen=True)
class Lengths:
    """A run's lengths in optimizer steps."""

    total: int
    per_eval: int
    per_loop: int
    per_save: int
    kept: tuple[int, ...]
    """Steps whose checkpoints stay."""


def resolve(config: Config, source: Source) -> Config:
    """The options with every count that was left to the data filled in from its training split."""
    return config.replace(
        num_label_classes=source.num_classes, num_train_images=config.data.num_train_images or len(source)
    )


def lengths(config: Config) -> Lengths:
    """The lengths of a run whose options are resolved. Raises UserError for one that comes to no step at all."""
    images, train = config.data.num_train_images or 1, config.train

    def count(name: str, value: int | str) -> int:
        number = steps(name, value, num_train_images=images, train_batch_size=train.train_batch_size)
        if number < 1:
            size = f"{images} images at train_batch_size {train.train_batch_size}"
            raise UserError(name, f"{value} = 0 steps of {size}", "at least one step", "Lower train_batch_size.")
        return number

    per_loop = count("iterations_per_loop", train.iterations_per_loop)
    per_save = max(5000, per_loop) if train.save_checkpoints_steps is None else train.save_checkpoints_steps
    return Lengths(
        count("train_steps", train.train_steps),
        count("steps_per_eval", train.steps_per_eval),
        per_loop,
        count("save_checkpoints_steps", per_save),
        _kept_steps(train.lottery_checkpoint_iters),
    )


def _kept_steps(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        expected = "steps such as 0,11259,22518"
        raise UserError("lottery_checkpoint_iters", repr(text), expected, "Change the value.") from None


def check_classes(where: str, found: list[str] | None, expected: list[str] | None) -> None:
    """Raises UserError when the classes of the data in `where` are known and not those expected."""
    if found is not None and expected is not None and found != expected:
        raise UserError(
            f"Classes of {where}", ", ".join(found[:10]), ", ".join(expected[:10]) + ", in this order",
            "Use data with the same classes, or another model_dir.",
        )  # fmt: skip


def make_meta(config: Config, class_names: list[str] | None, position: int) -> dict[str, Any]:
    """What a checkpoint says of itself besides its arrays: all that prediction and going on need.

    position: training images consumed, over all epochs.
    """
    return {
        "version": __version__,
        "config": config.flat(),
        "class_names": class_names or [str(label) for label in range(config.data.num_label_classes or 0)],
        "preprocessing": {
            "image_size": config.data.image_size,
            "mean_rgb": [255 * value for value in config.model.mean_rgb],
            "stddev_rgb": [255 * value for value in config.model.stddev_rgb],
        },
        "position": position,
    }


def config_of(meta: dict[str, Any]) -> Config:
    """The options that a checkpoint was written with; options of later versions are left out."""
    return Config().replace(**{name: value for name, value in meta["config"].items() if name in OPTIONS})


def changed_options(before: Config, now: Config) -> list[str]:
    """`name old -> new` for each option that is not as it was."""
    old, new = before.flat(), now.flat()
    places = {"model_dir", "mode", "export_dir", "cache_folder", "export_forms", "model_name"}
    hosts = {"coordinator_address", "num_processes", "process_id", "coordinator_timeout", "heartbeat_timeout"}
    serving = {"inference_batch_sizes", "add_warmup_requests"}
    aside = places | hosts | serving  # which say nothing of the training itself
    return [f"{name} {old[name]} -> {new[name]}" for name in new if name not in aside and old[name] != new[name]]


def write_description(model_dir: str, config: Config, class_names: list[str]) -> None:
    """Writes `config.json` and `labels.txt`."""
    storage.make_dir(model_dir)
    text = json.dumps({"version": __version__, **config.flat()}, indent=2)
    storage.write_text(storage.join(model_dir, "config.json"), text + "\n")
    storage.write_text(storage.join(model_dir, "labels.txt"), "".join(f"{name}\n" for name in class_names))
