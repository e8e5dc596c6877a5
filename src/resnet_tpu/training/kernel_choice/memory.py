"""Remembers the kernels that were the fastest when they were timed, in a file in this machine's cache folder."""

import dataclasses
import json
import logging
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts
from resnet_tpu.storage import checked_json
from resnet_tpu.training.kernel_choice.setting import KernelSetting, runnable, setting_from

log = logging.getLogger(__name__)

_FILE = "kernels.json"


def remembered_settings() -> dict[str, KernelSetting]:
    """The settings that this machine remembers, by a description of the step that each is for."""
    found = ((str(entry.get("of")), setting_from(entry)) for entry in _read().values())
    return {words: setting for words, setting in found if setting}


def recall(config: Config, mesh: Mesh) -> KernelSetting | None:
    """The setting that the first host remembers for this step on these devices, if any, and if they can run it."""
    entry = hosts.from_first(lambda: _read().get(_key(config, mesh)))
    return runnable(setting_from(entry), config, mesh) if entry else None


def remember(config: Config, mesh: Mesh, setting: KernelSetting) -> None:
    """Stores the setting for this step on these devices. Failure to write it is only logged."""
    entries = {**_read(), _key(config, mesh): {"of": _words(config, mesh), **dataclasses.asdict(setting)}}
    try:
        storage.make_dir(storage.cache_dir())
        storage.write_text(_path(), json.dumps(entries, indent=1) + "\n")
    except (OSError, UserError) as error:
        log.warning("The choice of kernels is not saved: %s", error)


def _read() -> dict[str, Any]:
    try:
        found = checked_json.parse(storage.read_text(_path()))
        return checked_json.as_kind(dict[str, dict[str, Any]], found, _FILE)
    except (OSError, UserError, ValueError, TypeError):  # only a cache: the kernels can be timed again
        return {}


def _path() -> str:
    return storage.join(storage.cache_dir(), _FILE)


def _key(config: Config, mesh: Mesh) -> str:
    """Everything that a step's time may depend on, as text."""
    device = mesh.devices.flat[0]
    model = {name: value for name, value in dataclasses.asdict(config.model).items() if name != "kernels"}
    parts = config.optimizer.gradient_accumulation_steps
    compiler = getattr(device.client, "platform_version", "")
    sizes = [config.data.image_size, config.data.num_label_classes, config.train.train_batch_size, parts]
    return json.dumps([device.device_kind, mesh.devices.size, jax.__version__, compiler, sizes, model], default=str)


def _words(config: Config, mesh: Mesh) -> str:
    return (
        f"ResNet-{config.model.resnet_depth}, {config.data.image_size} px, {config.model.precision}, "
        f"batch {config.train.train_batch_size} on {mesh.devices.size} x {mesh.devices.flat[0].device_kind}, "
        f"jax {jax.__version__}"
    )
