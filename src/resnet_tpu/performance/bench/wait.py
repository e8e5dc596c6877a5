"""Measures how long a device waits for images when training with the basic and the optimized input pipeline.

The step takes slightly fewer images/s than the optimized pipeline delivers. On GPU and TPU it is the real step. On a
CPU, a real step would compete with the decoders for the cores, which no accelerator does. There, a stand-in replaces
the step and sleeps for as long as the device would compute. Everything else is ordinary training: the same loop, the
same transfer of batches, and the share of time waited for input as recorded in `metrics.jsonl`.
"""

import dataclasses
import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import option
from resnet_tpu.parallel import division, startup
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.performance.bench import child, compare, record
from resnet_tpu.performance.bench.compare import Outputs
from resnet_tpu.performance.bench.figures import Bar, Grid, show, write_bars
from resnet_tpu.performance.bench.input import our_task, run_alone
from resnet_tpu.performance.bench.options import BenchOptions
from resnet_tpu.performance.bench.photos import write_photos
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.loop import train
from resnet_tpu.training.maths.state import TrainState
from resnet_tpu.training.maths.step import TrainStep

log = logging.getLogger(__name__)

PIPELINES: dict[str, dict[str, str | None]] = {
    "basic": {
        "input_pipeline": "basic",
        "input_workers": "threads",
        "cache": "none",
        "cache_memory": None,
        "cache_short_side": None,
    },
    "optimized": {"input_pipeline": "optimized"},
}
_HEADROOM = 1.25  # the device's time over the loader's, whose cores also transfer the batches
_MIN_STEPS = 4
_STEPS_OF_A_DEVICE = 50
_SMALL_NETWORK = {"resnet_depth": 18, "resnet_width": 4, "precision": "float32"}


@dataclass(frozen=True)
class WaitBenchOptions(BenchOptions):
    """How `bench wait` measures."""

    device_ms: float | None = option(
        None,
        "Milliseconds per batch of a stand-in for the device. Default: on GPU and TPU the real step; on CPU a quarter "
        "more than the optimized pipeline takes for a batch.",
        at_least=1,
    )


def bench_wait(where: str, config: Config, options: WaitBenchOptions, command: Sequence[str]) -> None:
    """Trains on the photos of `where` (drawn ones if empty) with both pipelines, and shows how long the device waited.

    config: options of the data, and of the network if the step is real. command: as typed, for the record. Raises
    UserError when training fails.
    """
    options.check_files()
    # in a process of its own, because this one would keep the device from the others
    device = child.run("the device", child.command_of(__name__, "device", json.dumps(config.run.use_tpu)))
    count = config.run.num_cores or device["count"]
    if options.batch_size % count:
        options = dataclasses.replace(options, batch_size=division.round_up(options.batch_size, count))
        log.info("Batches have %d images, a multiple of the %d devices.", options.batch_size, count)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records")
        write_photos(where, records, options.num_images)
        config = config.replace(data_dir=str(records), train_batch_size=options.batch_size, mode="train")
        device_ms = options.device_ms
        if device_ms is None and device["platform"] == "cpu":
            device_ms = _calibrate(config, options)
        commands = {
            name: _command(config.replace(**changes), device_ms, options) for name, changes in PIPELINES.items()
        }
        outputs = compare.alternate(commands, rounds=options.rounds)
    note = f"Device: {device['kind']}, ResNet-{config.model.resnet_depth}."
    if device_ms is not None:
        note = f"Device: a stand-in that takes {device_ms:.1f} ms for a batch, and no CPU time."
    grid = _tabulate(outputs, config, note)
    show(grid, options.format)
    if options.output:
        figures = {"device": device, "device_ms": device_ms, "options": config.flat() | {"data_dir": where}}
        record.write(options.output, command, figures | {"runs": outputs})
    if options.picture:
        shares = {name: compare.median(runs, "input_wait_share") for name, runs in outputs.items()}
        bars = [Bar(name, 100 * share, f"{share:.1%}", name != "basic") for name, share in shares.items()]
        write_bars(options.picture, grid.title, bars, "% of the time that the device waits for input")


