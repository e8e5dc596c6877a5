"""The record of a measurement: its figures, and the machine, versions and command."""

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
    """Writes the JSON text of `to_json`, and creates the folder if there is none."""
    storage.make_dir(storage.parent_of(path))
    storage.write_text(path, to_json(command, figures))
    log.info("Written: %s", path)


def to_json(command: Sequence[str], figures: Mapping[str, Any]) -> str:
    """The figures as JSON, with the date, machine, versions and command of the measurement."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    content = {"date": today, "command": shlex.join(command), "machine": machine(), "figures": figures}
    return json.dumps(content, indent=2) + "\n"


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and the versions of all software involved."""
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
