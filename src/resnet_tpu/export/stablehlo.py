"""A trained network as a folder that runs without this package: StableHLO and weights."""

import io
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from resnet_tpu import distributed, hosts, storage
from resnet_tpu.config import Config
from resnet_tpu.errors import UserError
from resnet_tpu.train.step import make_predict_step
from resnet_tpu.train.trained import Trained, load_trained

log = logging.getLogger(__name__)

PLATFORMS = ("cpu", "cuda", "tpu")
GRAPH, WEIGHTS, LABELS, DESCRIPTION = "model.stablehlo", "weights.npz", "labels.txt", "config.json"


def export_model(trained: Trained, export_dir: str) -> str:
    """Writes the network under `export_dir/<unix seconds>/` and returns that path. It appears whole or not at all.

    `model.stablehlo`: a serialized `jax.export` of (weights, images uint8 [n, s, s, 3]) -> probabilities float32
    [n, classes] for any n, on CPU, CUDA and TPU, normalisation inside. `weights.npz`: its weights in order.
    `labels.txt`: the class of each output. `config.json`: how it was trained.
    """
    leaves, _ = jax.tree.flatten((trained.params, trained.batch_stats))
    size = trained.config.data.image_size
    (batch,) = export.symbolic_shape("n")
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.uint8)
    exported = export.export(jax.jit(_flat_predict(trained)), platforms=PLATFORMS)(shapes, images)
    weights = io.BytesIO()
    named: dict[str, Any] = {f"{index:04d}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
    np.savez(weights, **named)
    description = json.dumps({"step": trained.step, **trained.config.flat()}, indent=2) + "\n"
    return _write_folder(
        export_dir,
        {
            GRAPH: bytes(exported.serialize()),
            WEIGHTS: weights.getvalue(),
            LABELS: "".join(f"{name}\n" for name in trained.class_names).encode(),
            DESCRIPTION: description.encode(),
        },
    )


def export_run(config: Config) -> str:
    """Exports the newest checkpoint of `model_dir` to `export_dir`; see `export_model`.

    Of several processes the first one writes, and all return the path.
    """
    with hosts.joined(config.run):
        trained = load_trained(
            config.run.model_dir,
            distributed.make_mesh(config.run.num_cores),
            moving_average=config.eval.export_moving_average,
        )
        path = hosts.from_first(export_model(trained, config.eval.export_dir) if hosts.is_first() else "")
    log.info("Exported to %s", path)
    return path


def load_exported(path: str) -> Callable[[np.ndarray], np.ndarray]:
    """images uint8 [n, s, s, 3] -> probabilities float32 [n, classes], from a folder that `export_model` wrote.

    Raises UserError when it is no such folder.
    """
    if not storage.exists(storage.join(path, GRAPH)):
        raise UserError("Exported model", path, f"a folder with {GRAPH}", "Check the path.")
    with storage.open_read(storage.join(path, GRAPH)) as file:
        exported = export.deserialize(bytearray(file.read()))
    with storage.open_read(storage.join(path, WEIGHTS)) as file, np.load(file, allow_pickle=False) as stored:
        weights = [jnp.asarray(stored[name]) for name in sorted(stored.files)]
    call = jax.jit(exported.call)
    return lambda images: np.asarray(call(weights, images))


def _flat_predict(trained: Trained) -> Callable[[list[jax.Array], jax.Array], jax.Array]:
    predict_step = make_predict_step(trained.network)
    _, structure = jax.tree.flatten((trained.params, trained.batch_stats))

    def predict(weights: list[jax.Array], images: jax.Array) -> jax.Array:
        params, batch_stats = jax.tree.unflatten(structure, weights)
        return predict_step(params, batch_stats, images)

    return predict


def _write_folder(export_dir: str, files: dict[str, bytes]) -> str:
    storage.make_dir(export_dir)
    seconds = int(time.time())
    while storage.exists(target := storage.join(export_dir, str(seconds))):  # two exports within one second
        seconds += 1
    # the graph is written last: without it a folder is no export
    aside = target if storage.is_remote(target) else storage.join(export_dir, f".{seconds}.partial-{os.getpid()}")
    storage.make_dir(aside)
    for name in sorted(files, key=lambda name: name == GRAPH):
        with storage.write_whole(storage.join(aside, name)) as file:
            file.write(files[name])
    if aside != target:
        Path(aside).rename(target)
    return target
