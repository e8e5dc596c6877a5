"""JSON files that describe a folder: bundles, manifests, runs, metrics, labels, states of `prepare`."""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from resnet_tpu.data.manifest import Manifest, read_class_names
from resnet_tpu.data.prepare.reservation import _read_run
from resnet_tpu.data.sources.bigtable_rows import About
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.overrides import merge
from resnet_tpu.options.run_file import read_run
from resnet_tpu.performance.dawnbench.options import read_job
from resnet_tpu.performance.profiling.labels import read_labels
from resnet_tpu.reports.metrics import MetricsWriter, read_metrics
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.storage import checked_json

_FOLDER = tempfile.TemporaryDirectory()


def one_input(data: bytes) -> None:
    """`data` as each of these files, and as JSON with a valid checksum."""
    for place, read in _READERS.items():
        file = Path(_FOLDER.name) / place
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(data)
        with contextlib.suppress(UserError):
            read(str(file.parent))
        file.unlink()
    try:
        values = checked_json.parse(data)
    except ValueError:
        return
    if isinstance(values, dict):
        values.pop("checksum", None)
        assert checked_json.loads(checked_json.dumps(values)) == values
    with contextlib.suppress(ValueError):
        checked_json.as_kind(About, values, "row")


def _read_manifest(folder: str) -> None:
    read_class_names(folder)
    manifest = Manifest.from_json((Path(folder) / "manifest.json").read_text())
    assert Manifest.from_json(manifest.to_json()) == manifest


def _read_options(folder: str) -> None:
    found = read_run(folder)
    config = merge(Config(), [found] if found else [])  # none where the file holds no option
    written = json.loads(json.dumps(config.flat()))
    assert Config().replace(**written) == config


def _write_more(model_dir: str) -> None:
    """A run resumed in the middle of its measurements drops the later ones, and remains readable."""
    rows = read_metrics(model_dir)
    steps = sorted(row["step"] for row in rows)
    with MetricsWriter(model_dir, resume_step=steps[len(steps) // 2] if steps else 0):
        pass
    assert len(read_metrics(model_dir)) <= len(rows)
    for file in Path(model_dir).glob("**/events*"):
        file.unlink()


_READERS: dict[str, Callable[[str], object]] = {
    "bundle/bundle.json": open_bundle,
    "data/manifest.json": _read_manifest,
    "names/labels.txt": read_class_names,
    "run/config.json": _read_options,
    "step/meta/data.json": lambda folder: _read_options(str(Path(folder).parent)),
    "measured/metrics.jsonl": _write_more,
    "trace/operations.json": read_labels,
    "job/dawnbench.json": read_job,
    "out/_prepare/prepare.json": lambda folder: _read_run(str(Path(folder).parent)),
}
