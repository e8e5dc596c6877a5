"""The stored index of a record file: whatever it says, the records read are those of the file."""

import tempfile
from pathlib import Path

import numpy as np

from resnet_tpu import storage
from resnet_tpu.data.records import index
from resnet_tpu.data.records.tfrecord import RecordFile, RecordWriter

_FOLDER = tempfile.TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "train-00000-of-00001"
_INDEX = _FILE.parent / "_index" / f"{_FILE.name}.npy"
_RECORDS = [b"abc", b"", b"defgh" * 9]


def one_input(data: bytes) -> None:
    """`data` as an index file, and as the rows of one."""
    rows = np.frombuffer(data[: len(data) // 16 * 16], np.int64).reshape(-1, 2)
    if not _FILE.exists():
        with RecordWriter(str(_FILE)) as writer:
            for record in _RECORDS:
                writer.write(record)
    state = storage.file_state(str(_FILE))
    for content in (data, index._npy(np.concatenate([np.array([state], np.int64), rows]))):
        _INDEX.write_bytes(content)
        assert list(RecordFile(str(_FILE))) == _RECORDS
