"""`config.json`: the options of a run, written when it begins and read by every command that uses the run."""

import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from resnet_tpu import __version__, storage
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OF_ONE_START, OPTIONS, Config
from resnet_tpu.options.overrides import Layer
from resnet_tpu.storage import checked_json

CONFIG_FILE = "config.json"
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints in a `model_dir`."""

_OF_CHECKPOINT = "meta/data.json"  # a checkpoint's description, as written by Orbax

_RETIRED = {"kernels": {"block": "auto"}}
"""Values that earlier versions stored, and their present equivalents."""


def write_description(model_dir: str, config: Config, class_names: list[str]) -> None:
    """Writes `config.json` and `labels.txt`."""
    storage.make_dir(model_dir)
    options = {name: value for name, value in config.flat().items() if name not in OF_ONE_START}
    text = json.dumps({"version": __version__, **options}, indent=2)
    storage.write_text(storage.join(model_dir, CONFIG_FILE), text + "\n")
    storage.write_text(storage.join(model_dir, "labels.txt"), "".join(f"{name}\n" for name in class_names))


def model_dir_of(path: str) -> str:
    """The `model_dir` if `path` is its folder of checkpoints; any other path unchanged."""
    folder = storage.absolute(path)
    if not path or posixpath.basename(folder) != CHECKPOINTS or not storage.is_dir(folder):
        return path
    is_run = any(storage.exists(storage.join(folder, name)) for name in (CONFIG_FILE, CHECKPOINTS))
    return path if is_run else storage.parent_of(folder)


def read_run(path: str) -> Layer | None:
    """The options of the run at `path`: a `model_dir`, its folder of checkpoints, or a checkpoint. None without a run.

    If `config.json` is lost, they come from the newest checkpoint. Options in `OF_ONE_START` are left out.
    Raises UserError if the file does not hold a JSON object.
    """
    for file in filter(storage.exists, _files_of_options(model_dir_of(path)) if path else ()):
        try:
            found = checked_json.parse(storage.read_text(file))
            values = found["config"] if file.endswith(_OF_CHECKPOINT) else found
            kept = stored_options({name: value for name, value in values.items() if name != "version"})
        except (ValueError, AttributeError, KeyError, TypeError):
            do = "Choose another model_dir or checkpoint, or delete this file."
            raise UserError("Config of the run", file, "a JSON object", do) from None
        if not OPTIONS.keys().isdisjoint(kept):  # else the file is another program's, as on the Hugging Face Hub
            return Layer(file, kept)
    return None


def stored_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored options of a run, converted to this version, without those in `OF_ONE_START`."""
    kept = {name: value for name, value in values.items() if name not in OF_ONE_START}
    return kept | {name: now[kept[name]] for name, now in _RETIRED.items() if kept.get(name) in [*now]}


def _files_of_options(path: str) -> Iterator[str]:
    """The files that may hold the options of the run or checkpoint at `path`, in order of preference."""
    yield storage.join(path, CONFIG_FILE)
    yield storage.join(path, _OF_CHECKPOINT)
    folder = storage.join(path, CHECKPOINTS)
    steps = filter(str.isdecimal, storage.list_dir(folder))
    yield from (storage.join(folder, step, _OF_CHECKPOINT) for step in sorted(steps, key=int, reverse=True))
