"""The upper limit of the input: its work besides decoding, and what that means for hosts with more cores."""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, NamedTuple

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.compare import Contender
from resnet_tpu.performance.bench.figures import Bar, Grid, show, write_bars
from resnet_tpu.performance.bench.input import InputBenchOptions, our_task, run_alone
from resnet_tpu.performance.bench.photos import write_photos
from resnet_tpu.performance.bench.task import Task
from resnet_tpu.performance.bench.undecoded import check_stub
from resnet_tpu.system.machine import num_cores

MORE_CORES = (16, 112, 224)
"""Cores of the hosts that the figures are extrapolated to."""

_FIGURES = ("images_per_sec", "parent_us_per_image", "cpu_ms_per_image")
_NOTES = (
    "stubbed: all is done but to decode and resize. memcpy: finished pixels are copied.",
    "parent: the process that trains.",
    "N cores: images/s, estimated: N / CPU time, at most 1 / the parent's, for threads that of the stubbed decoder.",
)


class Run(NamedTuple):
    """What is measured in a process of its own."""

    decoder: Literal["stubbed", "memcpy", "real"]
    workers: Literal["threads", "processes"]
    number: int

    @property
    def title(self) -> str:
        """A readable name."""
        return f"{self.decoder}, {self.workers}: {self.number}"


def bench_ceiling(where: str, config: Config, options: InputBenchOptions, command: Sequence[str]) -> None:
    """Measures the input with few and many workers, with and without a decoder, and shows what more cores would give.

    As `bench_input`. Raises UserError without the library in C, and with options for peers or variants, or with those
    of which it measures several values.
    """
    if options.peers or options.variants:
        raise UserError("ceiling", "peers or variants as well", "neither", "Leave them out.")
    for name in ("num_parallel_calls", "input_workers", "input_pipeline"):
        if (value := getattr(config.data, name)) != OPTIONS[name].default:
            raise UserError(name, f"{value} with ceiling", "nothing, as it measures several", "Leave one of them out.")
    check_stub("ceiling")
    options = options.resolved()
    numbers = [1] if options.quick else sorted({1, 2, 8, num_cores()})
    runs = {run.title: run for run in _runs(numbers)}
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records")
        write_photos(where, records, options.num_images)
        task = our_task(config.replace(data_dir=str(records)), options)
        contenders = [Contender(title, lambda _, run=run: _command(run, task)) for title, run in runs.items()]
        outputs = compare.alternate(contenders, rounds=options.rounds)
    medians = {runs[title]: _medians(found) for title, found in outputs.items()}
    grid = tabulate(medians, f"Ceiling of the input at {task.image_size} px, batch {task.batch_size}")
    show(grid, options.format)
    if options.output:
        settings = {name: value for name, value in asdict(task).items() if name != "records"}
        compare.write_results(options.output, command, {"task": settings, "runs": outputs})
    if options.picture:
        bars = [Bar(run.title, one[0], f"{one[0]:,.0f}", run.workers == "processes") for run, one in medians.items()]
        write_bars(options.picture, grid.title, bars, "images per second")


def _runs(numbers: Sequence[int]) -> Iterator[Run]:
    for decoder in ("stubbed", "memcpy", "real"):
        for workers in ("threads", "processes"):
            yield from (Run(decoder, workers, number) for number in numbers)


def _command(run: Run, task: Task) -> list[str]:
    records = "null" if run.decoder == "memcpy" else task.records
    options = task.options | {"input_workers": run.workers, "input_pipeline": "optimized"}
    task = dataclasses.replace(task, records=records, num_parallel_calls=run.number, options=options)
    return run_alone("stubbed" if run.decoder == "stubbed" else "ours", task)


def _medians(outputs: Sequence[Mapping[str, float]]) -> tuple[float, float, float]:
    speed, parent, cpu = (compare.median(outputs, name) for name in _FIGURES)
    return speed, parent, 1000 * cpu


def tabulate(medians: Mapping[Run, tuple[float, float, float]], title: str) -> Grid:
    """The figures of each run, (images/s, parent's CPU us per image, CPU us per image), estimates for more cores."""
    rows = []
    for run, (speed, parent, cpu) in medians.items():
        is_locked = run.workers == "threads" and run.decoder == "real"
        serial = medians[run._replace(decoder="stubbed")][1] if is_locked else parent
        estimates = (min(cores / cpu, 1 / serial) * 1e6 for cores in MORE_CORES)
        rows.append(
            (run.title, f"{speed:,.0f}", f"{parent:.1f}", f"{cpu:.1f}", *(f"{each:,.0f}" for each in estimates))
        )
    header = ("decoder, workers", "images/s", "parent us/image", "CPU us/image", *(f"{n} cores" for n in MORE_CORES))
    return Grid(title, header, rows, _NOTES)
