"""Compiles steps for TPUs and NVIDIA GPUs that are not attached, and reads the compilers' estimates."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from resnet_tpu import storage
from resnet_tpu.errors import UserError, describe, missing_extra
from resnet_tpu.performance.plan.hlo import parse_module
from resnet_tpu.performance.plan.memory import Memory, count_memory
from resnet_tpu.performance.plan.operations import Operation, list_operations
from resnet_tpu.performance.plan.topology import Topology
from resnet_tpu.storage import checked_json
from resnet_tpu.system.machine import installed_version, is_linux_x86_64
from resnet_tpu.training.compiler_options import accepted_options, uncached

log = logging.getLogger(__name__)

FORMAT = 7
"""Version of the files in the cache: raise it when `Estimate`, or how it is made, changes."""

CUDA_PLUGINS = "jax-cuda13-pjrt", "jax-cuda12-pjrt"
"""Packages that each contain XLA for CUDA."""

_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # without a metadata server, the query takes minutes to fail
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # works while training holds the TPU
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any will do: the topology determines what to compile for
}
_QUICK = {"xla_jf_convolution_performance_target": "0"}
"""Takes the first form found for each convolution: the same buffers, compiled in half the time or less, regardless of
the batch size; but it is a different program, mostly smaller, and its cycles are meaningless."""

_NEEDED = re.compile(r"(?:total memory required for [\w ]+ \(|Used )([\d.]+)([KMGT]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class OutOfMemory(Exception):  # noqa: N818  # a result, not an error
    """The program needs more memory than a device has: `needed` bytes, if the compiler says how many."""

    def __init__(self, needed: int | None) -> None:
        super().__init__(needed)
        self.needed = needed


@dataclass(frozen=True)
class Estimate:
    """The compiler's estimates for one step, per device."""

    memory: Memory
    operations: tuple[Operation, ...]

    @property
    def cycles(self) -> int:
        """The sum of the compiler's cycles for all operations. Some have none, see `Operation.cycles`."""
        return sum(operation.cycles or 0 for operation in self.operations)


def libtpu_version() -> str:
    """The version of the installed compiler."""
    return importlib.metadata.version("libtpu")


def libtpu_of_training() -> SpecifierSet:
    """The versions of libtpu, such as ==0.0.42.*, with which the installed JAX trains; any if it names none."""
    needed = map(Requirement, importlib.metadata.requires("jax") or ())
    return next((one.specifier for one in needed if one.name == "libtpu"), SpecifierSet())


def compiler_of(topology: Topology) -> str:
    """The compiler's name and version, such as `libtpu 0.0.42.1` or `jax-cuda13-pjrt 0.10.2`.

    Raises UserError, naming the package to install, if it is not installed.
    """
    if not topology.is_gpu:
        if importlib.util.find_spec("libtpu") is None:
            if not is_linux_x86_64():
                here = f"{platform.system()} on {platform.machine()}"
                raise UserError(
                    "plan", here, "Linux on x86-64, as the TPU compiler is made for nothing else", "Run it there."
                )
            raise missing_extra("plan", "libtpu", "plan")
        return f"libtpu {libtpu_version()}"
    for name in CUDA_PLUGINS:
        if version := installed_version(name):
            return f"{name} {version}"
    version = importlib.metadata.version("jaxlib")
    parts = " ".join(f"jax-cuda13-{part}=={version}" for part in ("plugin", "pjrt"))
    raise UserError("plan", "no compiler for CUDA", "JAX's plugin", f"pip install --no-deps {parts} # 400 MB, no GPU")


def warn_of_other_libtpu() -> None:
    """Warns if training would use a version of libtpu other than the installed one."""
    version, of_training = libtpu_version(), libtpu_of_training()
    if not of_training.contains(version, prereleases=True):
        log.warning(
            "libtpu %s is installed, but jax %s trains with libtpu%s, whose memory and time may differ: "
            "pip install 'resnet-tpu[plan]' installs that one.",
            version, jax.__version__, of_training,
        )  # fmt: skip


