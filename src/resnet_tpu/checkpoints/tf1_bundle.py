"""TensorFlow's tensor bundle: named arrays in the files `PREFIX.index` and `PREFIX.data-?????-of-?????`.

The index is a sorted table in LevelDB's format. Its values are protobuf messages that say where in the data files each
array lies. Every block of the index and every array has a masked CRC32C.
"""

import math
import mmap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from google.protobuf import message

from resnet_tpu import storage
from resnet_tpu.checkpoints.foreign import unreadable
from resnet_tpu.checkpoints.tf1_table import make_table, read_table
from resnet_tpu.data.records.messages import message_classes
from resnet_tpu.data.records.tfrecord import masked_crc
from resnet_tpu.errors import UserError

_SCHEMA = """
name: "resnet_tpu/tensor_bundle.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "Version" field { name: "producer" number: 1 type: TYPE_INT32 } }
message_type {
  name: "BundleHeader"
  field { name: "num_shards" number: 1 type: TYPE_INT32 }
  field { name: "endianness" number: 2 type: TYPE_INT32 }
  field { name: "version" number: 3 type_name: ".tensorflow.Version" }
}
message_type { name: "Dim" field { name: "size" number: 1 type: TYPE_INT64 } }
message_type { name: "Shape" field { name: "dim" number: 2 label: LABEL_REPEATED type_name: ".tensorflow.Dim" } }
message_type {
  name: "BundleEntry"
  field { name: "dtype" number: 1 type: TYPE_INT32 }
  field { name: "shape" number: 2 type_name: ".tensorflow.Shape" }
  field { name: "shard_id" number: 3 type: TYPE_INT32 }
  field { name: "offset" number: 4 type: TYPE_INT64 }
  field { name: "size" number: 5 type: TYPE_INT64 }
  field { name: "crc32c" number: 6 type: TYPE_FIXED32 }
  field { name: "slices" number: 7 label: LABEL_REPEATED type: TYPE_BYTES }
}
"""


_MESSAGES = message_classes(_SCHEMA)
_Header, _Entry = _MESSAGES["BundleHeader"], _MESSAGES["BundleEntry"]

