"""TensorBoard's event files, whoever wrote them."""

import contextlib
import math
import tempfile
from pathlib import Path

from resnet_tpu.data.records.tfrecord import framed
from resnet_tpu.errors import UserError
from resnet_tpu.reports.events import Scalar, read_events
from resnet_tpu.reports.results import best_results, results, results_csv, results_table

_FOLDER = tempfile.TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "eval" / "events.out.tfevents.1"


def one_input(data: bytes) -> None:
    """`data` as a file, as one event, and cut into events at each byte 0xFF."""
    _FILE.parent.mkdir(exist_ok=True)
    for content in (data, b"".join(framed(data)), b"".join(b"".join(framed(part)) for part in data.split(b"\xff"))):
        _FILE.write_bytes(content)
        with contextlib.suppress(UserError):
            _show(read_events(str(_FILE)))


def _show(scalars: list[Scalar]) -> None:
    for metric in {scalar.tag for scalar in scalars[:3]}:
        rows = results([_FOLDER.name], metric)
        best = best_results(rows, metric)
        assert all(math.isnan(row.value) for row in rows) or best
        results_table(rows, metric)
        results_csv(rows, metric)
