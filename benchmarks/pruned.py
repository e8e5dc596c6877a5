"""The costs and savings of pruning: steps with masks vs. dense ones, compacted networks vs. masked ones, file sizes.

    python -m benchmarks.pruned masks                       # ResNet-20, batches of 128
    python -m benchmarks.pruned masks --depth=50 --image_size=224 --batch_size=8
    python -m benchmarks.pruned compact                     # evaluation: ResNet-56-A and -B, ResNet-34-A and -B
    python -m benchmarks.pruned sizes                       # bytes of checkpoints

Two programs of one framework take turns in one process, step by step, and every second round runs in reverse order. A
figure is the median over a round's steps. Weights are random, because neither time depends on them. Sizes are those of
checkpoints with momentum. The peer is the same arrays and masks stored in full, with zeros that are merely compressed.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import script
from benchmarks.script import Comparison
from resnet_tpu.checkpoints import checksums
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.reading import Checkpoint
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.compact import compact
from resnet_tpu.pruning.layers import kernels_of, maskable
from resnet_tpu.pruning.masks import full_masks
from resnet_tpu.pruning.methods import find_method
from resnet_tpu.pruning.sizes import size_of
from resnet_tpu.pruning.start import start_arrays
from resnet_tpu.training.maths.schedule import make_schedule
from resnet_tpu.training.maths.state import create_state
from resnet_tpu.training.maths.step import make_output_step, make_train_step

CIFAR_DEPTHS = (20, 56, 110)
DENSITY = 20


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("pruned", __doc__, rounds=5)
    parser.add_argument("what", choices=["masks", "compact", "sizes"])
    parser.add_argument("--depth", type=int, default=20, help="Of the network with masks. Default: %(default)s.")
    parser.add_argument("--image_size", type=int, default=32, help="Of it. Default: %(default)s.")
    parser.add_argument("--batch_size", type=int, help="Images of a step. Default: 128 for masks, 64 for compact.")
    parser.add_argument("--steps", type=int, default=10, help="Steps of each program in a round. Default: %(default)s.")
    parser.add_argument("--tables", default="resnet56_A,resnet56_B,resnet34_A,resnet34_B", help="Of filters.")
    parser.add_argument("--multiple_of", type=int, default=1, help="Of channels, see `resnet-tpu compact`.")
    parser.add_argument("--levels", default="1,3,5", help="Of the tables. Default: %(default)s.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.batch_size, options.tables, options.levels = 1, 1, 2, "resnet56_A", "1"
    measure = {"masks": _masks, "compact": _compact, "sizes": _sizes}[options.what]
    script.report_ratios(f"pruned_{options.what}", measure(options), options)


def _config(depth: int, image_size: int, batch_size: int) -> Config:
    classes = 10 if depth in CIFAR_DEPTHS else 1000
    return Config().replace(
        resnet_depth=depth, image_size=image_size, num_label_classes=classes, precision="float32",
        train_batch_size=batch_size, num_train_images=50_000,
    )  # fmt: skip


def _masks(options: Any) -> list[Comparison]:
    config = _config(options.depth, options.image_size, options.batch_size or 128)
    network = network_of(config)
    step = make_train_step(network, make_schedule(config), config.optimizer)
    rng = np.random.default_rng(0)
    batch = {
        "image": jnp.asarray(_images(config, config.train.train_batch_size)),
        "label": jnp.asarray(rng.integers(0, 10, config.train.train_batch_size), jnp.int32),
    }
    states = {name: create_state(network, config.optimizer, 0) for name in ("dense", "masked")}
    masked = _pruned(config, jax.tree.map(np.asarray, states["masked"].to_arrays()), f"prune_all_to_global_{DENSITY}")
    states["masked"] = states["masked"].with_arrays(jax.tree.map(jnp.asarray, masked))

    def run(name: str) -> Callable[[], None]:
        def once() -> None:
            states[name], metrics = step(states[name], batch)
            jax.block_until_ready(metrics)

        return once

    what = f"training step, ResNet-{options.depth}, {options.image_size} px, batch {config.train.train_batch_size}"
    found = _take_turns({name: run(name) for name in states}, options.rounds, options.steps)
    return [Comparison(what, metric, "masked", "dense", figures) for metric, figures in found.items()]


def _compact(options: Any) -> list[Comparison]:
    found: list[Comparison] = []
    for table in options.tables.split(","):
        depth = int(table.removeprefix("resnet").split("_")[0])
        batch_size = options.batch_size or 64
        config = _config(depth, 32 if depth in CIFAR_DEPTHS else 224, batch_size)
        images = jnp.asarray(_images(config, batch_size))
        for level in options.levels.split(","):
            params, batch_stats = jax.tree.map(np.asarray, network_of(config).init(0))
            momentum = jax.tree.map(np.zeros_like, params)
            arrays = {"step": np.int32(0), "params": params, "batch_stats": batch_stats, "momentum": momentum}
            masked = _pruned(config, arrays, f"prune_{table}_{level}")
            checkpoint = Checkpoint(0, masked, make_meta(config, None, 0))
            narrowed, compacted = compact(checkpoint, multiple_of=options.multiple_of)
            programs = {
                "masked": _predicting(config, masked, images),
                "compacted": _predicting(narrowed, compacted, images),
            }
            work = size_of(narrowed, None).multiply_adds / size_of(config, None).multiply_adds
            what = f"evaluation, {table}_{level}, batch {batch_size}, {work:.0%} of the multiply-adds"
            turns = _take_turns(programs, options.rounds, options.steps)
            found += [Comparison(what, metric, "compacted", "masked", figures) for metric, figures in turns.items()]
    return found


def _sizes(options: Any) -> list[Comparison]:
    found: list[Comparison] = []
    for depth in (20,) if options.quick else (20, 18, 50):
        config = _config(depth, 32 if depth in CIFAR_DEPTHS else 224, 128)
        params, batch_stats = jax.tree.map(np.asarray, network_of(config).init(0))
        momentum = jax.tree.map(_noise, params)
        whole = {"step": np.int32(0), "params": params, "batch_stats": batch_stats, "momentum": momentum}
        for density in (100, 50, 10):
            arrays = whole if density == 100 else _pruned(config, whole, f"prune_all_to_global_{density}")
            unpacked = {"whole_masks" if name == "masks" else name: value for name, value in arrays.items()}
            figures = {"packed": [_bytes_on_disk(config, arrays)], "whole": [_bytes_on_disk(config, unpacked)]}
            found.append(Comparison(f"ResNet-{depth}, density {density} %", "bytes", "packed", "whole", figures))
    return found


def _noise(like: np.ndarray) -> np.ndarray:
    return np.random.default_rng(like.size).standard_normal(like.shape, np.float32)


def _bytes_on_disk(config: Config, arrays: Arrays) -> float:
    with tempfile.TemporaryDirectory() as folder:
        with CheckpointStore(folder, keep=1) as checkpoints:
            checkpoints.save(0, jax.tree.map(jnp.asarray, arrays), make_meta(config, None, 0))
        return float(
            sum(
                path.stat().st_size
                for path in Path(folder).rglob("*")
                if path.is_file() and path.name != checksums.FILE
            )
        )


def _images(config: Config, number: int) -> np.ndarray:
    side = config.data.image_size
    return np.random.default_rng(0).integers(0, 256, (number, side, side, 3), np.uint8)


def _pruned(config: Config, arrays: Arrays, method: str) -> Arrays:
    layers = maskable(network_of(config))
    weights = kernels_of(arrays["params"], layers)
    masks = find_method(method)(weights, full_masks(weights))
    return start_arrays(arrays, masks, layers, step=0, rewind_optimizer="restore")


def _predicting(config: Config, arrays: Arrays, images: jax.Array) -> Callable[[], None]:
    step = make_output_step(network_of(config), "probabilities")
    params, batch_stats = jax.tree.map(jnp.asarray, (arrays["params"], arrays["batch_stats"]))

    def once() -> None:
        jax.block_until_ready(step(params, batch_stats, images))

    return once


def _take_turns(
    programs: Mapping[str, Callable[[], None]], rounds: int, steps: int
) -> dict[str, dict[str, Sequence[float]]]:
    """Milliseconds per step by metric and program, one figure per round; each program must have run once before."""
    for program in programs.values():
        program()
    found: dict[str, dict[str, list[float]]] = {metric: {name: [] for name in programs} for metric in ("ms", "CPU ms")}
    for number in range(rounds):
        order = list(programs)[:: 1 if number % 2 == 0 else -1]
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(steps):
            for name in order:
                wall, cpu = time.perf_counter(), time.process_time()
                programs[name]()
                taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        for name, times in taken.items():
            for metric, values in zip(found, zip(*times, strict=True), strict=True):
                found[metric][name].append(1000 * statistics.median(values))
    return {metric: dict(figures) for metric, figures in found.items()}


if __name__ == "__main__":
    script.main(main)
