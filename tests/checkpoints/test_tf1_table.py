"""LevelDB's table: what was made is read, and Snappy's elements one by one."""

import pytest

from resnet_tpu.checkpoints.tf1_table import decompress_snappy, make_table, read_table


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_what_is_made_is_read_in_order(count: int) -> None:
    pairs = {f"key/{i * 7919 % 1000}".encode(): bytes([i % 256]) * (i % 200) for i in range(count)} | {b"": b"first"}
    assert list(read_table(make_table(pairs))) == sorted(pairs.items())


def test_a_table_of_large_values() -> None:
    pairs = {b"a": b"x" * 70_000, b"b" * 300: b""}
    assert dict(read_table(make_table(pairs))) == pairs


def test_snappy_by_the_library_itself() -> None:
    # cramjam 2.14.0, snappy.compress_raw
    text = b"dense/kernel dense/kernel/Momentum dense/bias dense/bias/Momentum dense_dense_" + b"=" * 100
    packed = (
        "b2013064656e73652f6b65726e656c202e0d00202f4d6f6d656e74756d0d160c626961731d0b3a1f00005f053b045f3dfe01008a0100"
    )
    assert decompress_snappy(bytes.fromhex(packed)) == text


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (b"\x00", b""),
        (b"\x03\x08abc", b"abc"),
        (b"\x3d\xf0\x3c" + b"x" * 61, b"x" * 61),  # literal with its size in 1 byte
        (b"\xac\x02\xf4\x2b\x01" + b"y" * 300, b"y" * 300),  # in 2 bytes
        (b"\x03\xf8\x02\x00\x00abc", b"abc"),  # in 3
        (b"\x03\xfc\x02\x00\x00\x00abc", b"abc"),  # in 4
        (b"\x07\x08abc\x01\x03", b"abcabca"),  # copy of 4, 1 byte of distance
        (b"\x08\x08abc\x12\x02\x00", b"abcbcbcb"),  # copy of 5 that reaches into itself, 2 bytes of distance
        (b"\x05\x08abc\x07\x03\x00\x00\x00", b"abcab"),  # copy of 2, 4 bytes of distance
    ],
)
def test_snappy_elements(packed: bytes, plain: bytes) -> None:
    assert decompress_snappy(packed) == plain


@pytest.mark.parametrize(
    "packed", [b"", b"\x80", b"\x03\x08ab", b"\x04\x08abc", b"\x04\x00a\x01\x02", b"\x04\x00a\x02"]
)
def test_damaged_snappy_is_an_error(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"without an end|instead of|not there"):
        decompress_snappy(packed)