@functools.cache
def devices_of(topology: Topology) -> tuple[Any, ...]:
    """The devices of a slice that is not attached, for shardings to compile with.

    Raises UserError when the compiler is not installed.
    """
    compiler_of(topology)
    if topology.is_gpu:
        settings = {"topology": f"1x1x{topology.chips}", "target_config": topology.generation.target}
        return tuple(topologies.get_topology_desc(platform="cuda", topology_name="", **settings).devices)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    bounds: dict[str, Any] = {"chip_config_name": topology.generation.chip_config}
    if topology.chips == 1:  # by default, a host has four; libtpu before 0.0.50 does not infer that one is meant
        bounds["chips_per_host_bounds"] = (1, 1, 1)
    found = topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **bounds)
    return tuple(found.devices)


def compile_step(
    lowered: jax.stages.Lowered,
    topology: Topology,
    *,
    options: Mapping[str, str] | None = None,
    memory_only: bool = False,
) -> Estimate:
    """Compiles a step that was lowered for `devices_of(topology)`, which takes minutes for a real one.

    options: compiler options; the step must have been jitted without any.
    memory_only: for TPUs, estimates only the memory, in less time. The result has no operations, and its program is a
    different, mostly smaller one.
    If the same program was compiled before for the same slice by the same compiler, reads the result from the user's
    cache. Raises OutOfMemory if the program does not fit.
    """
    quick = _QUICK if memory_only and not topology.is_gpu else {}
    every = accepted_options(devices_of(topology)[0], {**(options or {}), **quick})
    path = _cache_file(lowered, topology, every)
    if (found := _read(path)) is None:
        is_quick = any(name in every for name in quick)  # if not, the cache must hold the operations too
        found = _compile(lowered, every, topology.device_memory, lists_operations=not is_quick)
        _write(path, found)
    if isinstance(found, Estimate):
        return found
    raise found


def _compile(
    lowered: jax.stages.Lowered, options: Mapping[str, str], available: float, *, lists_operations: bool
) -> Estimate | OutOfMemory:
    try:
        with uncached():
            compiled = lowered.compile(dict(options) or None)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return OutOfMemory(_needed(str(error)))
    module = parse_module(compiled.as_text() or "")
    memory = count_memory(module.entry, compiled.memory_analysis())
    if memory.total > available:  # XLA for GPUs does not raise an error
        return OutOfMemory(memory.total)
    return Estimate(memory, list_operations(module) if lists_operations else ())


def _needed(message: str) -> int | None:
    """The number of bytes in the compiler's error message."""
    found = _NEEDED.search(message)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _cache_file(lowered: jax.stages.Lowered, topology: Topology, options: Mapping[str, str]) -> Path:
    flags = os.environ.get("XLA_FLAGS" if topology.is_gpu else "LIBTPU_INIT_ARGS", "")  # which the compiler reads
    parts = [str(FORMAT), compiler_of(topology), topology.name, str(options), lowered.as_text(), *filter(None, [flags])]
    key = "\n".join(parts)
    return Path(storage.cache_dir()) / "plan" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> Estimate | OutOfMemory | None:
    try:
        found = checked_json.parse(path.read_bytes())
        if "needed" in found:
            return OutOfMemory(found["needed"])
        operations = tuple(Operation(*row) for row in found["operations"])
        return Estimate(Memory(**found["memory"]), operations)
    except (OSError, ValueError, LookupError, TypeError):  # damaged: compiled again
        return None


def _write(path: Path, found: Estimate | OutOfMemory) -> None:
    if isinstance(found, OutOfMemory):
        content: dict[str, Any] = {"needed": found.needed}
    else:
        rows = [dataclasses.astuple(operation) for operation in found.operations]
        content = {"memory": dataclasses.asdict(found.memory), "operations": rows}
    try:
        storage.make_dir(str(path.parent))
        storage.write_text(str(path), json.dumps(content))
    except (OSError, UserError) as error:
        log.warning("The compiled result is not kept: %s", describe(error))
