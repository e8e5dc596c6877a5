"""LevelDB's table reads back as written, and what no program writes is refused."""

import struct
from collections.abc import Callable, Iterable, Sequence

import pytest

from resnet_tpu.checkpoints.tf1_table import make_table, read_table
from resnet_tpu.data.records.tfrecord import masked_crc


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_what_is_made_is_read_in_order(count: int) -> None:
    pairs = {f"key/{i * 7919 % 1000}".encode(): bytes([i % 256]) * (i % 200) for i in range(count)} | {b"": b"first"}
    assert list(read_table(make_table(pairs))) == sorted(pairs.items())


def test_a_table_of_large_values() -> None:
    pairs = {b"a": b"x" * 70_000, b"b" * 300: b""}
    assert dict(read_table(make_table(pairs))) == pairs


def _table(*blocks: bytes, handles: Sequence[int], compression: int = 0) -> bytes:
    """A table of these raw blocks, whose index refers to them by number, in the order of `handles`."""
    out, places = b"", []

    def add(block: bytes) -> bytes:
        nonlocal out
        place = _varint(len(out)) + _varint(len(block))
        kind = bytes([compression])
        out += block + kind + struct.pack("<I", masked_crc(block + kind))
        return place

    places = [add(block) for block in blocks]
    entries = [(0, b"%08d" % number, places[handle]) for number, handle in enumerate(handles)]
    footer = add(_block([])) + add(_block(entries))
    return out + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _block(entries: Iterable[tuple[int, bytes, bytes]], num_restarts: int = 1) -> bytes:
    """A block of entries (number of bytes shared with the previous key, rest of the key, value)."""
    rows = (_varint(shared) + _varint(len(key)) + _varint(len(value)) + key + value for shared, key, value in entries)
    return b"".join(rows) + struct.pack("<II", 0, num_restarts)


def test_a_table_of_several_blocks() -> None:
    first, second = _block([(0, b"aa", b"1"), (1, b"b", b"2")]), _block([(0, b"b", b"3")])
    table = _table(first, second, handles=[0, 1])
    assert list(read_table(table)) == [(b"aa", b"1"), (b"ab", b"2"), (b"b", b"3")]


def _growing(count: int, start: int = 0) -> bytes:
    return _block((start + n if n else 0, b"a" * (1 if n else start + 1), b"") for n in range(count))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _table(_growing(100_000), handles=[0]), "keys of more than 67108864 bytes"),
        (
            lambda: _table(_growing(9_000), _growing(9_000, start=9_000), handles=[0, 1]),
            "keys of more than 67108864 bytes",
        ),
        (
            lambda: _table(_block([(0, b"a", bytes(1_000_000))]), handles=[0] * 20_000),
            "a block at byte 0, where the one before",
        ),
        (
            lambda: _table(_block([(0, b"b", b"")]), _block([(0, b"a", b"")]), handles=[1, 0]),
            "a block at byte 0, where",
        ),
        (lambda: _table(_block([(0, b"b", b"")]), _block([(0, b"a", b"")]), handles=[0, 1]), "the key b'a' after b'b'"),
        (lambda: _table(_block([(0, b"a", b""), (0, b"a", b"")]), handles=[0]), "the key b'a' after b'a'"),
        (lambda: _table(_block([(0, b"a", b""), (2, b"b", b"")]), handles=[0]), "an entry that ends beyond its block"),
        (lambda: _table(b"\0\1\5ab" + struct.pack("<II", 0, 1), handles=[0]), "an entry that ends beyond its block"),
        (lambda: _table(_block([(0, b"a", b"")], num_restarts=2**32 - 1), handles=[0]), "a block without an end"),
        (lambda: _table(b"", handles=[0]), "a block without an end"),
        (lambda: _table(_block([(0, b"a", b"")]), handles=[0], compression=1), "a block with compression 1, which"),
    ],
    ids=range(11),
)
def test_a_table_that_no_program_writes(make: Callable[[], bytes], message: str) -> None:
    table = make()
    assert len(table) < 2_000_000
    with pytest.raises(ValueError, match=message):
        list(read_table(table))
