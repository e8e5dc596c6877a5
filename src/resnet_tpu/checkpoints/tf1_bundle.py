"""TensorFlow's tensor bundle: named arrays in the files `PREFIX.index` and `PREFIX.data-?????-of-?????`.

The index is a sorted table in LevelDB's format. Its values are protobuf messages that say where in the data files each
array lies. Every block of the index and every array has a masked CRC32C.
"""

import math
import struct
from collections.abc import Iterator
from typing import IO, Any

import jax.numpy as jnp
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from resnet_tpu import storage
from resnet_tpu.data.tfrecord import masked_crc
from resnet_tpu.errors import UserError

_SCHEMA = """
name: "resnet_tpu/tensor_bundle.proto" package: "tensorflow" syntax: "proto3"
message_type {
  name: "BundleHeader"
  field { name: "num_shards" number: 1 type: TYPE_INT32 }
  field { name: "endianness" number: 2 type: TYPE_INT32 }
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


def _message_classes() -> tuple[Any, Any]:
    """The message classes of the header and of an entry, in a pool of their own, apart from TensorFlow's."""
    file = text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto())
    for field in (field for owner in file.message_type for field in owner.field):
        field.label = field.label or field.LABEL_OPTIONAL
        field.type = field.TYPE_MESSAGE if field.type_name else field.type
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("tensorflow.BundleHeader", "tensorflow.BundleEntry")
    header, entry = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return header, entry


_Header, _Entry = _message_classes()

# TensorFlow's numbers of the types
_DTYPES = {
    1: np.float32, 2: np.float64, 3: np.int32, 4: np.uint8, 5: np.int16, 6: np.int8, 9: np.int64, 10: np.bool_,
    14: jnp.bfloat16, 17: np.uint16, 19: np.float16, 22: np.uint32, 23: np.uint64,
}  # fmt: skip
_STRING = 7
_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_BYTES = 48
_DO = "Copy or save the checkpoint again."


def read_bundle(prefix: str) -> dict[str, np.ndarray]:
    """All arrays of a bundle by name, sorted, read-only, each checked against its checksum. Text is left out.

    Raises UserError, naming the file, when one is missing, truncated, damaged or holds what cannot be read.
    """
    index = f"{prefix}.index"
    num_shards, entries = _read_index(index)
    arrays: dict[str, np.ndarray] = {}
    for shard in sorted({entry.shard_id for entry in entries.values()}):
        path = f"{prefix}.data-{shard:05d}-of-{num_shards:05d}"
        names = [name for name, entry in entries.items() if entry.shard_id == shard]
        try:
            size, _ = storage.file_state(path)
            with storage.open_read(path) as file:
                for name in sorted(names, key=lambda name: entries[name].offset):
                    arrays[name] = _read_array(file, path, size, name, entries[name])
        except OSError as error:
            raise _unreadable(path, error) from None
    return {name: arrays[name] for name in entries}


def _read_array(file: IO[bytes], path: str, file_size: int, name: str, entry: Any) -> np.ndarray:
    dtype = np.dtype(_DTYPES[entry.dtype])
    shape = tuple(dim.size for dim in entry.shape.dim)
    if entry.size != math.prod(shape) * dtype.itemsize:
        raise UserError(f"Variable {name} of {path}", f"{entry.size} bytes", f"{dtype} {list(shape)}", _DO)
    if not 0 <= entry.offset <= entry.offset + entry.size <= file_size:
        needed = f"at least {entry.offset + entry.size}, for variable {name}"
        raise UserError(f"Checkpoint file {path}", f"{file_size} bytes", needed, _DO)
    file.seek(entry.offset)
    data = file.read(entry.size)
    if (crc := masked_crc(data)) != entry.crc32c:
        raise UserError(f"Variable {name} of {path}", f"checksum {crc:#010x}", f"{entry.crc32c:#010x}", _DO)
    return np.frombuffer(data, dtype).reshape(shape)


