"""`tf.train.Example` messages without TensorFlow: named features, each a list of bytes, whole numbers or floats."""

import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeVar

from google.protobuf import message

from resnet_tpu.data.records.messages import message_classes
from resnet_tpu.errors import UserError

Feature = bytes | str | int | float | Sequence[bytes] | Sequence[str] | Sequence[int] | Sequence[float]


_SCHEMA = """
name: "resnet_tpu/example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".tensorflow.Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type_name: ".tensorflow.Features" } }
"""


_Example = message_classes(_SCHEMA)["Example"]
_Features: Any = type(_Example().features)

_LABELLING = (b"image/class/label", b"image/class/text", b"image/class/synset")
_LONGEST_KEY = max(map(len, _LABELLING)) + 1
_TAG = 1 << 3 | 2  # of field number 1, length-delimited: bytes, text or a message
_LONGEST_HEAD = 11  # bytes of a tag and the size after it


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """The serialised Example of `features`; equal features give equal bytes, whatever their order.

    A value is one element or a sequence of one kind. Text becomes UTF-8; file names not in UTF-8 keep their bytes.
    Raises TypeError for a value that is neither bytes, text nor numbers, ValueError for a number beyond 64 bits.
    """
    example = _Example()
    for name, value in features.items():
        values: list[Any] = (
            list(value) if isinstance(value, Iterable) and not isinstance(value, bytes | str) else [value]
        )
        feature = example.features.feature[name]
        if all(isinstance(one, bytes | str) for one in values):
            feature.bytes_list.value.extend(
                one if isinstance(one, bytes) else str(one).encode("utf-8", "surrogateescape") for one in values
            )
        elif all(isinstance(one, numbers.Integral) for one in values):
            feature.int64_list.value.extend(int(one) for one in values)
        elif all(isinstance(one, numbers.Real) for one in values):
            feature.float_list.value.extend(float(one) for one in values)
        else:
            raise TypeError(f"feature {name!r}: expected bytes, text, whole numbers or floats, got {value!r:.80}")
    return example.SerializeToString(deterministic=True)


def decode_example(serialized: bytes) -> dict[str, list[bytes] | list[int] | list[float]]:
    """Every feature of a serialised Example; a feature without values is an empty list.

    Raises UserError when the bytes are not an Example.
    """
    return {name: _values(feature) for name, feature in _parse(serialized).items()}


class ImageExample(NamedTuple):
    """The parts of an image record that the reader uses."""

    encoded: bytes  # the image file; empty if the record has none
    label: int  # as stored: 1 ... N in the original's format; -1 if the record has none
    text: str  # class name, else synset, else empty
    filename: str


def parse_image_example(serialized: bytes) -> ImageExample:
    """The image, label and names of a serialised Example; all are optional, and unknown features are ignored.

    Raises UserError when the bytes are not an Example, or one of these features has another type or several values.
    """
    return _image_example(_parse(serialized))


def read_label(file: IO[bytes], start: int, length: int) -> tuple[int, str]:
    """Label and class name of a serialised Example in a file, as by `parse_image_example`, without reading its image.

    Raises UserError in the same cases.
    """
    entries: list[bytes] = []
    try:
        for _, low, high in _fields(file, start, start + length):
            for begin, first, end in _fields(file, low, high):
                _, key, key_end = next(_fields(file, first, end))  # an entry of the map: its key, then its value
                if _read(file, key, min(key_end, key + _LONGEST_KEY)) in _LABELLING:
                    entries.append(_read(file, begin, end))
        features = _Features.FromString(b"".join(entries)).feature
    except (ValueError, IndexError, StopIteration, message.DecodeError):  # unusual, but perhaps an Example all the same
        features = _parse(_read(file, start, start + length))
    example = _image_example(features)
    return example.label, example.text


def _fields(file: IO[bytes], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message in a file: where each begins, and where its content begins and ends.

    Raises ValueError or IndexError unless all have number 1 and hold bytes, and the last ends where the message does.
    """
    while start < stop:
        head = _read(file, start, min(start + _LONGEST_HEAD, stop))
        if head[0] != _TAG:
            raise ValueError(head[0])
        size, at = 0, 1
        while True:
            size |= (head[at] & 0x7F) << 7 * (at - 1)
            at += 1
            if head[at - 1] < 0x80:
                break
        if start + at + size > stop:
            raise ValueError(size)
        yield start, start + at, start + at + size
        start += at + size


def _read(file: IO[bytes], start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def _image_example(features: Any) -> ImageExample:
    text = _single(features, "image/class/text", b"") or _single(features, "image/class/synset", b"")
    return ImageExample(
        _single(features, "image/encoded", b""),
        _single(features, "image/class/label", -1),
        text.decode("utf-8", "backslashreplace"),
        _single(features, "image/filename", b"").decode("utf-8", "backslashreplace"),
    )


def _parse(serialized: bytes) -> Any:
    try:
        return _Example.FromString(serialized).features.feature
    except message.DecodeError:
        raise UserError(
            "Record",
            f"{len(serialized)} bytes of another kind",
            "a tf.train.Example",
            "Check where the file comes from.",
        ) from None


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


_Value = TypeVar("_Value", bytes, int)


def _single(features: Any, name: str, default: _Value) -> _Value:
    values = _values(features[name]) if name in features else []
    if not values:
        return default
    if len(values) > 1 or type(values[0]) is not type(default):
        words = {bytes: "one string of bytes", int: "one whole number"}
        got = f"{len(values)} values" if len(values) > 1 else f"a {type(values[0]).__name__}"
        raise UserError(f"Feature {name}", got, words[type(default)], "Check what wrote the records.")
    return values[0]
