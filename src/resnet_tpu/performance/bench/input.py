"""Measures input pipelines, ours and others', in images per second over the same records."""

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import option
from resnet_tpu.performance.bench import child, compare, record
from resnet_tpu.performance.bench.compare import Outputs
from resnet_tpu.performance.bench.figures import Bar, Grid, show, write_bars
from resnet_tpu.performance.bench.options import BenchOptions
from resnet_tpu.performance.bench.peers import PEERS
from resnet_tpu.performance.bench.photos import find_jpegs, write_photos, write_records
from resnet_tpu.performance.bench.task import Task, measure
from resnet_tpu.system.machine import num_cores
from resnet_tpu.system.program import run_program

OURS = "resnet-tpu"
OUR_OPTIONS = ("input_workers", "input_pipeline", "cache", "cache_short_side", "cache_memory")
"""Options that peers do not have."""


@dataclass(frozen=True)
class InputBenchOptions(BenchOptions):
    """How `bench input` measures."""

    peers: str = option("", f"Compare with: {', '.join(PEERS)}; or none. Default: all installed.")
    variants: bool = option(
        False,
        "Also measure resnet-tpu with processes, with cache=decoded, with photos made smaller by prepare, and its "
        "basic pipeline.",
    )


def bench_input(where: str, config: Config, options: InputBenchOptions, command: Sequence[str]) -> None:
    """Runs our pipeline and the peers over the photos of `where` (drawn ones if empty), and shows the figures.

    config: the options of our pipeline; image size, resize method and parallel calls apply to all. command: as typed,
    for the record. Raises UserError for a named peer that is not installed, and when a program fails.
    """
    options.check_files()
    peers, notes = compare.choose_peers(options.peers, PEERS)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records")
        write_photos(where, records, options.num_images)
        task = our_task(config.replace(data_dir=str(records)), options)
        tasks = {OURS: task} | (_variants(task, config.data.cached_short_side) if options.variants else {})
        runs = {name: ("ours", task) for name, task in tasks.items()}
        runs |= {PEERS[peer].title: (peer, task) for peer in peers}
        commands = {name: run_alone(*run) for name, run in runs.items()}
        optional = () if options.peers else [PEERS[peer].title for peer in peers]
        outputs = compare.alternate(commands, rounds=options.rounds, optional=optional)
    notes += [f"Left out: {name}, which failed." for name in runs if name not in outputs]
    grid = _tabulate(outputs, task, notes)
    show(grid, options.format)
    if options.output:
        record.write(options.output, command, _record(outputs, task))
    if options.picture:
        _draw(options.picture, outputs, list(tasks), grid.title)


def our_task(config: Config, options: BenchOptions) -> Task:
    """The records in `config.data.data_dir` with the options of our pipeline."""
    data = config.data
    return Task(
        records=data.data_dir,
        num_images=options.num_images,
        image_size=data.image_size,
        resize_method=data.resize_method,
        num_parallel_calls=data.num_parallel_calls or num_cores(),
        batch_size=options.batch_size,
        seconds=options.seconds,
        options={name: getattr(data, name) for name in OUR_OPTIONS},
    )


def _variants(task: Task, short_side: int) -> dict[str, Task]:
    """Variants of `task` by name: with other options, or with records of their own."""

    def change(**options: Any) -> Task:
        return dataclasses.replace(task, options=task.options | options)

    def store(**limits: Any) -> Task:
        records = "-".join((task.records, *limits))
        write_records(find_jpegs(task.records), Path(records), task.num_images, Limits(**limits))
        return dataclasses.replace(task, records=records)

    return {
        f"{OURS}, input_workers=processes": change(input_workers="processes"),
        f"{OURS}, cache=decoded": change(cache="decoded"),
        f"{OURS}, prepare --recompress --quality=90": store(recompress=True, quality=90),
        f"{OURS}, prepare --short_side={short_side}": store(short_side=short_side),
        f"{OURS}, prepare --short_side={short_side} --quality=90": store(short_side=short_side, quality=90),
        f"{OURS}, input_pipeline=basic": change(input_pipeline="basic", input_workers="threads"),
    }


def run_alone(pipeline: str, task: Task) -> list[str]:
    """The command that measures "ours" or one of PEERS in a process of its own."""
    return child.command_of(__name__, pipeline, json.dumps(asdict(task)))


def _reference(outputs: Outputs) -> str:
    """The pipeline whose speed counts as 1: the original's, else the first peer that ran, else ours."""
    return next((peer.title for peer in PEERS.values() if peer.title in outputs), OURS)


def _tabulate(outputs: Outputs, task: Task, notes: Sequence[str]) -> Grid:
    reference = _reference(outputs)
    rows = []
    for name, runs in outputs.items():
        rows.append(
            (
                name,
                f"{compare.median(runs, 'images_per_sec'):,.0f}",
                *compare.ratio_cells(compare.ratios(outputs, "images_per_sec", name, reference)),
                f"{compare.median(runs, 'cpu_ms_per_image'):.3f}",
                f"{runs[0]['bytes_per_image'] / 1000:.1f}",
            )
        )
    title = (
        f"Input at {task.image_size} px, {task.resize_method}, {task.num_parallel_calls} threads or processes, "
        f"batch {task.batch_size}, {task.num_images} images"
    )
    header = ("pipeline", "images/s", f"times {reference}", "range", "CPU ms/image", "kB/image")
    return Grid(title, header, rows, notes)


def _record(outputs: Outputs, task: Task) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(task).items() if name != "records"}
    return {"task": settings, "reference": _reference(outputs), "runs": outputs}


def _draw(path: str, outputs: Outputs, ours: Sequence[str], title: str) -> None:
    reference, bars = _reference(outputs), []
    for name, runs in outputs.items():
        value = compare.median(runs, "images_per_sec")
        ratio, _ = compare.ratio_cells(compare.ratios(outputs, "images_per_sec", name, reference))
        bars.append(Bar(name, value, f"{value:,.0f}  ({ratio}x)", name in ours))
    write_bars(path, title, bars, f"images per second (x: times {reference})")


def _run(arguments: Sequence[str]) -> None:
    """One run in this process. arguments: the name of a pipeline, and a Task as JSON."""
    pipeline, text = arguments
    task = Task(**json.loads(text))
    if pipeline == "ours":
        data = task.data()
        batches = train_batches(open_source(data, "train"), data, batch_size=task.batch_size, seed=0)
    else:
        peer = PEERS[pipeline]
        if peer.write:
            task = dataclasses.replace(task, records=peer.write(task))
        batches = peer.open(task)
    bytes_per_image = sum(path.stat().st_size for path in Path(task.records).glob("train-*")) / task.num_images
    print(json.dumps(measure(batches, task) | {"bytes_per_image": bytes_per_image}), flush=True)
    os._exit(0)  # the threads and processes of an endless iterator end with this one


if __name__ == "__main__":
    sys.exit(run_program(_run))