def _read_index(path: str) -> tuple[int, dict[str, Any]]:
    """(number of data files, what the index says of each array)."""
    try:
        with storage.open_read(path) as file:
            data = file.read()
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        table = dict(_read_table(data))
        header = _Header.FromString(table.pop(b""))
        entries = {key.decode(errors="backslashreplace"): _Entry.FromString(value) for key, value in table.items()}
    except KeyError:
        raise UserError(f"Checkpoint index {path}", "no header", "an index of TensorFlow's", _DO) from None
    except (ValueError, message.DecodeError) as error:
        raise UserError(f"Checkpoint index {path}", error, "a whole, undamaged file", _DO) from None
    if header.endianness != 0:
        raise UserError(f"Checkpoint index {path}", "big-endian data", "little-endian data", "Save it elsewhere.")
    entries = {name: entry for name, entry in entries.items() if entry.dtype != _STRING}
    for name, entry in entries.items():
        what = f"Variable {name} of {path}"
        if entry.slices:
            raise UserError(what, "parts of a whole", "variables that are not partitioned", "Save it as one variable.")
        if entry.dtype not in _DTYPES:
            raise UserError(what, f"TensorFlow type {entry.dtype}", "numbers", "Save it without this variable.")
        if not 0 <= entry.shard_id < header.num_shards:
            raise UserError(what, f"data file {entry.shard_id}", f"one of {header.num_shards} files", _DO)
    return header.num_shards, entries


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a LevelDB table. Raises ValueError when it is damaged."""
    if len(data) < _FOOTER_BYTES or not data.endswith(_MAGIC):
        raise ValueError("a file without the mark at the end of an index")
    footer = data[-_FOOTER_BYTES:]
    _, position = _read_handle(footer, 0)  # of the table's metadata, which is empty
    index, _ = _read_handle(footer, position)
    for _, value in _read_entries(_read_block(data, *index)):
        block, _ = _read_handle(value, 0)
        yield from _read_entries(_read_block(data, *block))


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """((offset, size) of a block, the position after them)."""
    offset, position = _read_varint(data, position)
    size, position = _read_varint(data, position)
    return (offset, size), position


def _read_block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + 5 > len(data):
        raise ValueError("a block that ends beyond the file")
    (crc,) = struct.unpack_from("<I", data, end + 1)
    if masked_crc(data[offset : end + 1]) != crc:
        raise ValueError(f"a wrong checksum of the block at byte {offset}")
    compression = data[end]
    if compression > 1:
        raise ValueError(f"compression {compression}")
    block = data[offset:end]
    return decompress_snappy(block) if compression else block


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a block; a key is stored as what differs from the key before it."""
    if len(block) < 4:
        raise ValueError("a block without an end")
    (num_restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (num_restarts + 1)
    key, position = b"", 0
    while position < end:
        shared, position = _read_varint(block, position)
        unshared, position = _read_varint(block, position)
        length, position = _read_varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """(a number of 7 bits a byte, lowest first; the position after it)."""
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number without an end")


def decompress_snappy(data: bytes) -> bytes:
    """What Snappy (raw format, without framing) compressed to `data`. Raises ValueError when it is damaged.

    Source: format_description.txt of github.com/google/snappy.
    """
    length, position = _read_varint(data, 0)
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        if tag & 3 == 0:
            size = tag >> 2
            if size >= 60:  # the size follows in 1 to 4 bytes
                width = size - 59
                size = int.from_bytes(data[position : position + width], "little")
                position += width
            out += data[position : position + size + 1]
            position += size + 1
            continue
        if tag & 3 == 1:
            width, size, high = 1, 4 + (tag >> 2 & 7), tag >> 5 << 8
        else:
            width, size, high = (2 if tag & 3 == 2 else 4), 1 + (tag >> 2), 0
        distance = high | int.from_bytes(data[position : position + width], "little")
        position += width
        if not 0 < distance <= len(out):
            raise ValueError("compressed data that refers to what is not there")
        start = len(out) - distance
        copied = out[start : start + size]
        out += (copied * (size // len(copied) + 1))[:size]  # a copy may reach into what it is writing
    if len(out) != length:
        raise ValueError(f"compressed data of {len(out)} bytes instead of {length}")
    return bytes(out)


def _unreadable(path: str, error: OSError) -> UserError:
    got = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or error
    return UserError(f"Checkpoint file {path}", got, "a readable file", "Check path and permissions.")
