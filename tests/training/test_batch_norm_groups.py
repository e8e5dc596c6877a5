"""Which images share batch-norm statistics: those of a device, of a group of neighbouring devices, or all."""

import jax
import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config, ModelConfig
from resnet_tpu.parallel import division, meshes, placement
from resnet_tpu.training.maths.step import normalize

MODEL = Config().replace(resnet_depth=8, resnet_width=4, bn_momentum=0.9, precision="float32").model
SIZE, BATCH, DEVICES = 8, 8, 4


def stem_by_hand(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """The first convolution (3x3, zero padding) of images uint8 [n, s, s, 3], in float64."""
    mean, deviation = (255 * np.array(colours) for colours in (MODEL.mean_rgb, MODEL.stddev_rgb))
    around = np.pad((images - mean) / deviation, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows, kernel.astype(np.float64))


@pytest.mark.parametrize(
    ("scope", "size", "groups"), [("replica", 1, 4), ("replica", 2, 2), ("replica", 4, 1), ("global", 1, 1)]
)
def test_the_statistics_are_those_of_each_group_by_hand(scope: str, size: int, groups: int) -> None:
    model = Config(model=MODEL).replace(batch_norm_scope=scope, batch_norm_group_size=size).model
    mesh = meshes.make_mesh(DEVICES)
    assert division.batch_norm_groups(model, mesh.devices.size) == groups
    network = create_network(model, num_classes=3, image_size=SIZE, batch_norm_groups=groups)
    params, batch_stats = network.init(0)
    rng = np.random.default_rng(0)
    brightness = np.arange(1, BATCH + 1)[:, None, None, None] / BATCH  # so that groups differ
    images = (rng.uniform(0, 256, (BATCH, SIZE, SIZE, 3)) * brightness).astype(np.uint8)
    on_devices = placement.put_batch({"image": images}, mesh)["image"]
    run = jax.jit(lambda params, stats, x: network.apply(params, stats, normalize(x, model), train=True)[1])
    after = run(*placement.put_replicated((params, batch_stats), mesh), on_devices)["stem"]["norm"]

    kernel = np.asarray(params["stem"]["conv"]["kernel"])
    parts = np.split(stem_by_hand(images, kernel), groups)
    mean = np.mean([part.mean((0, 1, 2)) for part in parts], axis=0)
    var = np.mean([part.var((0, 1, 2), ddof=1) for part in parts], axis=0)
    np.testing.assert_allclose(after["mean"], 0.1 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["var"], 0.9 + 0.1 * var, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_norm_group_size": 3}, r"batch_norm_group_size: got 3, expected a divisor of the 4 devices\. Use 1 or"),
        ({"batch_norm_group_size": 8}, r"batch_norm_group_size: got 8, expected a divisor of the 4 devices"),
        (
            {"batch_norm_group_size": 2, "batch_norm_scope": "global"},
            r"batch_norm_group_size: got 2 with batch_norm_scope global, expected 1",
        ),
    ],
)
def test_groups_that_do_not_come_out_even_are_refused(options: dict[str, object], message: str) -> None:
    model: ModelConfig = Config(model=MODEL).replace(**options).model
    with pytest.raises(UserError, match=message):
        division.batch_norm_groups(model, DEVICES)
