"""Measures speeds in images per second: of the loader, of its decoder alone, and of the training step."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.loader.cache import is_cached
from resnet_tpu.data.loader.order import random_at
from resnet_tpu.data.pixels.preprocess import train_image
from resnet_tpu.data.sources.source import Source
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.system.cpu_time import cpu_secs_of_family, cpu_secs_per_core
from resnet_tpu.system.machine import num_cores
from resnet_tpu.training.kernel_choice.random_inputs import random_batch, random_state
from resnet_tpu.training.kernel_choice.resolve import resolve_kernels
from resnet_tpu.training.maths.network import network_on

_MOST_PER_CPU = 32
"""Images per step when measuring on a CPU: the speed hardly depends on it, and a batch of 1024 would take minutes."""


@dataclass(frozen=True)
class LoaderSpeed:
    """How fast the loader is, and what it costs.

    cpu_us: CPU time per image, of all workers together, in microseconds. busy_share, others_share: shares of the cores
    that the loader and other programs use.
    """

    images_per_sec: float
    cpu_us: float
    busy_share: float
    others_share: float


def measure_loader(config: Config, source: Source, *, seconds: float) -> LoaderSpeed:
    """Measures the loader as configured, for about `seconds`; if it has a cache, after a first epoch that fills it."""
    batch_size = config.train.train_batch_size
    with train_batches(source, config.data, batch_size=batch_size, seed=config.train.seed) as batches:
        warm_up = len(source) if is_cached(config.data) else batch_size
        for _ in range(-(-warm_up // batch_size) + 1):
            next(batches)
        begin, cpu_begin, all_begin, count = time.perf_counter(), cpu_secs_of_family(), cpu_secs_per_core(), 0
        while (elapsed := time.perf_counter() - begin) < seconds or not count:
            next(batches)
            count += batch_size
        cpu, everyone = cpu_secs_of_family() - cpu_begin, cpu_secs_per_core() - all_begin
    own = cpu / num_cores() / elapsed
    busy, others = (min(1.0, max(0.0, share)) for share in (own, everyone / elapsed - own))
    return LoaderSpeed(count / elapsed, 1e6 * cpu / count, busy, others)


def measure_decoder(
    encoded: Sequence[bytes], data: DataConfig, *, honour_exif: bool, threads: int, seconds: float
) -> float:
    """Images per second that `threads` threads crop, decode and resize from files in memory, for about `seconds`."""
    stop_at = time.perf_counter() + seconds

    def run(first: int) -> int:
        out, done = np.empty((data.image_size, data.image_size, 3), np.uint8), 0
        while time.perf_counter() < stop_at or not done:
            position = first + done
            image, rng = encoded[position % len(encoded)], random_at(position, seed=0)
            train_image(image, data.image_size, rng, out, honour_exif=honour_exif, **data.train_crop)
            done += 1
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(run, range(threads)))
    return total / (time.perf_counter() - begin)


def measure_step(config: Config, mesh: Mesh, *, seconds: float) -> float:
    """Images per second of the training step with data already on the devices, for about `seconds`.

    The counts of images and classes must be resolved. On a CPU the batch is smaller than in training.
    """
    if mesh.devices.flat[0].platform == "cpu":
        parts = mesh.devices.size * config.optimizer.gradient_accumulation_steps
        config = config.replace(train_batch_size=min(config.train.train_batch_size, _MOST_PER_CPU * parts))
    step = resolve_kernels(config, mesh, None).train_step(network_on(config, mesh), config, mesh)
    batch = random_batch(config, mesh)
    durations: list[float] = []
    state, _ = jax.block_until_ready(step(random_state(config, mesh), batch))
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or not durations:
        start = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, batch))
        durations.append(time.perf_counter() - start)
    return config.train.train_batch_size / statistics.median(durations)


def speed_of_run(model_dir: str) -> float | None:
    """The speed of an earlier run's step, in images/s of all its hosts, without waits for input; None if unknown."""
    rows = [row for row in read_metrics(model_dir) if row.get("images_per_sec") and row.get("input_wait_share", 1) < 1]
    speeds = [row["images_per_sec"] / (1 - row["input_wait_share"]) for row in rows]
    return statistics.median(speeds) if speeds else None
