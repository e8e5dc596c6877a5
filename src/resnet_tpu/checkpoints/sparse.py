"""Pruned weights on disk: the values that their masks keep, one after the other, and the masks as bits.

Restored arrays are equal to the last bit: an array with a masked value other than 0 is stored whole. An array whose
mask keeps nothing is stored as a single 0, because Orbax does not store empty arrays.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from resnet_tpu.models.arrays import Arrays, Path, copy_dicts, leaves, node_at, put

Shapes = Mapping[str, Sequence[int]]
"""Shape of each array that is stored in this form, by name: `params/stem/conv/kernel`, `masks/stem/conv/kernel`."""

_MASKED = (("params",), ("momentum",), ("ema", "params"))
"""Collections whose arrays have masks."""

_MASKS = "masks"


def pack(arrays: Arrays) -> tuple[Arrays, dict[str, list[int]]]:
    """`arrays` in the form in which they are stored, and the shapes to unpack them with."""
    packed = copy_dicts(arrays)
    shapes: dict[str, list[int]] = {}
    for name, given in leaves(arrays[_MASKS]):
        path, mask = tuple(name.split("/")), np.asarray(given)
        shapes["/".join((_MASKS, *path))] = list(mask.shape)
        put(packed, (_MASKS, *path), np.packbits(mask))
        for collection in _MASKED:
            full_path = (*collection, *path)
            values = _find(arrays, full_path)
            if values is not None and not np.asarray(values).view(np.uint32)[~mask].any():
                shapes["/".join(full_path)] = list(mask.shape)
                put(packed, full_path, np.asarray(values)[mask] if mask.any() else np.zeros(1, np.float32))
    return packed, shapes


def is_packed(stored: Arrays) -> bool:
    """Whether the arrays of a checkpoint, or their descriptions, are in this form."""
    return any(leaf.dtype == np.uint8 for leaf in jax.tree.leaves(stored.get(_MASKS, {})))


def described(stored: Arrays, shapes: Shapes) -> Arrays:
    """Descriptions of the arrays as they are when unpacked."""
    found = copy_dicts(stored)
    for name, shape in shapes.items():
        full_path = tuple(name.split("/"))
        dtype = np.bool_ if full_path[0] == _MASKS else _find(stored, full_path).dtype
        put(found, full_path, jax.ShapeDtypeStruct(tuple(shape), dtype))
    return found


def to_load(wanted: Arrays, stored: Arrays, shapes: Shapes) -> Arrays:
    """What to load from disk to make `wanted`: for packed arrays, their stored form and their masks."""
    arrays = copy_dicts(wanted)
    for name in shapes:
        full_path = tuple(name.split("/"))
        if _find(wanted, full_path) is not None:
            for array_path in (full_path, _mask_of(full_path)):
                leaf = _find(stored, array_path)
                put(arrays, array_path, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here()))
    return arrays


def unpack(loaded: Arrays, wanted: Arrays, shapes: Shapes) -> Arrays:
    """The arrays of `to_load` as `wanted` describes them, on the devices that it names.

    Raises ValueError when values and mask do not fit each other.
    """

    def whole(path: Any, leaf: jax.ShapeDtypeStruct) -> Any:
        full_path = tuple(key.key for key in path)
        values = _find(loaded, full_path)
        if "/".join(full_path) not in shapes:
            return values
        bits = np.asarray(_find(loaded, _mask_of(full_path)))
        array = np.unpackbits(bits, count=int(np.prod(leaf.shape))).view(np.bool_).reshape(leaf.shape)
        if full_path[0] != _MASKS:
            mask, array = array, np.zeros(leaf.shape, leaf.dtype)
            if np.size(values) != max(np.count_nonzero(mask), 1):
                raise ValueError(f"{np.size(values)} values for a mask of {np.count_nonzero(mask)}")
            array[mask] = np.asarray(values)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding or here(), lambda index: array[index])

    return jax.tree_util.tree_map_with_path(whole, wanted)


def here() -> jax.sharding.Sharding:
    """The sharding on one device of this process."""
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _mask_of(full_path: Path) -> Path:
    """Where the mask of the array at `full_path` is."""
    inside = next(
        (full_path[len(collection) :] for collection in _MASKED if full_path[: len(collection)] == collection), None
    )
    return full_path if inside is None else (_MASKS, *inside)


def _find(tree: Arrays, full_path: Path) -> Any:
    """The array at `full_path`; None if there is none."""
    try:
        return node_at(tree, full_path)
    except KeyError:
        return None
