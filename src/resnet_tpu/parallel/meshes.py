"""Meshes of the devices that share a batch."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from resnet_tpu.errors import UserError

_BATCH_AXIS = "data"


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """A one-dimensional mesh of these devices, along which the batch is split."""
    return Mesh(np.asarray(devices), (_BATCH_AXIS,))


def make_mesh(num_cores: int | None = None) -> Mesh:
    """A one-dimensional mesh of the devices of all processes, at most `num_cores` of them; it splits the batch.

    The devices of a process are neighbours, and each process has the same number. Raises UserError if that is
    impossible.
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


def check_num_cores(num_cores: int, processes: int) -> None:
    """Raises UserError unless every process can have the same number of devices."""
    if num_cores % processes:
        choice = max(num_cores // processes, 1) * processes
        raise UserError("num_cores", num_cores, f"a multiple of the {processes} processes", f"Use {choice}.")


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Every device holds its slice of the first axis."""
    return NamedSharding(mesh, PartitionSpec(_BATCH_AXIS))


def add_up(mesh: Mesh) -> int:
    """The number of devices, computed by a collective that adds up a 1 from each."""
    ones = jax.make_array_from_callback(mesh.devices.shape, batch_sharding(mesh), lambda _: np.ones(1, np.int32))
    return int(jax.jit(jnp.sum, out_shardings=replicated(mesh))(ones))
