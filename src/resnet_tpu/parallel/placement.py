"""Arrays on the devices of a mesh: puts them there, describes them, and gathers them on the host."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, Sharding

from resnet_tpu.parallel.meshes import batch_sharding, replicated

DeviceBatch = dict[str, jax.Array]
"""image uint8 [n, s, s, 3], label int32 [n], weight float32 [n] (0 for padding), split over the devices."""


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
