"""A training does not depend on the number of devices, and can be resumed on another number of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu.checkpoints import reading
from resnet_tpu.options.config import Config
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.loop import train

ARRAYS = ("params", "batch_stats", "momentum")


def train_on(tiny: Callable[..., Config], model_dir: Path, devices: int, steps: int) -> None:
    """Trains in `model_dir` up to `steps` on so many devices, resuming the run if there is one."""
    train(
        tiny(
            model_dir, num_cores=devices, train_steps=steps, mode="train", batch_norm_scope="global",
            learning_rate_schedule="constant",
        )
    )  # fmt: skip


@pytest.mark.long
def test_a_training_moves_from_8_devices_to_1_and_on_to_4(tiny: Callable[..., Config], tmp_path: Path) -> None:
    stays, moves = tmp_path / "stays", tmp_path / "moves"
    train_on(tiny, stays, 8, 6)
    for steps, devices in ((2, 8), (4, 1), (6, 4)):
        train_on(tiny, moves, devices, steps)
    losses = [
        [row["loss"] for row in read_metrics(str(model_dir)) if row["split"] == "train"] for model_dir in (stays, moves)
    ]
    assert len(losses[0]) == 6
    # over few steps; float32 sums over the batch are taken in another order on another number of devices
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    expected, found = (reading.load_named(reading.find(str(model_dir)), ARRAYS) for model_dir in (stays, moves))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)
