"""Reading training data in pieces from a bucket too large for the disk: requests, bytes, memory, speed and randomness.

The bucket is on the tests' server on this machine, which delays its replies as a real bucket does. Each host reads its
share of an epoch, one host after the other, and nothing is decoded. `records` is the other order, with a request per
image. The randomness of the order is computed for as many records as in ImageNet, and compared with a true permutation.

    python -m benchmarks.pieces
"""

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import script
from benchmarks.gcs import ask, serving
from resnet_tpu.data.loader.ahead import ReadAhead, Request, by_chunks, by_segments
from resnet_tpu.data.loader.order import record_at_position
from resnet_tpu.data.loader.order_choice import piece_order
from resnet_tpu.data.loader.piece_order import PieceOrder
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordError, RecordWriter
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.data.sources.tfrecords import RemoteRecordSource
from resnet_tpu.options.config import DataConfig

IMAGENET, IMAGE_BYTES, PER_PIECE, CLASSES = 1_281_167, 110_000, 38, 1000
CHUNK, FILES, SEED = 16, 4, 1


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("pieces", __doc__, rounds=1)
    parser.add_argument("--num_images", type=int, default=3000, help="Records of 110 kB. Default: %(default)s.")
    parser.add_argument("--batch_size", type=int, default=64, help="Of all hosts. Default: %(default)s.")
    parser.add_argument("--slow_secs", type=float, default=0.05, help="Delay of every reply. Default: %(default)s.")
    options = parser.parse_args()
    if options.quick:
        options.num_images, options.batch_size, options.slow_secs = 320, 32, 0.0
    slow = {"slow": 1.0, "slow_secs": options.slow_secs}
    faults = slow | {"limited": 0.02, "busy": 0.01, "cut_body": 0.01}
    with tempfile.TemporaryDirectory() as folder, serving() as endpoint:
        os.environ["XDG_CACHE_HOME"] = folder
        _write(options.num_images)
        data = DataConfig(data_dir="gs://bucket/records", num_label_classes=CLASSES, cache_folder="none")
        source = open_source(data, "train")
        assert isinstance(source, RemoteRecordSource)
        bench = _Bench(source, piece_order(source, data, batch_size=options.batch_size, seed=SEED), endpoint, options)
        reads = [bench.read("pieces", hosts, slow) for hosts in (1, 8, 32)]
        reads += [bench.read("pieces", 8, faults), bench.read("records", 1, slow)]
    count = 20_000 if options.quick else IMAGENET
    random = [_randomness(name, count, batch_size=256 if options.quick else 1024) for name in ("pieces", "records")]
    lines = [str(one) for one in (*reads, *random)]
    figures = {"reads": [asdict(one) for one in reads], "randomness": [asdict(one) for one in random]}
    script.report("pieces", "\n".join(lines), figures, options)


