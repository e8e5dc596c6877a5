"""TensorFlow's checkpoints: index, table, descriptions of variables."""

import contextlib
import struct
import tempfile
from pathlib import Path

from resnet_tpu.checkpoints import tf1_describe
from resnet_tpu.checkpoints.tf1 import find_checkpoint
from resnet_tpu.checkpoints.tf1_bundle import read_bundle, read_index
from resnet_tpu.checkpoints.tf1_lottery import masked_variables
from resnet_tpu.checkpoints.tf1_table import make_table
from resnet_tpu.data.records.tfrecord import masked_crc
from resnet_tpu.errors import UserError

_FOLDER = tempfile.TemporaryDirectory()
_PREFIX = Path(_FOLDER.name) / "model.ckpt-7"
_HEADER = b"\x08\x01"  # one data file
_DATA = bytes(256)


def one_input(data: bytes) -> None:
    """`data` as an index, a block of one, a variable's description, and a `checkpoint` file."""
    Path(f"{_PREFIX}.data-00000-of-00001").write_bytes(_DATA)
    for index in (data, _table(data), make_table({b"": _HEADER, b"conv2d/kernel": data})):
        Path(f"{_PREFIX}.index").write_bytes(index)
        with contextlib.suppress(UserError):
            tf1_describe.options_of(read_index(str(_PREFIX)))
        with contextlib.suppress(UserError):
            tf1_describe.options_of(masked_variables(read_bundle(str(_PREFIX))))
    (_PREFIX.parent / "checkpoint").write_bytes(data)
    find_checkpoint(str(_PREFIX.parent))


def _table(block: bytes) -> bytes:
    """A table of one block, with correct checksums."""
    out = b""

    def add(content: bytes) -> bytes:
        nonlocal out
        place = _varint(len(out)) + _varint(len(content))
        checked = content + b"\0"
        out += checked + struct.pack("<I", masked_crc(checked))
        return place

    place = add(block)
    end = struct.pack("<II", 0, 1)
    footer = add(end) + add(b"\0\1" + bytes([len(place)]) + b"z" + place + end)
    return out + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)
