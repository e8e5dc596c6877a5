"""Writes a bundle of an untrained network, to benchmark and to test servers with."""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.checkpoints.writing import write_model_dir
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import startup
from resnet_tpu.serving.export.export import export_run


def make_bundle(config: Config, folder: Path, class_names: Sequence[str]) -> str:
    """Writes the bundle that `config` asks for below `folder`, and returns its path.

    config: options of the network, the images and the export; the data are needed only for int8. Weights are
    initialised as for training. Raises UserError when a form cannot be written.
    """
    startup.start_jax(use_tpu=False)
    config = config.replace(
        num_label_classes=len(class_names), precision="float32", mode="train", num_cores=1,
        model_dir=str(folder / "model"), export_dir=str(folder / "exported"),
    )  # fmt: skip
    params, batch_stats = network_of(config).init(0)
    arrays = {"params": _without_zeros(params), "batch_stats": batch_stats, "step": np.int32(0)}
    write_model_dir(config.run.model_dir, config, arrays, list(class_names))
    return export_run(config)


def _without_zeros(params: Arrays) -> Arrays:
    """Sets vectors that start at zero to 0.5: with a scale of zero, a branch would contribute nothing."""
    return jax.tree.map(lambda leaf: leaf if leaf.ndim != 1 or jnp.any(leaf) else jnp.full_like(leaf, 0.5), params)
