"""The tensor bundle: what was written is read, and no damage passes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints.tf1_bundle import decompress_snappy, read_bundle
from resnet_tpu.errors import UserError

WriteBundle = Callable[..., str]


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {f"conv2d_{i}/kernel": rng.normal(size=(3, i % 4, 2)).astype(np.float32) for i in range(20)}
    arrays |= {
        "global_step": np.array(112603, np.int64),
        "mask": np.array([[0, 1, 1]], jnp.bfloat16),
        "counts": np.array([-1, 2**31 - 1], np.int32),
        "half": np.array([0.5], np.float16),
        "double": np.array([1 / 3]),
        "flag": np.array([True, False]),
        "bytes": np.arange(256, dtype=np.uint8),
        "empty": np.zeros((0, 4), np.float32),
    }
    return arrays


def _assert_same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert list(actual) == sorted(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
def test_reads_every_type_from_any_layout(write_bundle: WriteBundle, num_shards: int, snappy: bool) -> None:
    arrays = _arrays()
    _assert_same(read_bundle(write_bundle(arrays, num_shards=num_shards, snappy=snappy)), arrays)


@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_a_damaged_byte_anywhere_is_an_error_or_makes_no_difference(
    write_bundle: WriteBundle, suffix: str, snappy: bool
) -> None:
    arrays = {"conv2d/kernel": np.arange(6, dtype=np.float32), "conv2d_1/kernel": np.ones(2, np.float32)}
    prefix = write_bundle(arrays, snappy=snappy)
    file = Path(prefix + suffix)
    whole = file.read_bytes()
    unnoticed = 0
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            _assert_same(read_bundle(prefix), arrays)
            unnoticed += 1
        except UserError as error:
            assert str(file) in str(error)
    # The metadata block (13 bytes or 15), its place and the padding of the footer hold nothing.
    assert unnoticed <= (60 if suffix == ".index" else 0)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_a_file_cut_anywhere_is_an_error(write_bundle: WriteBundle, suffix: str) -> None:
    prefix = write_bundle({"conv2d/kernel": np.arange(6, dtype=np.float32)})
    file = Path(prefix + suffix)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=suffix[1:]):
            read_bundle(prefix)


def test_a_missing_shard_is_named(write_bundle: WriteBundle) -> None:
    prefix = write_bundle(_arrays(), num_shards=2)
    Path(f"{prefix}.data-00001-of-00002").unlink()
    with pytest.raises(UserError, match=r"model\.ckpt-7\.data-00001-of-00002: got no such file"):
        read_bundle(prefix)


def test_a_checksum_error_names_the_variable(write_bundle: WriteBundle) -> None:
    prefix = write_bundle({"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)})
    file = Path(f"{prefix}.data-00000-of-00001")
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=r"Variable b of .*: got checksum 0x"):
        read_bundle(prefix)


def test_text_is_left_out_and_other_types_are_refused_by_name(write_bundle: WriteBundle) -> None:
    arrays = {"kernel": np.zeros(4, np.float32), "graph": np.zeros(4, np.uint8)}
    _assert_same(read_bundle(write_bundle(arrays, dtypes={"graph": 7})), {"kernel": arrays["kernel"]})
    with pytest.raises(UserError, match=r"Variable graph .* type 20, expected numbers"):
        read_bundle(write_bundle(arrays, dtypes={"graph": 20}))


def test_a_size_that_does_not_fit_the_shape_is_an_error(write_bundle: WriteBundle) -> None:
    with pytest.raises(UserError, match=r"Variable a of .*: got 4 bytes, expected float32 \[4\]"):
        read_bundle(write_bundle({"a": np.zeros(4, np.uint8)}, dtypes={"a": 1}))


def test_another_file_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "photo.index").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UserError, match=r"photo\.index: got a file without the mark"):
        read_bundle(str(tmp_path / "photo"))


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
