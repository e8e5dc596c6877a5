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
    """The records found by reading in order, which must equal those found by number."""
    _FILE.write_bytes(content)
    damage: list[RecordError] = []
    records = list(read_records(str(_FILE), skip_bad=True, on_bad=damage.append))
    assert damage or sum(len(record) + 16 for record in records) == len(content)
    try:
        assert list(RecordFile(str(_FILE))) == records
        assert not damage
    except RecordError:
        assert damage
    return records


def _parse(data: bytes) -> None:
    try:
        features = decode_example(data)
        assert decode_example(encode_example(features)).keys() == features.keys()
        parse_image_example(data)
    except UserError:
        pass
