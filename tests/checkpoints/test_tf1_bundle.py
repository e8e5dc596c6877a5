"""The tensor bundle: it reads back as written, and no damage goes unnoticed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1_bundle
from resnet_tpu.checkpoints.tf1_bundle import read_bundle
from resnet_tpu.checkpoints.tf1_table import make_table
from resnet_tpu.data.records.tfrecord import masked_crc
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
def test_reads_every_type_from_any_layout(write_bundle: WriteBundle, num_shards: int) -> None:
    arrays = _arrays()
    _assert_same(read_bundle(write_bundle(arrays, num_shards=num_shards)), arrays)


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_a_damaged_byte_anywhere_is_an_error_or_makes_no_difference(write_bundle: WriteBundle, suffix: str) -> None:
    arrays = {"conv2d/kernel": np.arange(6, dtype=np.float32), "conv2d_1/kernel": np.ones(2, np.float32)}
    prefix = write_bundle(arrays)
    file = Path(prefix + suffix)
    whole = file.read_bytes()
    unnoticed = []
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            _assert_same(read_bundle(prefix), arrays)
            unnoticed.append(position)
        except UserError as error:
            assert str(file) in str(error)
    # The metadata block, its position and the padding of the footer (48 bytes, of which 8 name the format) carry no
    # information.
    footer = len(whole) - 48
    metadata = [position for position in unnoticed if position < footer]
    if suffix != ".index":
        assert unnoticed == []
    else:
        assert metadata == list(range(metadata[0], metadata[-1] + 1))
        assert len(metadata) == 13
        assert max(unnoticed) < len(whole) - 8


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
    with pytest.raises(UserError, match=r"photo\.index: got a file without the magic number"):
        read_bundle(str(tmp_path / "photo"))


@pytest.mark.parametrize("content", [b"", b"a text file\n" * 20], ids=["empty", "text"])
def test_text_is_no_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.index").write_bytes(content)
    for read in (tf1_bundle.read_index, read_bundle):
        with pytest.raises(UserError, match=r"notes\.index: got a file without the magic number"):
            read(str(tmp_path / "notes"))


def test_another_table_is_no_index_of_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "other.index").write_bytes(make_table({b"key": b"value"}))
    with pytest.raises(UserError, match=r"other\.index: got no header, expected a TensorFlow index"):
        read_bundle(str(tmp_path / "other"))


@pytest.mark.parametrize("num_shards", [1, 3])
def test_an_index_tells_all_but_the_values(write_bundle: WriteBundle, num_shards: int) -> None:
    arrays = _arrays()
    prefix = write_bundle(arrays, num_shards=num_shards)
    for data in Path(prefix).parent.glob("*.data-*"):
        data.unlink()
    index = tf1_bundle.read_index(prefix)
    assert list(index) == sorted(arrays)
    for name, array in arrays.items():
        assert index[name] == (array.dtype, array.shape, array.nbytes), name


def test_reads_only_what_is_asked_for(write_bundle: WriteBundle) -> None:
    arrays = {"a": np.ones(3), "b": np.zeros(2, np.float32), "c": np.arange(5)}
    prefix = write_bundle(arrays, num_shards=3)
    Path(f"{prefix}.data-00001-of-00003").unlink()
    _assert_same(read_bundle(prefix, ["c", "a", "d"]), {"a": arrays["a"], "c": arrays["c"]})


def test_arrays_cannot_be_written_to(write_bundle: WriteBundle) -> None:
    read = read_bundle(write_bundle(_arrays()))
    assert not any(array.flags.writeable for array in read.values())
    assert all(array.flags.aligned for array in read.values())


@pytest.mark.parametrize("place", ["", "memory://bucket"], ids=["local", "bucket"])
def test_reads_what_it_wrote(tmp_path: Path, place: str) -> None:
    arrays = _arrays() | {
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "größe": np.ones(1, np.float32),
        "device": np.asarray(jnp.arange(4.0)),
    }
    prefix = f"{place or tmp_path}/model.ckpt-3"
    try:
        tf1_bundle.write_bundle(prefix, arrays | {"device": jnp.arange(4.0)})
        _assert_same(read_bundle(prefix), arrays)
    finally:
        if place:
            fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_arrays_stay_when_their_files_are_replaced(tmp_path: Path) -> None:
    arrays, prefix = _arrays(), str(tmp_path / "model.ckpt-3")
    tf1_bundle.write_bundle(prefix, arrays)
    read = read_bundle(prefix)
    tf1_bundle.write_bundle(prefix, {"a": np.zeros(1)})
    _assert_same(read, arrays)


def test_an_empty_bundle_is_valid(tmp_path: Path) -> None:
    tf1_bundle.write_bundle(str(tmp_path / "empty"), {})
    assert read_bundle(str(tmp_path / "empty")) == {}


def test_failed_write_leaves_the_old_bundle(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt-3")
    broken = {"a": np.ones(4), "b": np.array(["text"])}
    with pytest.raises(KeyError):
        tf1_bundle.write_bundle(prefix, broken)
    assert list(tmp_path.iterdir()) == []
    tf1_bundle.write_bundle(prefix, {"a": np.zeros(4)})
    with pytest.raises(KeyError):
        tf1_bundle.write_bundle(prefix, broken)
    _assert_same(read_bundle(prefix), {"a": np.zeros(4)})
    assert len(list(tmp_path.iterdir())) == 2


def _write_entries(prefix: Path, data: bytes, names: Sequence[str], shape: Sequence[int], **values: Any) -> str:
    """Writes a bundle of these variables, all described by the same values."""
    entry = tf1_bundle._Entry(**({"dtype": 1, "size": len(data), "crc32c": masked_crc(data)} | values))
    for size in shape:
        entry.shape.dim.add(size=size)
    header = tf1_bundle._Header(num_shards=1).SerializeToString()
    entries = {b"": header, **{name.encode(): entry.SerializeToString() for name in names}}
    Path(f"{prefix}.index").write_bytes(make_table(entries))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return str(prefix)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": [-1, -4]}, r"shape \[-1, -4\], expected at most 32 dimensions, none of them negative"),
        ({"shape": [-4], "size": -16}, "none of them negative"),
        ({"shape": [4] + [1] * 40}, "expected at most 32 dimensions"),
        ({"shape": [2**62] * 50_000}, "expected at most 32 dimensions"),
        ({"shape": [2**62] * 32}, r"got 16 bytes, expected float32 \[4611686018427387904, "),
        ({"shape": [4], "offset": -8}, "expected at least 8, for variable a"),
        (
            {"shape": [2**61 - 4], "size": 2**63 - 16, "offset": 16},
            "got 16 bytes, expected at least 9223372036854775808",
        ),
    ],
    ids=range(7),
)
def test_a_shape_or_place_that_no_array_has(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    prefix = _write_entries(tmp_path / "odd", bytes(16), ["a"], **values)
    with pytest.raises(UserError, match=message) as caught:
        read_bundle(prefix)
    assert len(str(caught.value)) < 1_500
    if "dimensions" in message:
        with pytest.raises(UserError, match=message):
            tf1_bundle.read_index(prefix)


def test_variables_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    prefix = _write_entries(tmp_path / "copies", bytes(16), ["a", "b"], [4])
    with pytest.raises(UserError, match=r"got 16 bytes, expected 32, of all variables"):
        read_bundle(prefix)


def test_a_partition_of_a_variable_is_refused(tmp_path: Path) -> None:
    prefix = _write_entries(tmp_path / "parts", bytes(16), ["a"], [4], slices=[b"of a"])
    with pytest.raises(UserError, match=r"Variable a of .*: got one partition, expected variables that are not part"):
        read_bundle(prefix)


def test_numbers_of_a_big_endian_machine_are_refused(tmp_path: Path) -> None:
    header = tf1_bundle._Header(num_shards=1, endianness=1)
    (tmp_path / "big.index").write_bytes(make_table({b"": header.SerializeToString()}))
    with pytest.raises(UserError, match=r"big\.index: got big-endian data, expected little-endian data"):
        read_bundle(str(tmp_path / "big"))


def test_an_index_is_small(tmp_path: Path) -> None:
    with (tmp_path / "large.index").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="got more than 16777216 bytes, expected the names and places"):
        read_bundle(str(tmp_path / "large"))
