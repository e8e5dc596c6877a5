"""Notes on the weights in a PyTorch file: those that we write into it, and timm's config.json next to it."""

import logging
from collections.abc import Mapping
from typing import Any

from resnet_tpu import storage
from resnet_tpu.checkpoints.safetensors_file import parse_json, read_own_notes
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS

log = logging.getLogger(__name__)

_PLAIN = {"act_layer": "relu", "global_pool": "avg", "output_stride": 32, "aa_layer": None}
"""The values required of those `model_args` of timm that change the computation but leave no trace in the arrays."""


def read_notes(path: str) -> dict[str, Any]:
    """The notes on the weights in the file at `path`, completed by those in a config.json next to it.

    Any of class_names, mean_rgb, stddev_rgb, those in `PREPROCESSING`, pool_padding, and timm's `architecture`.
    """
    notes: dict[str, Any] = {}
    file = storage.join(storage.parent_of(path), "config.json")
    if storage.exists(file):
        with storage.open_read(file) as opened:
            notes = _timm_notes(parse_json(opened.read(), file), file)
    if (own := read_own_notes(path)) is not None:
        notes |= {"eval_preprocessing": "tf", **own}
    names = notes.get("class_names")
    notes["class_names"] = [str(name) for name in names] if isinstance(names, list) else None
    return {name: value for name, value in notes.items() if value not in (None, "", [])}


def _timm_notes(config: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The notes in timm's config.json, by our names; none for another program's config.json."""
    older = config if "architecture" in config else None  # timm's older form is one dict
    pretrained = config.get("pretrained_cfg", older)
    if not isinstance(pretrained, dict):
        return {}
    _check_model_args(config.get("model_args"), file)
    size, method = pretrained.get("input_size"), pretrained.get("interpolation")
    for name, known in (("interpolation", OPTIONS["resize_method"].choices), ("crop_mode", ("center",))):
        if (value := pretrained.get(name, known[0])) not in known:
            log.warning("%s: %s %s is not supported: photos are evaluated with %s", file, name, value, known[0])
    return {
        "architecture": config.get("architecture"),
        "class_names": config.get("label_names", config.get("labels")),
        "mean_rgb": pretrained.get("mean"),
        "stddev_rgb": pretrained.get("std"),
        "image_size": size[-1] if isinstance(size, list) and size else None,
        "crop_pct": pretrained.get("crop_pct"),
        "resize_method": method if method in OPTIONS["resize_method"].choices else None,
    }


def _check_model_args(given: object, file: str) -> None:
    """Raises UserError if timm would make a network that computes something else from the same arrays."""
    for name, value in given.items() if isinstance(given, dict) else ():
        if name in _PLAIN and value not in (None, _PLAIN[name]):
            do = "Give weights that were trained without it."
            raise UserError(f"model_args in {file}", f"{name} {value}", f"{name} {_PLAIN[name] or 'null'}", do)
