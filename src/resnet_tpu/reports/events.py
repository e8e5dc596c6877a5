"""TensorBoard's event files: writes numbers by tag and step durably, and reads our files and the original's."""

import io
import itertools
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2, summary_pb2, types_pb2
from tensorboardX.record_writer import register_writer_factory

from resnet_tpu import storage
from resnet_tpu.data.records.index import HEADER
from resnet_tpu.data.records.tfrecord import OVERHEAD, RecordError, header_length, read_records
from resnet_tpu.errors import UserError
from resnet_tpu.storage import disks

# the classes in these modules are created at run time, so type checkers do not see them
_events: Any = event_pb2
_summaries: Any = summary_pb2
_types: Any = types_pb2

_FILE_NUMBER = itertools.count()
_DATED = re.compile(r"events\.out\.tfevents\.(\d{10})\.")

# how a TensorProto stores numbers: the type of its raw bytes, and the field for a list of numbers
_TENSOR_FORMS = {_types.DT_FLOAT: ("<f4", "float_val"), _types.DT_DOUBLE: ("<f8", "double_val")}


class Scalar(NamedTuple):
    """A number in an event file. time: of writing, in unix seconds."""

    tag: str
    step: int
    value: float
    time: float


class EventFile:
    """A new event file in `folder`, which is created if it does not exist.

    purge_step: tells readers to drop the numbers of earlier files in the folder from this step on.
    """

    def __init__(self, folder: str, *, purge_step: int | None = None) -> None:
        # EventsWriter rather than SummaryWriter, whose flush does not write the events in its queue. The suffix keeps
        # a second file of the same second, process or thread from overwriting the first.
        storage.make_dir(folder)
        if storage.is_remote(folder):
            register_writer_factory(folder.split("://")[0], SimpleNamespace(open=_RemoteFile))
        self._folder = folder
        self._file = EventsWriter(_prefix(folder), f".{os.getpid()}.{next(_FILE_NUMBER):06d}")
        if purge_step is not None:
            start = _events.SessionLog(status=_events.SessionLog.START)
            for _ in range(2):  # TensorBoard does not count the first start in a folder as a restart
                self._file.write_event(_events.Event(wall_time=time.time(), step=purge_step, session_log=start))

    def write(self, rows: Mapping[int, Mapping[str, float]], *, now: float) -> None:
        """Adds numbers by tag for each step, with the unix time `now`. They are on disk when this returns."""
        for step, row in rows.items():
            values = [_summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
            summary = _summaries.Summary(value=values)
            self._file.write_event(_events.Event(wall_time=now, step=step, summary=summary))
        with disks.naming(self._folder):
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        with disks.naming(self._folder):
            self._file.close()


def _prefix(folder: str) -> str:
    """The beginning of a new file's name; EventsWriter adds the time.

    Readers sort event files by name. If the clock was set back, the name begins with a time after the newest file's.
    """
    newest = max((int(found[1]) for name in storage.list_dir(folder) if (found := _DATED.match(name))), default=0)
    return storage.join(folder, "events" if newest <= time.time() else f"events.out.tfevents.{newest + 1}")


class _RemoteFile:
    """A file for EventsWriter in a bucket, where objects cannot grow: each flush writes the whole object."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._content = io.BytesIO()

    def write(self, data: bytes) -> None:
        self._content.write(data)

    def flush(self) -> None:
        storage.write_bytes(self._path, self._content.getvalue())

    def close(self) -> None:
        self.flush()


def read_events(path: str) -> list[Scalar]:
    """The scalars in an event file, or in all event files that lie directly in a folder, in the order of writing.

    Both forms of scalars are read (simple values, and tensors of one number), also mixed. As in TensorBoard, a run that
    restarted at a step replaces the earlier numbers from that step on. A truncated last record, of a run that is still
    writing or was killed, is skipped; the result may be empty.
    Raises UserError when there is no such path, and for other damage, naming the file and the offset.
    """
    if not storage.exists(path):
        raise UserError("Event files", path, "an existing file or folder", "Check the path.")
    paths = _event_files(path) if storage.is_dir(path) else [path]
    scalars = [found for path in paths for event in _read_file(path) for found in _scalars(event)]
    kept: list[Scalar] = []
    first_dropped = math.inf  # set by later restarts, hence read from the end
    for found in reversed(scalars):
        if isinstance(found, int):
            first_dropped = min(first_dropped, found)
        elif found.step < first_dropped:
            kept.append(found)
    return kept[::-1]


def _scalars(event: Any) -> Iterator[Scalar | int]:
    """The scalars in an event; if a run starts with it, first the step from which it replaces earlier scalars."""
    if event.session_log.status == _events.SessionLog.START:
        yield event.step
    for value in event.summary.value:
        if (number := _number(value)) is not None:
            yield Scalar(value.tag, event.step, number, event.wall_time)


def _event_files(folder: str) -> list[str]:
    return [storage.join(folder, name) for name in storage.list_dir(folder) if ".tfevents." in name]


def _read_file(path: str) -> Iterator[Any]:
    offset = 0
    try:
        for payload in read_records(path):
            yield _events.Event.FromString(payload)
            offset += len(payload) + OVERHEAD
    except RecordError as error:
        if not _is_cut_off(path, error.offset):
            raise _damaged(path, error.offset, str(error.got), error.expected) from None
    except DecodeError:
        raise _damaged(path, offset, "bytes that are not an event", "a TensorBoard event") from None


def _damaged(path: str, offset: int, got: str, expected: str) -> UserError:
    return UserError(f"Event file {path} at byte {offset}", got, expected, "Restore the file or move it away.")


def _is_cut_off(path: str, offset: int) -> bool:
    """Whether the file ends within the record that begins at `offset`, and this is undamaged up to there."""
    with storage.open_read(path) as file:
        file.seek(offset)
        rest = file.read()
    if len(rest) < HEADER.size:
        return True
    length = header_length(rest[: HEADER.size])
    return length is not None and len(rest) < length + OVERHEAD


def _number(value: Any) -> float | None:
    """The number that `value` holds; None for text, pictures and histograms."""
    if value.WhichOneof("value") == "simple_value":
        return value.simple_value
    if value.WhichOneof("value") == "tensor" and all(dim.size == 1 for dim in value.tensor.tensor_shape.dim):
        return _tensor_number(value.tensor)
    return None


def _tensor_number(tensor: Any) -> float | None:
    if tensor.dtype not in _TENSOR_FORMS:
        return None
    form, field = _TENSOR_FORMS[tensor.dtype]
    size = np.dtype(form).itemsize
    if content := tensor.tensor_content[:size]:  # the bytes of one number; more are not read
        return float(np.frombuffer(content.ljust(size, b"\0"), form)[0])
    return next(iter(getattr(tensor, field)), 0.0)  # the message omits a zero
