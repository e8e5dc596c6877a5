"""An epoch of ImageNet on 1, 8 and 32 hosts, simulated; and the simulation compared with training on this machine.

`plan` takes the slower of decoding and reading as the limit; this script shows what that leaves out. All hosts get
equal shares of a batch and have the same loader. The training runs read `PHOTOS` from memory, and from a bucket on the
tests' server, which delays its replies. A stand-in takes the place of the device, as in `resnet-tpu bench wait`. A run
with an infinitely fast device gives the speed at which a host can decode; the input alone, without the decoder, gives
the speed at which it can read. From these, the simulation predicts how long other devices wait.

    python -m benchmarks.epoch PHOTOS
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import script
from benchmarks.feeding import Epoch, Lost, Slow, simulate
from benchmarks.gcs import ask, copy_records, serving
from benchmarks.undecoded import undecoded
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.options.config import Config
from resnet_tpu.performance.bench.photos import write_photos
from resnet_tpu.performance.bench.task import Task, measure
from resnet_tpu.performance.bench.wait import make_device
from resnet_tpu.performance.plan.host import Host
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.system.machine import num_cores
from resnet_tpu.training.loop import train

IMAGENET = 1_281_167
PER_HOST, STEP = 1024, 0.05
"""A host with eight chips that take 20,480 images/s, as `plan` estimates for v5e."""

HOSTS = {
    "enough": (Host(25_000, 3_000), 112),
    "too few cores": (Host(16_000, 3_000), 56),
    "a slow bucket": (Host(25_000, 1_800), 112),
    "just enough": (Host(20_480, 3_000), 112),
}
"""Hosts, each with its number of workers."""

EVENTS = {
    "a minute with a bucket at a tenth, one host": (Slow(5, 60, 0.1, hosts=1), None),
    "a minute with a bucket at a tenth, all hosts": (Slow(5, 60, 0.1, hosts=32), None),
    "two seconds without a bucket, one host": (Slow(5, 2, 0.001, hosts=1), None),
    "a worker dies, saved every 250 steps": (None, Lost(40, restart=90, steps_per_save=250)),
}


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("epoch", __doc__, rounds=3)
    parser.add_argument("photos", nargs="?", default="", help="Folder of JPEGs or of training records. Default: drawn.")
    parser.add_argument("--num_images", type=int, default=1000, help="Images to train on. Default: %(default)s.")
    parser.add_argument("--batch_size", type=int, default=64, help="Of the training runs. Default: %(default)s.")
    parser.add_argument("--seconds", type=float, default=10, help="Of a training. Default: %(default)s.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.num_images, options.batch_size, options.seconds = 1, 64, 16, 0.5
    epochs = list(_simulate_imagenet(steps=100 if options.quick else 0))
    with tempfile.TemporaryDirectory() as folder, serving() as endpoint:
        trainings = list(_Trainings(folder, endpoint, options).compare())
    print()
    lines = [
        "An epoch of ImageNet, simulated:",
        *(f"{each['hosts']:3} hosts, {each['what']}: {_line(each['epoch'])}" for each in epochs),
        "", "Trainings here, and what the simulation says of them:",
        *(str(one) for one in trainings),
    ]  # fmt: skip
    figures = {"epochs": epochs, "trainings": [asdict(one) for one in trainings]}
    script.report("epoch", "\n".join(lines), figures, options)


def _simulate_imagenet(steps: int) -> Iterator[dict[str, Any]]:
    for hosts in (1, 8, 32):
        settings = {
            "hosts": hosts, "batch_size": PER_HOST * hosts, "step_seconds": STEP,
            "steps": steps or IMAGENET // (PER_HOST * hosts),
        }  # fmt: skip
        for what, (host, workers) in HOSTS.items():
            yield {"hosts": hosts, "what": what, "epoch": asdict(simulate(host, workers=workers, **settings))}
        settings["steps"] = steps or IMAGENET // PER_HOST  # as long as on one host: an epoch per host
        host, workers = HOSTS["enough"]
        for what, (slow, lost) in EVENTS.items():
            epoch = simulate(host, workers=workers, slow=[slow] if slow else [], lost=lost, **settings)
            yield {"hosts": hosts, "what": what, "epoch": asdict(epoch)}


def _line(epoch: dict[str, Any]) -> str:
    found = Epoch(**epoch)
    return (
        f"{found.seconds:.1f} s, input wait {found.input_wait:.1%}, at most {found.longest_wait:.2f} s at a time, "
        f"{found.host_mb:,.0f} MB in a host, {found.steps} steps"
    )


@dataclass(frozen=True)
class Training:
    """A training run on this machine, and its simulation."""

    what: str
    device_images_per_sec: float
    host: Host
    measured: float  # input wait, as a fraction of the time after the first loop
    simulated: float


@dataclass(frozen=True)
class _Trainings:
    folder: str
    endpoint: str
    options: Any

    def compare(self) -> Iterator[Training]:
        os.environ["XDG_CACHE_HOME"] = self.folder
        records = Path(self.folder, "records")
        write_photos(self.options.photos, records, self.options.num_images)
        image_kb = sum(path.stat().st_size for path in records.glob("*-of-*")) / self.options.num_images / 1000
        for _ in range(self.options.rounds):
            decoding = self._rate(str(records))
            host = Host(decoding, image_kb=image_kb)
            for speed in (0.8, 1.0, 1.25):
                yield self._compare("from memory", str(records), host, speed * decoding)
        self._slow(0)
        bucket = copy_records(records)
        for _ in range(self.options.rounds):
            self._slow(1)
            reading = self._rate_undecoded(bucket) * image_kb / 1000
            host = Host(self._rate(str(records)), reading, image_kb)
            for speed in (0.8, 1.0, 1.25):
                yield self._compare("from a slow bucket", bucket, host, speed * host.most_images_per_sec)

    def _slow(self, seconds: float) -> None:
        ask(self.endpoint, "/_control", {"slow": 1.0 if seconds else 0.0, "slow_secs": seconds})

    def _compare(self, what: str, data_dir: str, host: Host, images_per_sec: float) -> Training:
        step_seconds = self.options.batch_size / images_per_sec
        steps = self._steps(images_per_sec)
        measured, _ = self._train(data_dir, step_seconds, steps)
        epoch = simulate(
            host, workers=num_cores(), hosts=1, batch_size=self.options.batch_size, step_seconds=step_seconds,
            steps=steps,
        )  # fmt: skip
        found = Training(what, images_per_sec, host, measured, epoch.input_wait)
        print(found, flush=True)
        return found

    def _rate(self, data_dir: str) -> float:
        """Images/s with a device that takes no time."""
        _, images_per_sec = self._train(data_dir, 0.0, self._steps(2000))
        return images_per_sec

    def _rate_undecoded(self, data_dir: str) -> float:
        """Images/s of the input alone, without its decoder."""
        options = self.options
        task = Task(
            records=data_dir, num_images=options.num_images, image_size=224, resize_method="bicubic",
            num_parallel_calls=num_cores(), batch_size=options.batch_size, seconds=options.seconds,
            options=_storage_options(data_dir),
        )  # fmt: skip
        data = task.data()
        source = open_source(data, "train")
        with train_batches(source, data, batch_size=task.batch_size, seed=0, train_image=undecoded) as batches:
            return measure(batches, task)["images_per_sec"]

    def _steps(self, images_per_sec: float) -> int:
        return max(20, round(self.options.seconds * images_per_sec / self.options.batch_size))

    def _train(self, data_dir: str, step_seconds: float, steps: int) -> tuple[float, float]:
        """Input wait and images/s of a training run, excluding its first loop."""
        with tempfile.TemporaryDirectory() as model_dir:
            config = Config().replace(
                data_dir=data_dir, model_dir=model_dir, mode="train", train_batch_size=self.options.batch_size,
                train_steps=steps, iterations_per_loop=max(steps // 10, 1), num_label_classes=2, resnet_depth=18,
                resnet_width=4, precision="float32", **_storage_options(data_dir),
            )  # fmt: skip
            train(config, train_step=make_device(1000 * step_seconds))
            rows = [row for row in read_metrics(model_dir) if "input_wait_share" in row][1:]
        seconds = [1 / row["images_per_sec"] for row in rows]
        wait = sum(row["input_wait_share"] * each for row, each in zip(rows, seconds, strict=True))
        return wait / sum(seconds), len(rows) / sum(seconds)


def _storage_options(data_dir: str) -> dict[str, str]:
    return {"cache_folder": "none", "data_order": "pieces" if "://" in data_dir else "auto"}


if __name__ == "__main__":
    script.main(main)
