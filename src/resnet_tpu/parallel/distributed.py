"""Devices and processes: start-up, the mesh, and the placement of arrays on it."""

import contextlib
import importlib.util
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, ModelConfig
from resnet_tpu.storage.paths import filesystem
from resnet_tpu.system.allocator import keep_memory
from resnet_tpu.system.machine import has_accelerator, has_gpu, has_tpu

BATCH_AXIS = "data"

DeviceBatch = dict[str, jax.Array]
"""image uint8 [n, s, s, 3], label int32 [n], weight float32 [n] (0 for padding), split over the devices."""


def start_jax(*, use_tpu: bool) -> None:
    """Chooses the platform and turns the compilation cache on; call before anything touches a device.

    If the platform can only be the CPU, the process keeps freed memory from now on (see `keep_memory`): otherwise XLA's
    threads, which start with the devices, would each have a heap of their own. On a machine without a TPU, `use_tpu`
    has no effect: JAX uses the GPU or CPU, and does not load libtpu, which `plan` needs but which would print long
    complaints. Raises UserError when JAX_COMPILATION_CACHE_DIR names a bucket for which no client is installed.
    """
    without_tpu = not (use_tpu and has_tpu())
    if without_tpu and importlib.util.find_spec("libtpu") is not None and not os.environ.get("JAX_PLATFORMS"):
        plugins = map(importlib.util.find_spec, ("jax_cuda13_plugin", "jax_cuda12_plugin"))
        jax.config.update("jax_platforms", "cuda,cpu" if has_gpu() and any(plugins) else "cpu")
    settings: Any = jax.config
    if settings.jax_platforms == "cpu" or not has_accelerator():
        keep_memory()
    if settings.jax_compilation_cache_dir is None:
        with contextlib.suppress(UserError):  # not writable: JAX would warn about each program that it cannot cache
            cache = storage.join(storage.cache_dir(), "xla")
            storage.check_writable(cache)
            jax.config.update("jax_compilation_cache_dir", cache)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    elif storage.is_remote(settings.jax_compilation_cache_dir):
        filesystem(settings.jax_compilation_cache_dir)  # JAX reads and writes through the same client, set up here


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """A one-dimensional mesh of these devices, along which the batch is split."""
    return Mesh(np.asarray(devices), (BATCH_AXIS,))


def make_mesh(num_cores: int | None = None) -> Mesh:
    """A one-dimensional mesh of the devices of all processes, at most `num_cores` of them; it splits the batch.

    The devices of a process are neighbours, and each process has equally many. Raises UserError if that is impossible.
    """
    processes = jax.process_count()
    owned: list[list[Any]] = [[] for _ in range(processes)]
    for device in sorted(jax.devices(), key=lambda device: device.id):
        owned[device.process_index].append(device)
    if num_cores is not None and num_cores < jax.device_count():
        check_num_cores(num_cores, processes)
        owned = [own[: num_cores // processes] for own in owned]
    if len({len(own) for own in owned}) > 1:
        got = ", ".join(f"{len(own)} in process {index}" for index, own in enumerate(owned))
        do = f"Use num_cores={processes * min(map(len, owned))}."
        raise UserError("Devices", got, "the same number in each process", do)
    return mesh_of([device for own in owned for device in own])


def add_up(mesh: Mesh) -> int:
    """The number of devices, computed by a collective that adds up a 1 from each."""
    ones = jax.make_array_from_callback(mesh.devices.shape, batch_sharding(mesh), lambda _: np.ones(1, np.int32))
    return int(jax.jit(jnp.sum, out_shardings=replicated(mesh))(ones))


def check_num_cores(num_cores: int, processes: int) -> None:
    """Raises UserError unless every process can have the same number of devices."""
    if num_cores % processes:
        choice = max(num_cores // processes, 1) * processes
        raise UserError("num_cores", num_cores, f"a multiple of the {processes} processes", f"Use {choice}.")


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


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Every device holds its slice of the first axis."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXIS))


def with_sharding(tree: Any, sharding: Sharding) -> Any:
    """The arrays of a pytree, or their descriptions, as `jax.ShapeDtypeStruct`s with this sharding."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> DeviceBatch:
    """Puts this host's slice of a batch on its devices; the result is the global batch."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


def prefetch(batches: Iterable[dict[str, np.ndarray]], mesh: Mesh, ahead: int = 2) -> Iterator[DeviceBatch]:
    """Yields the batches on the devices; the transfer of each starts `ahead` batches before its use."""
    waiting: deque[DeviceBatch] = deque()
    for batch in batches:
        waiting.append(put_batch(batch, mesh))
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def put_replicated(tree: Any, mesh: Mesh) -> Any:
    """Puts a pytree of arrays on every device; every process must give the same values."""
    everywhere = replicated(mesh)
    if jax.process_count() == 1:
        return jax.device_put(tree, everywhere)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(everywhere, np.asarray(leaf), np.shape(leaf)), tree
    )


def gather(array: jax.Array) -> np.ndarray:
    """The whole array on this host, whichever processes hold it; every process must call this."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def steps_ahead(mesh: Mesh) -> int:
    """How many steps the host may be ahead of the devices.

    Enough that the devices never wait for Python, but not so many that batches fill their memory. 0 for several virtual
    CPU devices, which deadlock when several collectives are in flight.
    """
    return 0 if mesh.devices.size > 1 and mesh.devices.flat[0].platform == "cpu" else 4
