"""Metadata of a checkpoint: options, class names, and how far the run has come."""

from collections.abc import Mapping
from typing import Any

from resnet_tpu import __version__
from resnet_tpu.data.class_names import completed
from resnet_tpu.options.config import OF_ONE_START, OPTIONS, Config
from resnet_tpu.options.run_file import stored_options


def make_meta(config: Config, class_names: list[str] | None, position: int) -> dict[str, Any]:
    """The metadata that a checkpoint holds besides its arrays, for predicting with it or resuming from it.

    position: training images consumed, over all epochs.
    """
    return {
        "version": __version__,
        "config": config.flat(),
        "class_names": completed(class_names or [], config.data.num_label_classes or 0),
        "preprocessing": {
            "image_size": config.data.image_size,
            "mean_rgb": [255 * value for value in config.model.mean_rgb],
            "stddev_rgb": [255 * value for value in config.model.stddev_rgb],
        },
        "position": position,
    }


def config_of(meta: Mapping[str, Any]) -> Config:
    """The options of a checkpoint, except those that apply to a single start or that this version does not know."""
    return Config().replace(
        **{name: value for name, value in stored_options(meta["config"]).items() if name in OPTIONS}
    )


def changed_options(before: Config, now: Config) -> list[str]:
    """`name old -> new` for each option that has changed."""
    old, new = before.flat(), now.flat()
    paths = {"model_dir", "mode", "export_dir", "cache_folder", "export_forms", "model_name"}
    hosts = {*OF_ONE_START, "coordinator_timeout", "heartbeat_timeout"}
    serving = {"inference_batch_sizes", "add_warmup_requests"}
    aside = paths | hosts | serving | {"lottery_force_reprune"}  # these do not affect the training itself
    return [f"{name} {old[name]} -> {new[name]}" for name in new if name not in aside and old[name] != new[name]]
