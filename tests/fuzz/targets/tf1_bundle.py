"""TensorFlow's checkpoints: index, table, compression, descriptions of variables."""

import contextlib
import struct
import tempfile
from pathlib import Path

from resnet_tpu.checkpoints import tf1_describe
from resnet_tpu.checkpoints.tf1 import find_checkpoint
from resnet_tpu.checkpoints.tf1_bundle import read_bundle, read_index
from resnet_tpu.checkpoints.tf1_lottery import masked_variables
from resnet_tpu.checkpoints.tf1_table import decompress_snappy, make_table
from resnet_tpu.data.records.tfrecord import masked_crc
from resnet_tpu.errors import UserError

_FOLDER = tempfile.TemporaryDirectory()
_PREFIX = Path(_FOLDER.name) / "model.ckpt-7"
_HEADER = b"\x08\x01"  # one data file
_DATA = bytes(256)


def one_input(data: bytes) -> None:
    """`data` as an index, a block of one, a compressed block, a variable's description, and a `checkpoint` file."""
    Path(f"{_PREFIX}.data-00000-of-00001").write_bytes(_DATA)
    with contextlib.suppress(ValueError):
        decompress_snappy(data)
    for index in (data, _table(data, 0), _table(data, 1), make_table({b"": _HEADER, b"conv2d/kernel": data})):
        Path(f"{_PREFIX}.index").write_bytes(index)
        with contextlib.suppress(UserError):
            tf1_describe.options_of(read_index(str(_PREFIX)))
        with contextlib.suppress(UserError):
            tf1_describe.options_of(masked_variables(read_bundle(str(_PREFIX))))
    (_PREFIX.parent / "checkpoint").write_bytes(data)
    find_checkpoint(str(_PREFIX.parent))


def _table(block: bytes, compression: int) -> bytes:
    """A table of one block, with correct checksums."""
    out = b""

    def add(content: bytes, kind: int) -> bytes:
        nonlocal out
        place = _varint(len(out)) + _varint(len(content))
        checked = content + bytes([kind])
        out += checked + struct.pack("<I", masked_crc(checked))
        return place

    place = add(block, compression)
    end = struct.pack("<II", 0, 1)
    footer = add(end, 0) + add(b"\0\1" + bytes([len(place)]) + b"z" + place + end, 0)
    return out + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
