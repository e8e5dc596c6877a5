"""The record of a measurement: its figures, and where and how they were measured."""

import datetime
import json
import logging
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resnet_tpu import storage
from resnet_tpu.system.machine import installed_version, num_cores

log = logging.getLogger(__name__)

PACKAGES = (
    "resnet-tpu", "jax", "jaxlib", "flax", "grain", "numpy", "scipy", "opencv-python-headless", "simplejpeg",
    "pillow", "torch", "torchvision", "tensorflow", "tensorflow-cpu", "keras", "spdl-core", "nvidia-dali-cuda120",
    "ffcv", "onnxruntime", "uvicorn", "fastapi",
)  # fmt: skip


def write(path: str, command: Sequence[str], figures: Mapping[str, Any]) -> None:
    """Writes the figures as JSON, with what `to_json` adds to them, into a folder that is made where there is none."""
    storage.make_dir(storage.parent_of(path))
    storage.write_text(path, to_json(command, figures))
    log.info("Written: %s", path)


def to_json(command: Sequence[str], figures: Mapping[str, Any]) -> str:
    """The figures as JSON, with the date, the machine, the versions and the command they come from."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    content = {"date": today, "command": shlex.join(command), "machine": machine(), "figures": figures}
    return json.dumps(content, indent=2) + "\n"


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and the version of everything that takes part."""
    return {
        "processor": _processor(),
        "cores": num_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed_version(name))},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
