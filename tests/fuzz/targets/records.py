"""Record files and the examples in them: whatever they contain is read, or left out as damaged."""

import tempfile
from pathlib import Path

from resnet_tpu.data.records.example import decode_example, encode_example, parse_image_example
from resnet_tpu.data.records.tfrecord import RecordError, RecordFile, framed, read_records
from resnet_tpu.errors import UserError

_FOLDER = tempfile.TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "train-00000-of-00001"


def one_input(data: bytes) -> None:
    """`data` as a file, as an example, and as an example in a file between two sound records."""
    _read(data)
    _parse(data)
    sound = [b"".join(framed(part)) for part in (b"first", data, b"last")]
    assert _read(b"".join(sound)) == [b"first", data, b"last"]
    found = _read(sound[0] + data + sound[2])
    assert found[0] == b"first"


def _read(content: bytes) -> list[bytes]:
    """The records found by number, which must begin with those found by reading in order up to the first damage."""
    _FILE.write_bytes(content)
    file = RecordFile(str(_FILE), skip_bad=True)
    records, damage = [], file.damage
    for number in range(len(file)):
        try:
            records.append(file[number])
        except RecordError as error:
            damage.append(error)
    assert damage or sum(len(record) + 16 for record in records) == len(content)
    in_order: list[bytes] = []
    try:
        in_order.extend(read_records(str(_FILE)))
        assert not damage
    except RecordError:
        assert damage
    assert in_order == (records[: len(in_order)] if damage else records)
    return records


def _parse(data: bytes) -> None:
    try:
        features = decode_example(data)
        assert decode_example(encode_example(features)).keys() == features.keys()
        parse_image_example(data)
    except UserError:
        pass
