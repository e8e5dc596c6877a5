"""Networks to export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes
from resnet_tpu.training.inference.trained import Trained, load_trained
from resnet_tpu.training.loop import train


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of a training of two steps on synthetic images of 16 px in 4 classes."""
    model_dir = tmp_path_factory.mktemp("model")
    train(
        Config().replace(
            data_dir="synthetic", model_dir=str(model_dir), image_size=16, num_label_classes=4, num_train_images=16,
            num_eval_images=8, eval_batch_size=8, resnet_depth=8, resnet_width=4, precision="float32",
            train_batch_size=16, train_steps=2, steps_per_eval=2, num_cores=1, weights_origin="nowhere",
            weights_licence="mit",
        )
    )  # fmt: skip
    return model_dir


@pytest.fixture(scope="session")
def trained(model_dir: Path) -> Trained:
    """The newest checkpoint of that training."""
    return load_trained(str(model_dir), meshes.make_mesh(1))


@pytest.fixture(scope="session")
def drawn(trained: Trained) -> Callable[..., Trained]:
    """Makes a network with the given options and random arrays, including statistics."""

    def drawn(**options: Any) -> Trained:
        small = {"resnet_width": 4, "precision": "float32", "image_size": 32, "num_label_classes": 5}
        config = Config().replace(**(small | options))
        network = create_network(
            config.model, num_classes=config.data.num_label_classes or 0, image_size=config.data.image_size
        )
        rng = np.random.default_rng(0)
        params, batch_stats = network.init(0)
        names = [f"class {label}" for label in range(config.data.num_label_classes or 0)]
        return Trained(
            trained.path, 3, config, names, network, _draw(params, rng), _draw(batch_stats, rng), trained.mesh
        )

    return drawn


def _draw(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """The arrays with all but the kernels redrawn, so that no scale or mean is 0 and no variance 1."""

    def draw(path: Any, leaf: jax.Array) -> np.ndarray:
        if path[-1].key == "kernel":
            return np.asarray(leaf)
        low, high = {"mean": (-0.3, 0.3), "bias": (-0.3, 0.3)}.get(path[-1].key, (0.3, 1.2))
        return rng.uniform(low, high, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, arrays)
