"""Event files: all forms of scalars, truncation and damage anywhere, restarts."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2, summary_pb2, types_pb2

from resnet_tpu.data.records.tfrecord import masked_crc, read_records
from resnet_tpu.errors import UserError
from resnet_tpu.reports.events import EventFile, read_events

_events: Any = event_pb2
_summaries: Any = summary_pb2
_types: Any = types_pb2


def _write(path: Path, *payloads: bytes) -> list[int]:
    """Writes records, and returns the offset at which each ends."""
    ends, content = [], b""
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        content += length + struct.pack("<I", masked_crc(length)) + payload + struct.pack("<I", masked_crc(payload))
        ends.append(len(content))
    path.write_bytes(content)
    return ends


def _event(step: int, **value: Any) -> bytes:
    summary = _summaries.Summary(value=[_summaries.Summary.Value(tag="loss", **value)])
    return _events.Event(step=step, summary=summary).SerializeToString()


def _restart(step: int) -> bytes:
    log = _events.SessionLog(status=_events.SessionLog.START)
    return _events.Event(step=step, session_log=log).SerializeToString()


def _values(path: Path) -> list[tuple[int, float]]:
    return [(scalar.step, scalar.value) for scalar in read_events(str(path))]


def test_files_of_the_original(golden: Callable[[str], Path]):
    """Files of both versions, and a folder in which one continues the other."""
    for folder, expected in json.loads(golden("events/expected.json").read_text()).items():
        found: dict[str, list[list[float]]] = {}
        for scalar in read_events(str(golden(f"events/{folder}"))):
            found.setdefault(scalar.tag, []).append([scalar.step, scalar.value])
        assert found == expected["tags"], folder


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": _types.DT_FLOAT, "float_val": [0.75]},
        {"dtype": _types.DT_FLOAT, "tensor_content": np.float32(0.75).tobytes()},
        {"dtype": _types.DT_DOUBLE, "double_val": [0.75]},
        {"dtype": _types.DT_DOUBLE, "tensor_content": np.float64(0.75).tobytes()},
        {"dtype": _types.DT_FLOAT, "float_val": [0.75], "tensor_shape": {"dim": [{"size": 1}]}},
    ],
)
def test_fraction_in_every_form(tmp_path: Path, tensor: dict[str, Any]):
    path = tmp_path / "events.out.tfevents.1.host.v2"
    _write(path, _event(3, tensor=tensor), _event(4, simple_value=0.75))
    assert _values(path) == [(3, 0.75), (4, 0.75)]


def test_what_is_no_number_is_passed_over(tmp_path: Path):
    path = tmp_path / "events.out.tfevents.1.host"
    _write(
        path,
        _events.Event(file_version="brain.Event:2").SerializeToString(),
        _event(1, tensor={"dtype": _types.DT_INT32, "int_val": [1]}),
        _event(1, tensor={"dtype": _types.DT_STRING, "string_val": [b"model.ckpt-1"]}),
        _event(1, tensor={"dtype": _types.DT_FLOAT, "float_val": [1, 2], "tensor_shape": {"dim": [{"size": 2}]}}),
        _event(1, simple_value=0.5),
    )
    assert _values(path) == [(1, 0.5)]


def test_file_cut_anywhere_holds_its_whole_records(tmp_path: Path):
    path = tmp_path / "events.out.tfevents.1.host"
    ends = _write(path, *(_event(step, simple_value=step / 4) for step in range(4)))
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        assert _values(path) == [(step, step / 4) for step in range(sum(end <= cut for end in ends))]


def test_any_changed_byte_is_an_error_naming_file_and_offset(tmp_path: Path):
    path = tmp_path / "events.out.tfevents.1.host"
    ends = _write(path, *(_event(step, simple_value=1.5) for step in range(3)))
    content = path.read_bytes()
    starts = [0, *ends]
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x40]) + content[position + 1 :])
        start = max(start for start in starts if start <= position)
        with pytest.raises(UserError, match=rf"{path.name} at byte {start}:"):
            read_events(str(path))


def test_record_that_is_no_event_is_an_error(tmp_path: Path):
    path = tmp_path / "events.out.tfevents.1.host"
    ends = _write(path, _event(0, simple_value=1.5), b"\xff\xff\xff")
    with pytest.raises(UserError, match=rf"at byte {ends[0]}: got bytes that are not an event"):
        read_events(str(path))


def test_restart_replaces_what_came_after_it(tmp_path: Path):
    """As in TensorBoard, across files in the order of their names."""
    earlier, later = (tmp_path / f"events.out.tfevents.{second}.host" for second in (1, 2))
    _write(earlier, *(_event(step, simple_value=step) for step in range(6)))
    _write(later, _restart(3), _event(3, simple_value=30))
    assert _values(tmp_path) == [(0, 0), (1, 1), (2, 2), (3, 30)]
    assert _values(later) == [(3, 30)]


def test_what_was_written_after_the_clock_was_set_back_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for now, step in ((2e9, 3), (1e9, 6), (1.5e9, 9)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        file = EventFile(str(tmp_path), purge_step=step - 2)
        file.write({step: {"loss": 1.0}}, now=now)
        file.close()
    assert [scalar.step for scalar in read_events(str(tmp_path))] == [3, 6, 9]


def test_other_files_are_left_alone(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("{}")
    (tmp_path / "eval").mkdir()
    assert read_events(str(tmp_path)) == []
    with pytest.raises(UserError, match="expected an existing file or folder"):
        read_events(str(tmp_path / "missing"))


def test_own_files_are_records_in_the_original_form(tmp_path: Path):
    file = EventFile(str(tmp_path / "run"))
    file.write({7: {"loss": 0.5, "learning_rate": 0.25}}, now=12.5)
    (path,) = (tmp_path / "run").iterdir()
    version, values = (_events.Event.FromString(payload) for payload in read_records(str(path)))
    assert version.file_version == "brain.Event:2"
    assert [(value.tag, value.simple_value) for value in values.summary.value] == [
        ("loss", 0.5),
        ("learning_rate", 0.25),
    ]
    assert (values.step, values.wall_time) == (7, 12.5)
    file.close()


@pytest.mark.peer("tensorflow-cpu")
@pytest.mark.filterwarnings("ignore")  # warnings from TensorFlow
def test_tensorflow_reads_our_events_and_we_read_its(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    rows = {step: {"loss": 1 / (step + 1), "learning_rate": 0.1 * step} for step in range(5)}
    ours = EventFile(str(tmp_path / "ours"))
    ours.write(rows, now=12.5)
    ours.close()
    expected = [(step, tag, np.float32(value)) for step, row in rows.items() for tag, value in row.items()]
    (path,) = (tmp_path / "ours").iterdir()
    events = tf.compat.v1.train.summary_iterator(str(path))
    assert [(event.step, one.tag, one.simple_value) for event in events for one in event.summary.value] == expected
    with tf.summary.create_file_writer(str(tmp_path / "theirs")).as_default():
        for step, tag, value in expected:
            tf.summary.scalar(tag, value, step=step)
    found = read_events(str(tmp_path / "theirs"))
    assert sorted((one.step, one.tag, one.value) for one in found) == sorted(expected)


@pytest.mark.parametrize("content", [b"\1", bytes(3), b"\0\0\x80?" * 3, b"\0\0\x80?x"], ids=range(4))
def test_a_tensor_whose_bytes_do_not_fit(tmp_path: Path, content: bytes) -> None:
    tensor = {"dtype": _types.DT_FLOAT, "tensor_content": content}
    _write(tmp_path / "x.tfevents.1", _event(1, tensor=tensor))
    assert len(_values(tmp_path)) == 1


def test_a_restart_after_each_of_many_events(tmp_path: Path) -> None:
    count = 3_000  # a naive restart would scan everything before it
    payloads = [part for step in range(count) for part in (_event(step, simple_value=1.0), _restart(step + 1))]
    _write(tmp_path / "x.tfevents.1", *payloads, *(_restart(count // 2) for _ in range(count)))
    assert _values(tmp_path) == [(step, 1.0) for step in range(count // 2)]