def _write(num_images: int) -> None:
    rng = np.random.default_rng(0)
    for number, share in enumerate(np.array_split(np.arange(num_images), FILES)):
        with RecordWriter(f"gs://bucket/records/train-{number:05}-of-{FILES:05}") as writer:
            for i in share.tolist():
                image = rng.bytes(int(rng.integers(IMAGE_BYTES // 2, IMAGE_BYTES * 3 // 2)))
                writer.write(encode_example({"image/encoded": image, "image/class/label": 1 + i % CLASSES}))


@dataclass(frozen=True)
class Read:
    """The figures of an epoch, read by all hosts one after the other."""

    order: str
    hosts: int
    requests_per_image: float
    bytes_per_data: float  # all hosts together
    most_bytes_per_data_and_host: float  # of the host that reads most; 1 / hosts would be an equal share
    most_waiting_mb: float  # image files, in one host
    images_per_sec_and_host: float  # the median over hosts
    faults: dict[str, float]


class _Counted:
    """A source that counts the bytes of image files that are fetched but not yet used."""

    def __init__(self, source: RemoteRecordSource) -> None:
        self.source, self.waiting, self.most = source, 0, 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def fetch(self, records: Sequence[int]) -> list[Sample | RecordError]:
        """Fetches from the source and counts the bytes."""
        found = self.source.fetch(records)
        self.add(sum(len(one.encoded) for one in found if isinstance(one, Sample)))
        return found

    def add(self, num_bytes: int) -> None:
        """Adds to the bytes waiting, which may be negative, and updates their maximum."""
        with self._lock:
            self.waiting += num_bytes
            self.most = max(self.most, self.waiting)


@dataclass(frozen=True)
class _Bench:
    source: RemoteRecordSource
    order: PieceOrder
    endpoint: str
    options: Any

    def read(self, order: str, hosts: int, faults: dict[str, float]) -> Read:
        rates, nums_bytes, waiting, requests = [], [], [], 0
        for host in range(hosts):
            ask(self.endpoint, "/_control", faults)
            begin, counted = time.perf_counter(), _Counted(self.source)
            images = self._read_share(order, counted, host, hosts)
            rates.append(images / (time.perf_counter() - begin))
            told = ask(self.endpoint, "/_stats")
            requests += sum(told["requests"].values())
            nums_bytes.append(told["bytes"])
            waiting.append(counted.most)
        data, batches = self.source.num_bytes, len(self.source) // self.options.batch_size
        return Read(
            order, hosts, requests / (batches * self.options.batch_size), sum(nums_bytes) / data,
            max(nums_bytes) / data, max(waiting) / 1e6, float(np.median(rates)), faults,
        )  # fmt: skip

    def _read_share(self, order: str, counted: _Counted, host: int, hosts: int) -> int:
        rows = self.options.batch_size // hosts
        batches = len(self.source) // self.options.batch_size
        starts = [batch * self.options.batch_size + host * rows for batch in range(batches)]
        chunks = [
            range(low, min(low + CHUNK, start + rows)) for start in starts for low in range(start, start + rows, CHUNK)
        ]
        record_at = self.order.record_at if order == "pieces" else self._record_at

        def records(chunk: int) -> dict[int, int]:
            return {position: record_at(position) for position in chunks[chunk]}

        requests: Iterator[Request] = (
            by_segments(len(chunks), chunks.__getitem__, self.order)
            if order == "pieces"
            else by_chunks(len(chunks), records)
        )
        source: Any = counted
        reader = ReadAhead(source, None, requests)
        for chunk in range(len(chunks)):
            for one in reader.take(chunk, records(chunk)).values():
                assert isinstance(one, Sample)
                counted.add(-len(one.encoded))
        reader.close()
        return batches * rows

    def _record_at(self, position: int) -> int:
        return record_at_position(position, num_records=len(self.source), seed=SEED)


@dataclass(frozen=True)
class Randomness:
    """How random an order appears to training, with records in the files in random order or class by class."""

    order: str
    correlation_of_epochs: float  # between the positions of all records in two epochs
    batches_with_two_of_a_piece: float  # share
    steps_between_neighbours: dict[str, float]  # quantiles, for records that are adjacent in a file
    class_spread: float  # standard deviation of a class's count per batch, relative to independent draws
    class_spread_by_class: float  # if the files hold one class after the other
    class_spread_of_36_batches: float
    class_spread_of_36_batches_by_class: float


def _randomness(order: str, count: int, *, batch_size: int) -> Randomness:
    pieces = PieceOrder(np.arange(0, count, PER_PIECE), num_records=count, batch_size=batch_size, seed=SEED)
    record_at: Callable[[int], int] = (
        pieces.record_at
        if order == "pieces"
        else lambda position: record_at_position(position, num_records=count, seed=SEED)
    )
    first, second = (
        np.fromiter((record_at(epoch * count + i) for i in range(count)), np.int64, count) for epoch in (0, 1)
    )
    places, others = np.argsort(first), np.argsort(second)
    steps = np.abs(np.diff(places)) / batch_size
    batches = first[: count // batch_size * batch_size].reshape(-1, batch_size)
    twice = np.mean([max(Counter((batch // PER_PIECE).tolist()).values()) > 1 for batch in batches])
    shuffled = np.random.default_rng(0).permutation(count) % CLASSES
    sorted_ = np.arange(count) * CLASSES // count
    quantiles = {name: float(np.quantile(steps, at)) for name, at in (("1 %", 0.01), ("median", 0.5), ("99 %", 0.99))}
    return Randomness(
        order, float(np.corrcoef(places, others).item(0, 1)), float(twice), quantiles,
        *(_spread(labels[batches], together) for together in (1, 36) for labels in (shuffled, sorted_)),
    )  # fmt: skip


def _spread(labels: np.ndarray, together: int) -> float:
    """The spread of a class's count over these batches, relative to that of independent draws."""
    groups = labels[: len(labels) // together * together].reshape(-1, together * labels.shape[1])
    counts = np.stack([np.bincount(group, minlength=CLASSES) for group in groups])
    return float(counts.std() / np.sqrt(groups.shape[1] / CLASSES * (1 - 1 / CLASSES)))


if __name__ == "__main__":
    script.main(main)