def _calibrate(config: Config, options: WaitBenchOptions) -> float:
    """The milliseconds per batch of a device that the optimized pipeline can just keep busy."""
    speed = child.run("the input pipeline", run_alone("ours", our_task(config, options)))["images_per_sec"]
    device_ms = _HEADROOM * 1000 * options.batch_size / speed
    log.info("The input gives %.0f images/s; the device takes %.1f ms for a batch.", speed, device_ms)
    return device_ms


def _command(config: Config, device_ms: float | None, options: WaitBenchOptions) -> list[str]:
    steps = _STEPS_OF_A_DEVICE if device_ms is None else round(1000 * options.seconds / max(device_ms, 1))
    steps = max(steps, options.num_images // options.batch_size + _MIN_STEPS)  # caches are full after the first loop
    changes = {"train_steps": 3 * steps, "iterations_per_loop": steps, "num_label_classes": 2}
    if device_ms is not None:
        changes |= _SMALL_NETWORK  # the stand-in computes nothing
    run = {"options": config.replace(**changes).flat(), "device_ms": device_ms}
    return child.command_of(__name__, "train", json.dumps(run))


def _tabulate(outputs: Outputs, config: Config, note: str) -> Grid:
    rows = []
    for name, runs in outputs.items():
        shares = [run["input_wait_share"] for run in runs]
        speed = compare.median(runs, "images_per_sec")
        spread = f"{min(shares):.1%} to {max(shares):.1%}"
        rows.append((name, f"{speed:,.0f}", f"{compare.median(runs, 'input_wait_share'):.1%}", spread))
    title = f"Waiting for input, {config.data.image_size} px, batch {config.train.train_batch_size}"
    return Grid(title, ("input_pipeline", "images/s", "input wait", "range"), rows, [note])


class _Pending:
    """The result of a step still running on the device, with the part of `jax.Array` that the training loop uses."""

    is_fully_addressable = True

    def __init__(self, done: Future[float]) -> None:
        self._done = done

    def copy_to_host_async(self) -> None:
        """Does nothing: the result will be on the host."""

    def block_until_ready(self) -> "_Pending":
        """Waits for the end of the step."""
        self._done.result()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._done.result(), dtype)


def make_device(device_ms: float) -> TrainStep:
    """A stand-in for a training step on a separate device: it takes `device_ms`, uses no core, and learns nothing.

    Like a device, it works on one step at a time, once the batch has arrived, while the host continues at once.
    """
    device = ThreadPoolExecutor(1, thread_name_prefix="device")

    def work(batch: DeviceBatch) -> float:
        jax.block_until_ready(batch)
        time.sleep(device_ms / 1000)
        return 0.0

    def step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, dict[str, Any]]:
        done = _Pending(device.submit(work, batch))
        metrics: dict[str, Any] = {"loss": done, "learning_rate": done, "top_1_accuracy": done}
        return dataclasses.replace(state, step=state.step + 1), metrics

    return step


def _train(run: Mapping[str, Any]) -> dict[str, float]:
    """Speed and wait in the second of three loops: the first begins and the last ends with an idle device."""
    step = None if run["device_ms"] is None else make_device(run["device_ms"])
    with tempfile.TemporaryDirectory() as model_dir:
        config = Config().replace(**run["options"]).replace(model_dir=model_dir)
        train(config, train_step=step)
        row = [row for row in read_metrics(model_dir) if "input_wait_share" in row][1]
    return {name: row[name] for name in ("images_per_sec", "input_wait_share")}


def _describe_device(use_tpu: bool) -> dict[str, Any]:
    startup.start_jax(use_tpu=use_tpu)
    found = jax.devices()
    return {"platform": jax.default_backend(), "kind": found[0].device_kind, "count": len(found)}


if __name__ == "__main__":
    child.print_figures(lambda what, text: {"train": _train, "device": _describe_device}[what](json.loads(text)))
