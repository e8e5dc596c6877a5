"""Examples: every feature is restored, equal features give equal bytes, and foreign bytes are refused."""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet_tpu.data.records.example import decode_example, encode_example, parse_image_example, read_label
from resnet_tpu.data.records.tfrecord import read_records
from resnet_tpu.errors import UserError

FEATURES = st.dictionaries(
    st.text(),
    st.lists(st.binary(max_size=50), max_size=4)
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
    | st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
    max_size=5,
)


@given(FEATURES)
def test_features_come_back(features) -> None:
    assert decode_example(encode_example(features)) == features


@given(FEATURES)
def test_order_does_not_matter(features) -> None:
    backwards = dict(reversed(features.items()))
    assert encode_example(backwards) == encode_example(features)


@given(st.binary())
def test_foreign_bytes_are_an_example_or_a_user_error(data: bytes) -> None:
    try:
        decode_example(data)
        parse_image_example(data)
    except UserError as error:
        assert "Example" in str(error) or "Feature" in str(error)


LABELLED = {"image/class/label": st.integers(-(2**63), 2**63 - 1)} | dict.fromkeys(
    ("image/class/text", "image/class/synset", "image/encoded"), st.binary(max_size=300)
)


@given(FEATURES, st.fixed_dictionaries({}, optional=LABELLED), st.binary(max_size=9))
def test_labels_are_read_without_their_images_alike(others, labelled, before: bytes) -> None:
    others = {name: value for name, value in others.items() if not name.startswith("image/")}  # those have fixed types
    data = encode_example(others | labelled)
    example = parse_image_example(data)
    assert read_label(io.BytesIO(before + data + b"next"), len(before), len(data)) == (example.label, example.text)


class Counted(io.BytesIO):
    """Counts the bytes that are read from it."""

    num_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        return data


def test_an_image_is_not_read_for_its_label() -> None:
    image = bytes(1_000_000)
    file = Counted(encode_example({"image/encoded": image, "image/class/label": 3, "image/class/text": "rose"}))
    assert read_label(file, 0, len(file.getvalue())) == (3, "rose")
    assert file.num_read < 1000


def backwards(example: bytes) -> bytes:
    """The example with a map entry whose value precedes its key, which is valid although nobody writes it."""
    key, value = b"\x0a\x11image/class/label", b"\x12" + example[example.index(b"label") + 6 :]
    assert example.endswith(key + value)
    return example[: -len(key + value)] + value + key


def test_labels_of_unusual_examples() -> None:
    usual = encode_example({"image/class/label": 5})
    for data in (usual, backwards(usual), usual + b"\x10\x07"):  # the last one has a field that Example does not define
        assert parse_image_example(data).label == 5
        assert read_label(io.BytesIO(data), 0, len(data)) == (5, "")


def test_an_example_that_is_cut_off_takes_no_label_from_what_follows() -> None:
    data = encode_example({"image/class/label": 5})
    for length in range(1, len(data)):
        with pytest.raises(UserError):
            read_label(io.BytesIO(data), 0, length)


@given(st.binary())
def test_labels_of_foreign_bytes_are_an_example_or_a_user_error(data: bytes) -> None:
    with contextlib.suppress(UserError):
        read_label(io.BytesIO(data), 0, len(data))


def test_single_values_and_numpy() -> None:
    features: dict[str, Any] = {
        "a": 3,
        "b": 0.5,
        "c": "é",
        "d": b"\xff",
        "e": np.int32(7),
        "f": np.array([1.5, 2]),
        "g": np.arange(3),
    }
    expected = {"a": [3], "b": [0.5], "c": ["é".encode()], "d": [b"\xff"], "e": [7], "f": [1.5, 2.0], "g": [0, 1, 2]}
    assert decode_example(encode_example(features)) == expected


def test_file_names_keep_their_bytes() -> None:
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    serialized = encode_example({"image/filename": name})
    assert decode_example(serialized) == {"image/filename": [b"caf\xe9.jpg"]}
    assert parse_image_example(serialized).filename == "caf\\xe9.jpg"


def test_a_feature_of_mixed_kinds_is_refused() -> None:
    mixed: Any = [1, "a"]
    with pytest.raises(TypeError, match="'x'"):
        encode_example({"x": mixed})
    assert decode_example(encode_example({"x": [1, 0.5]})) == {"x": [1.0, 0.5]}  # the integer becomes a float


def test_all_features_of_an_image_are_optional() -> None:
    assert parse_image_example(encode_example({})) == (b"", -1, "", "")
    assert parse_image_example(encode_example({"image/class/label": [], "other": 1})).label == -1
    assert parse_image_example(encode_example({"image/class/synset": "n01"})).text == "n01"


@pytest.mark.parametrize("label", [[1, 2], "1", 1.0])
def test_a_label_of_another_kind_is_refused(label) -> None:
    with pytest.raises(UserError, match=r"Feature image/class/label: got .* expected one whole number"):
        parse_image_example(encode_example({"image/class/label": label}))


def test_parity_with_the_original(golden: Callable[[str], Path]) -> None:
    expected = json.loads(golden("tfrecord/expected.json").read_text())
    for name, file in expected["files"].items():
        records = list(read_records(str(golden(f"tfrecord/data/{name}"))))
        assert len(records) == len(file["records"])
        for record, features in zip(records, file["records"], strict=True):
            decoded = decode_example(record)
            assert sorted(decoded) == expected["feature_keys"]
            assert decode_example(encode_example(decoded)) == decoded
            for key, feature in features.items():
                (value,) = decoded[key]
                if "sha256" in feature:
                    assert isinstance(value, bytes)
                    assert (hashlib.sha256(value).hexdigest(), len(value)) == (feature["sha256"], feature["bytes"])
                else:
                    assert value == (feature["value"].encode() if feature["kind"] == "bytes_list" else feature["value"])
            image = parse_image_example(record)
            assert image.label == features["image/class/label"]["value"]
            assert image.text == features["image/class/synset"]["value"]
            assert image.filename == features["image/filename"]["value"]


@pytest.mark.peer("tensorflow-cpu")
def test_tensorflow_reads_what_we_write() -> None:
    tf = pytest.importorskip("tensorflow")  # its descriptor pool has the same message names
    features = {"a": [1, -2], "b": [b"x", b""], "c": [0.5], "d": [2**63 - 1]}
    example = tf.train.Example.FromString(encode_example(features))
    assert list(example.features.feature["a"].int64_list.value) == [1, -2]
    assert list(example.features.feature["b"].bytes_list.value) == [b"x", b""]
    assert decode_example(example.SerializeToString()) == features
