"""The columns of a run's measurements, whatever rows there are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.reports.history import read_history
from resnet_tpu.reports.metrics import MetricsWriter


@pytest.mark.parametrize("steps", [0, 1])
def test_each_column_is_of_its_kind(tmp_path: Path, steps: int) -> None:
    with MetricsWriter(str(tmp_path)) as writer:
        writer.write("train", {step: {"loss": 1} for step in range(steps)})
    history = read_history(tmp_path)
    assert history["split"].dtype.kind == "U"
    assert history["step"].dtype == np.int64
    if steps:
        assert history["loss"].dtype == np.float64
        assert history["split"].tolist() == ["train"]


def test_no_folder_is_not_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="model_dir: got nothing, expected an existing folder"):
        read_history("")
    nothing: Any = None
    with pytest.raises(UserError, match="Path: got None of type NoneType"):
        read_history(nothing)
