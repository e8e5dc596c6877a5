"""The exported network is the live one."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu import distributed
from resnet_tpu.config import Config
from resnet_tpu.errors import UserError
from resnet_tpu.export import stablehlo
from resnet_tpu.train.loop import train
from resnet_tpu.train.step import make_predict_step
from resnet_tpu.train.trained import load_trained


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_dir = tmp_path_factory.mktemp("model")
    train(
        Config().replace(
            data_dir="synthetic", model_dir=str(model_dir), image_size=16, num_label_classes=4, num_train_images=16,
            resnet_depth=18, resnet_width=4, precision="float32", train_batch_size=16, train_steps=2, num_cores=1,
            mode="train",
        )
    )  # fmt: skip
    return model_dir


def test_exported_equals_live_for_any_batch(model_dir: Path, tmp_path: Path) -> None:
    trained = load_trained(str(model_dir), distributed.make_mesh(1))
    path = Path(stablehlo.export_model(trained, str(tmp_path)))
    assert path.name.isdigit()
    assert (path / "labels.txt").read_text().splitlines() == ["0", "1", "2", "3"]
    exported = stablehlo.load_exported(str(path))
    live = make_predict_step(trained.network)
    for batch in (1, 5):
        images = np.random.default_rng(batch).integers(0, 256, (batch, 16, 16, 3), np.uint8)
        expected = np.asarray(live(trained.params, trained.batch_stats, jnp.asarray(images)))
        np.testing.assert_allclose(exported(images), expected, rtol=0, atol=1e-6)


def test_two_exports_within_a_second_are_two_folders(model_dir: Path, tmp_path: Path) -> None:
    config = Config().replace(model_dir=str(model_dir), export_dir=str(tmp_path), num_cores=1)
    paths = {stablehlo.export_run(config) for _ in range(2)}
    assert len(paths) == 2
    assert {path.name for path in tmp_path.iterdir()} == {Path(path).name for path in paths}  # nothing half-written


def test_a_folder_that_is_no_export_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Exported model: got .*, expected a folder with model\.stablehlo"):
        stablehlo.load_exported(str(tmp_path))
