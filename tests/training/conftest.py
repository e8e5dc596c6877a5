"""Small trainings that the tests of this folder share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from resnet_tpu.options.config import Config
from resnet_tpu.training.loop import train

COLOURS = {"blue": (200, 60, 40), "green": (60, 190, 60), "red": (50, 50, 210)}  # BGR


@pytest.fixture(scope="module", autouse=True)
def quick(blank_curves: None) -> None:
    """Draws nothing after these trainings: nothing here looks at it."""


@pytest.fixture(scope="session")
def coloured_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of 30 JPEGs that a small network can tell apart: each class has one colour, with noise."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir()
        for number in range(30):
            noise = rng.normal(0, 25, (20 + number % 7, 24, 3))
            photo = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / name / f"{number:02d}.jpg"), photo)
    return folder


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Config]:
    """Makes the options of a training that takes a second once compiled; changes are given by name."""

    def tiny(model_dir: Path, **changes: Any) -> Config:
        options: dict[str, Any] = {
            "data_dir": "synthetic", "model_dir": str(model_dir), "image_size": 16, "num_label_classes": 4,
            "num_train_images": 40, "num_eval_images": 37, "resnet_depth": 8, "resnet_width": 4, "bn_momentum": 0.9,
            "precision": "float32", "train_batch_size": 16, "eval_batch_size": 16, "train_steps": 7,
            "steps_per_eval": 3, "iterations_per_loop": 2, "learning_rate_schedule": "cosine",
            "save_checkpoints_steps": 100, "keep_checkpoint_max": 100, "num_cores": 1,
        }  # fmt: skip
        return Config().replace(**(options | changes))

    return tiny


@pytest.fixture(scope="session")
def trained_dir(coloured_photos: Path, tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `model_dir` of a network that tells the coloured photos apart, trained directly on the class folders."""
    model_dir = tmp_path_factory.mktemp("trained")
    train(
        tiny(
            model_dir, data_dir=str(coloured_photos), num_label_classes=None, num_train_images=None,
            num_eval_images=None, train_steps="10epochs", steps_per_eval="5epochs", base_learning_rate=0.8,
            save_checkpoints_steps="5epochs",
        )
    )  # fmt: skip
    return model_dir
