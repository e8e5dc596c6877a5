"""The upper limit of the input: its work besides decoding, and the speed that follows for hosts with more cores.

The pipeline runs with few and many threads and processes, and with three decoders: the real one; `stubbed`, which does
everything except decode and resize; and `memcpy`, which copies finished pixels. The parent is the process that trains,
whose work further cores cannot share. The speed with more cores follows from its CPU time and that of all processes.

    python -m benchmarks.ceiling PHOTOS
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks import script
from benchmarks.undecoded import undecoded
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.preprocess import train_image
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.figures import markdown
from resnet_tpu.performance.bench.photos import write_photos
from resnet_tpu.performance.bench.task import Task, measure
from resnet_tpu.system.machine import num_cores

MORE_CORES = (16, 112, 224)
"""Cores of the hosts to which the figures are extrapolated."""
HEADER = ("decoder, workers", "images/s", "parent us/image", "CPU us/image", *(f"{n} cores" for n in MORE_CORES))

_FIGURES = ("images_per_sec", "parent_us_per_image", "cpu_ms_per_image")
_NOTE = "N cores: images/s, estimated: N / CPU time, at most 1 / the parent's, for threads that of the stubbed decoder."


class Run(NamedTuple):
    """A run of the pipeline, measured in a process of its own."""

    decoder: Literal["stubbed", "memcpy", "real"]
    workers: Literal["threads", "processes"]
    number: int

    @property
    def title(self) -> str:
        """A readable name."""
        return f"{self.decoder}, {self.workers}: {self.number}"


def main() -> None:
    """Runs the benchmark. Raises UserError without the library in C, which reads the size of an image for the stub."""
    parser = script.make_parser("ceiling", __doc__, rounds=5)
    parser.add_argument("photos", nargs="?", default="", help="Folder of JPEGs or of training records. Default: drawn.")
    parser.add_argument("--num_images", type=int, default=1000, help="Images in the records. Default: %(default)s.")
    parser.add_argument("--image_size", type=int, default=224, help="In px. Default: %(default)s.")
    parser.add_argument("--batch_size", type=int, default=1024, help="Images in a batch. Default: %(default)s.")
    parser.add_argument("--seconds", type=float, default=5.0, help="That a run is timed for. Default: %(default)s.")
    parser.add_argument("--worker", help="One run in this process: name of a decoder and its task, as JSON.")
    options = parser.parse_args()
    if options.worker:
        decoder, task = json.loads(options.worker)
        print(json.dumps(_measure(decoder, Task(**task))))
        return
    if not native.load():
        do = "See docs/input.md for how to get it."
        raise UserError("ceiling", "an installation without the library in C", "one with it", do)
    numbers = sorted({1, 2, 8, num_cores()})
    if options.quick:
        options.rounds, options.num_images, options.batch_size, options.seconds, numbers = 1, 32, 8, 0.2, [1]
    runs = {run.title: run for run in _runs(numbers)}
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records")
        write_photos(options.photos, records, options.num_images)
        commands = {title: _command(run, str(records), options) for title, run in runs.items()}
        outputs = script.alternate(commands, options)
    medians = {runs[title]: _medians(found) for title, found in outputs.items()}
    names = ("num_images", "image_size", "batch_size", "seconds")
    settings = {name: getattr(options, name) for name in names}
    text = markdown(HEADER, tabulate(medians), [_NOTE])
    script.report("ceiling", text, {"task": settings, "runs": outputs}, options)


def _runs(numbers: Sequence[int]) -> Iterator[Run]:
    for decoder in ("stubbed", "memcpy", "real"):
        for workers in ("threads", "processes"):
            yield from (Run(decoder, workers, number) for number in numbers)


def _command(run: Run, records: str, options: argparse.Namespace) -> list[str]:
    task = Task(
        records="null" if run.decoder == "memcpy" else records, num_images=options.num_images,
        image_size=options.image_size, resize_method="bicubic", num_parallel_calls=run.number,
        batch_size=options.batch_size, seconds=options.seconds, options={"input_workers": run.workers},
    )  # fmt: skip
    return script.worker("ceiling", "--worker", json.dumps([run.decoder, asdict(task)]))


def _measure(decoder: str, task: Task) -> dict[str, float]:
    """The figures of `measure`, and the CPU time of this process per image in the same batches."""
    own_secs: list[float] = []  # CPU time at the arrival of each batch

    def timed(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            own_secs.append(time.process_time())
            yield batch

    data, make = task.data(), undecoded if decoder == "stubbed" else train_image
    source = open_source(data, "train")
    with train_batches(source, data, batch_size=task.batch_size, seed=0, train_image=make) as batches:
        figures = measure(timed(batches), task)
    own_secs = own_secs[task.warmup_batches - 1 :]
    num_images = (len(own_secs) - 1) * task.batch_size
    return figures | {"parent_us_per_image": 1e6 * (own_secs[-1] - own_secs[0]) / num_images}


def _medians(outputs: Sequence[Mapping[str, float]]) -> tuple[float, float, float]:
    speed, parent, cpu = (compare.median(outputs, name) for name in _FIGURES)
    return speed, parent, 1000 * cpu


def tabulate(medians: Mapping[Run, tuple[float, float, float]]) -> list[tuple[str, ...]]:
    """A row of text per run: its images/s, CPU us per image of the parent and in all, and estimates for more cores."""
    rows = []
    for run, (speed, parent, cpu) in medians.items():
        is_locked = run.workers == "threads" and run.decoder == "real"
        serial = medians[run._replace(decoder="stubbed")][1] if is_locked else parent
        estimates = (min(cores / cpu, 1 / serial) * 1e6 for cores in MORE_CORES)
        rows.append(
            (run.title, f"{speed:,.0f}", f"{parent:.1f}", f"{cpu:.1f}", *(f"{each:,.0f}" for each in estimates))
        )
    return rows


if __name__ == "__main__":
    script.main(main)