# TensorFlow's numbers of the types
_DTYPES = {
    number: np.dtype(kind)
    for number, kind in {
        1: np.float32, 2: np.float64, 3: np.int32, 4: np.uint8, 5: np.int16, 6: np.int8, 9: np.int64, 10: np.bool_,
        14: jnp.bfloat16, 17: np.uint16, 19: np.float16, 22: np.uint32, 23: np.uint64,
    }.items()
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_STRING = 7
_MAX_INDEX_BYTES = 16 << 20  # the index of the largest network, with slots and averages, takes a hundredth of this
_MAX_DIMENSIONS = 32
_DO = "Copy or save the checkpoint again."


class Variable(NamedTuple):
    """An array as the index describes it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    num_bytes: int


def read_index(prefix: str) -> dict[str, Variable]:
    """The descriptions of the bundle's arrays, sorted by name; text is left out. The arrays are not read.

    Raises UserError when the index is missing, damaged or not one of TensorFlow's.
    """
    _, entries = _read_entries(prefix)
    return {name: Variable(_DTYPES[entry.dtype], _shape(entry), entry.size) for name, entry in entries.items()}


def read_bundle(prefix: str, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """All arrays of a bundle, or those in `names`, sorted, read-only, each checked against its checksum.

    Text is left out. Arrays of a local file are mapped from it: it must not be overwritten in place while they are used
    (TensorFlow and `write_bundle` replace it with a new file instead). Raises UserError, naming the file, when one is
    missing, truncated, damaged or has unreadable content.
    """
    num_shards, entries = _read_entries(prefix)
    if names is not None:
        entries = {name: entry for name, entry in entries.items() if name in names}
    arrays: dict[str, np.ndarray] = {}
    for shard in sorted({entry.shard_id for entry in entries.values()}):
        own = {name: entry for name, entry in entries.items() if entry.shard_id == shard}
        arrays.update(_read_shard(_shard_path(prefix, shard, num_shards), own))
    return {name: arrays[name] for name in entries}


def _shard_path(prefix: str, shard: int, num_shards: int) -> str:
    return f"{prefix}.data-{shard:05d}-of-{num_shards:05d}"


def _shape(entry: Any) -> tuple[int, ...]:
    return tuple(dim.size for dim in entry.shape.dim)


def _read_shard(path: str, entries: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    try:
        _check_places(path, storage.file_state(path).size, entries)
        start = min(entry.offset for entry in entries.values())
        span = _read_span(path, start, max(entry.offset + entry.size for entry in entries.values()))
    except OSError as error:
        raise unreadable(f"Checkpoint file {path}", error) from None
    for name, entry in entries.items():
        data = span[entry.offset - start :][: entry.size]
        if (crc := masked_crc(data)) != entry.crc32c:
            raise UserError(f"Variable {name} of {path}", f"checksum {crc:#010x}", f"{entry.crc32c:#010x}", _DO)
        arrays[name] = np.require(data.view(_DTYPES[entry.dtype]).reshape(_shape(entry)), requirements="A")
        arrays[name].flags.writeable = False  # copies too, which alignment may require
    return arrays


def _read_span(path: str, start: int, stop: int) -> np.ndarray:
    """The bytes [start, stop) of a file: a local file is mapped, one in a bucket is read in one request.

    Mapping avoids a copy of what the system has cached; most of the copy's time would go into allocating memory.
    """
    if start == stop:
        return np.empty(0, np.uint8)
    if storage.is_remote(path):
        return np.frombuffer(storage.read_range(path, start, stop), np.uint8)
    with Path(path).open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[start:stop]


def _check_shape(what: str, entry: Any) -> None:
    """Raises UserError unless the entry has a possible shape, and the size of an array of that shape."""
    shape, dtype = entry.shape.dim, _DTYPES[entry.dtype]
    if len(shape) > _MAX_DIMENSIONS or any(dim.size < 0 for dim in shape):
        got = f"shape {list(_shape(entry)[: _MAX_DIMENSIONS + 1])}"
        raise UserError(what, got, f"at most {_MAX_DIMENSIONS} dimensions, none of them negative", _DO)
    if entry.size != math.prod(_shape(entry)) * dtype.itemsize:
        raise UserError(what, f"{entry.size} bytes", f"{dtype} {list(_shape(entry))}", _DO)


def _check_places(path: str, file_size: int, entries: Mapping[str, Any]) -> None:
    """Raises UserError unless every array lies in the file, and all together fit into it."""
    for name, entry in entries.items():
        if not 0 <= entry.offset <= entry.offset + entry.size <= file_size:
            needed = f"at least {entry.offset + entry.size}, for variable {name}"
            raise UserError(f"Checkpoint file {path}", f"{file_size} bytes", needed, _DO)
    if (total := sum(entry.size for entry in entries.values())) > file_size:
        raise UserError(f"Checkpoint file {path}", f"{file_size} bytes", f"{total}, of all variables", _DO)


def _read_entries(prefix: str) -> tuple[int, dict[str, Any]]:
    """(number of data files, the index entry of each array by name)."""
    path = f"{prefix}.index"
    try:
        with storage.open_read(path) as file:
            data = file.read(_MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise unreadable(f"Checkpoint file {path}", error) from None
    if len(data) > _MAX_INDEX_BYTES:
        got = f"more than {_MAX_INDEX_BYTES} bytes"
        raise UserError(f"Checkpoint index {path}", got, "the names and places of a network's variables", _DO)
    try:
        table = dict(read_table(data))
        header = _Header.FromString(table.pop(b""))
        entries = {key.decode(errors="backslashreplace"): _Entry.FromString(value) for key, value in table.items()}
    except KeyError:
        raise UserError(f"Checkpoint index {path}", "no header", "a TensorFlow index", _DO) from None
    except (ValueError, message.DecodeError) as error:
        raise UserError(f"Checkpoint index {path}", error, "a whole, undamaged file", _DO) from None
    if header.endianness != 0:
        raise UserError(f"Checkpoint index {path}", "big-endian data", "little-endian data", "Save it elsewhere.")
    entries = {name: entry for name, entry in entries.items() if entry.dtype != _STRING}
    for name, entry in entries.items():
        what = f"Variable {name} of {path}"
        if entry.slices:
            raise UserError(what, "one partition", "variables that are not partitioned", "Save it as one variable.")
        if entry.dtype not in _DTYPES:
            raise UserError(what, f"TensorFlow type {entry.dtype}", "numbers", "Save it without this variable.")
        if not 0 <= entry.shard_id < header.num_shards:
            raise UserError(what, f"data file {entry.shard_id}", f"one of {header.num_shards} files", _DO)
        _check_shape(what, entry)
    return header.num_shards, entries


def write_bundle(prefix: str, arrays: Mapping[str, np.ndarray | jax.Array]) -> None:
    """Writes `arrays` as a bundle of one data file that TensorFlow reads.

    Both files appear only when whole, the index last. Device arrays come to the host one by one.
    """
    entries = {b"": _Header(num_shards=1, version={"producer": 1}).SerializeToString()}
    offset = 0
    with storage.write_whole(f"{prefix}.index") as index, storage.write_whole(_shard_path(prefix, 0, 1)) as file:
        for name in sorted(arrays):
            array = np.asarray(arrays[name], order="C")
            data = array.reshape(-1).view(np.uint8)
            file.write(data.data)
            entry = _Entry(dtype=_NUMBERS[array.dtype], offset=offset, size=data.size, crc32c=masked_crc(data))
            for size in array.shape:
                entry.shape.dim.add(size=size)
            entries[name.encode()] = entry.SerializeToString()
            offset += data.size
        index.write(make_table(entries))
