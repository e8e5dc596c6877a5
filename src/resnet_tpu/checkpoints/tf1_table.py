"""LevelDB's sorted table, as TensorFlow writes it: blocks of (key, value) pairs, each with a masked CRC32C.

Source: doc/table_format.md of github.com/google/leveldb.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping

from resnet_tpu.data.records.tfrecord import masked_crc

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_BYTES = 48
_PLAIN = 0  # how TensorFlow stores every block; only releases around 1.1 compressed them
_MAX_KEY_BYTES = 64 << 20  # of all keys; those of the largest network take less than a hundredth


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a table, the keys ascending. Raises ValueError when it is damaged."""
    if len(data) < _FOOTER_BYTES or not data.endswith(_MAGIC):
        raise ValueError("a file without the magic number at the end of an index")
    footer = data[-_FOOTER_BYTES:]
    _, position = _read_handle(footer, 0)  # of the table's metadata, which is empty
    index, _ = _read_handle(footer, position)
    handles = (_read_handle(value, 0)[0] for _, value in _read_entries([_read_block(data, *index)]))
    yield from _read_entries(_read_blocks(data, handles))


def _read_blocks(data: bytes, handles: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The blocks in their order. None is read twice: a small table could otherwise expand to gigabytes."""
    end = 0
    for offset, size in handles:
        if offset < end:
            raise ValueError(f"a block at byte {offset}, where the one before it ends at {end}")
        end = offset + size
        yield _read_block(data, offset, size)


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
    if data[end] != _PLAIN:
        raise ValueError(f"a block with compression {data[end]}, which TensorFlow no longer writes")
    return data[offset:end]


def _read_entries(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The pairs in the blocks, keys ascending; a key is stored as its difference from the one before in its block."""
    last, key_bytes = None, 0
    for block in blocks:
        end = len(block) - 4
        if end >= 0:
            (num_restarts,) = struct.unpack_from("<I", block, end)
            end -= 4 * num_restarts
        if end < 0:
            raise ValueError("a block without an end")
        key, position = b"", 0
        while position < end:
            shared, position = _read_varint(block, position)
            unshared, position = _read_varint(block, position)
            length, position = _read_varint(block, position)
            start = position + unshared
            if shared > len(key) or start + length > end:
                raise ValueError("an entry that ends beyond its block")
            key, position = key[:shared] + block[position:start], start + length
            key_bytes += len(key)
            if key_bytes > _MAX_KEY_BYTES:
                raise ValueError(f"keys of more than {_MAX_KEY_BYTES} bytes in all")
            if last is not None and key <= last:
                raise ValueError(f"the key {key[:80]!r} after {last[:80]!r}")
            last = key
            yield key, block[start:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """(a number stored as 7 bits per byte, lowest first; the position after it)."""
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("an unterminated number")


def make_table(pairs: Mapping[bytes, bytes]) -> bytes:
    """A table of `pairs`: one plain block, every key written out, which all readers of the format accept."""
    table = bytearray()

    def add(entries: Mapping[bytes, bytes]) -> bytes:
        block = _make_block(entries) + bytes([_PLAIN])
        handle = _make_varint(len(table)) + _make_varint(len(block) - 1)
        table.extend(block + struct.pack("<I", masked_crc(block)))
        return handle

    data = add(dict(sorted(pairs.items())))
    footer = add({}) + add({max(pairs): data})  # the metadata, then where the block is and the last key in it
    return bytes(table) + footer.ljust(_FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC


def _make_block(entries: Mapping[bytes, bytes]) -> bytes:
    block, restarts = bytearray(), []  # a restart is where a key is written out
    for key, value in entries.items():
        restarts.append(len(block))
        block += _make_varint(0) + _make_varint(len(key)) + _make_varint(len(value)) + key + value
    restarts = restarts or [0]
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _make_varint(value: int) -> bytes:
    """The number as 7 bits per byte, lowest first, as in protobuf."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
