"""What two trainings are compared by: the metrics and arrays that must not differ from run to run."""

from pathlib import Path

import numpy as np

from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.reports.metrics import read_metrics

VARYING = ("time", "images_per_sec", "input_wait_share")
"""The columns of metrics that differ from run to run."""


def rows_of(model_dir: Path | str) -> dict[tuple[str, int], dict[str, float]]:
    """The metrics by split and step, without those in `VARYING`."""
    return {
        (row["split"], row["step"]): {name: value for name, value in row.items() if name not in VARYING}
        for row in read_metrics(str(model_dir))
    }


def arrays_of(model_dir: Path, step: int, *also: str) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name: parameters, statistics, momentum, and those in the collections `also`."""
    return reading.load_named(_path(model_dir, step), ("params", "batch_stats", "momentum", *also))


def all_arrays_of(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    """All arrays of a checkpoint by name, with masks and the moving average, if there are any."""
    return reading.load_named(_path(model_dir, step))


def _path(model_dir: Path, step: int) -> str:
    return str(model_dir / folders.CHECKPOINTS / str(step))
