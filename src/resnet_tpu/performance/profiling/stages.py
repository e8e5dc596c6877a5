"""Measures the CPU time of each stage of the input pipeline, on one core, by calling the stages directly."""

import contextlib
import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from resnet_tpu.data.cleaning import Limits, shrink
from resnet_tpu.data.loader.ahead import CHUNKS_PER_REQUEST, THREADS
from resnet_tpu.data.loader.cache import is_cached
from resnet_tpu.data.loader.order import random_at, record_at_position
from resnet_tpu.data.loader.order_choice import choose_order
from resnet_tpu.data.loader.worker_choice import MOST_IN_CHUNK
from resnet_tpu.data.pixels.augment import augment
from resnet_tpu.data.pixels.crop import train_window
from resnet_tpu.data.pixels.decode import DecodeError, decode
from resnet_tpu.data.pixels.preprocess import train_image
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.source import RemoteSource, Sample, Source, as_remote, raise_if_damaged
from resnet_tpu.data.sources.tfrecords import RecordSource
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.parallel import placement
from resnet_tpu.performance.profiling.advice import Stage
from resnet_tpu.training.kernel_choice.random_inputs import random_rows

ORDER, READ, PARSE, CROP, DECODE, RESIZE = (
    "order and random numbers", "read", "parse", "crop decision", "decode", "resize"
)  # fmt: skip
AUGMENT, REST, HAND_OVER = "augment", "workers and batch", "hand-over to device"
_FROM_FILE, _FROM_PIXELS = "decode, crop, resize", "crop, resize"
_TRANSFERS = 5
_WARM_UP = 8  # images: caches, tables, imports on first use


class Stopwatch:
    """Sums CPU and wall time by stage."""

    def __init__(self) -> None:
        self.cpu_ns: dict[str, int] = defaultdict(int)
        self.wall_ns: dict[str, int] = defaultdict(int)

    @contextlib.contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Adds the time of the block, in this thread, to `stage`."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        yield
        self.cpu_ns[stage] += time.thread_time_ns() - cpu
        self.wall_ns[stage] += time.perf_counter_ns() - wall


Reader = Callable[[Stopwatch, int], Sample]
"""Reads the image at a position of training, and times that."""


@dataclass(frozen=True)
class Sampled:
    """Measurements of a sample of the training images.

    stages: those that the data pass, in order; storage_share: the share of wall time spent waiting for files that no
    cache keeps; sides: (height, width) of the photos in pixels; encoded: their files.
    """

    stages: tuple[Stage, ...]
    storage_share: float
    sides: tuple[tuple[int, int], ...]
    encoded: tuple[bytes, ...]


def sample_stages(source: Source, data: DataConfig, *, batch_size: int, seed: int, num_images: int) -> Sampled:
    """Measures the stages from the order to augmentation, for the first `num_images` images of training.

    Skips damaged images. Waits for storage occur only for files that the operating system has not cached yet. Requests
    to a bucket or to Bigtable are as large as in training; as training has several in progress at a time, the wait is
    divided by their number.
    """
    if choose_order(source, data, rows=batch_size) == "pieces":
        records = [position % len(source) for position in range(num_images)]  # neighbours, as in reading by pieces
    else:
        records = [record_at_position(position, num_records=len(source), seed=seed) for position in range(num_images)]
    _Walk(source, data, seed).through(records[:_WARM_UP])
    walk = _Walk(source, data, seed)
    photos, watch = walk.through(records), walk.watch
    spent = _cpu_by_stage(watch)
    waiting = _waiting(watch) / (THREADS if _read_ahead(source, data) else 1)
    return Sampled(
        stages=tuple(Stage(name, ns / 1000 / num_images) for name, ns in spent.items()),
        storage_share=0.0 if is_cached(data) else waiting / (waiting + sum(spent.values())),
        sides=tuple(sides for sides, _ in photos),
        encoded=tuple(encoded for _, encoded in photos),
    )


class _Walk:
    """Takes images of a source through the stages, one after the other, and times each stage with its `watch`."""

    def __init__(self, source: Source, data: DataConfig, seed: int) -> None:
        self.watch = Stopwatch()
        self._source, self._data, self._seed = source, data, seed
        self._out = np.empty((data.image_size, data.image_size, 3), np.uint8)

    def through(self, records: Sequence[int]) -> list[tuple[tuple[int, int], bytes]]:
        """Takes the first images of training, which are `records` of the source, through the stages.

        Returns (sides, file) of each undamaged image.
        """
        source, data, watch, photos = self._source, self._data, self.watch, []
        read = _reader(source, data, records)
        reading = Stopwatch() if data.cache == "decoded" else watch  # with this cache, only the first epoch reads files
        policy = " and ".join(filter(None, [data.augment_name, "random_erasing" if data.random_erasing else None]))
        for position in range(len(records)):
            with watch.at(ORDER):
                record_at_position(position, num_records=len(source), seed=self._seed)
                rng = random_at(position, seed=self._seed)
            try:
                encoded = read(reading, position).encoded
                if isinstance(encoded, np.ndarray):
                    continue
                image = decode(encoded, honour_exif=source.honour_exif)
            except (RecordError, DecodeError):
                continue
            photos.append((image.shape[:2], encoded))
            self._time_decoding(encoded, image, rng)
            if policy:
                with watch.at(f"{AUGMENT}: {policy}"):
                    augment(self._out, rng, data)
        return photos

    def _time_decoding(self, encoded: bytes, image: np.ndarray, rng: np.random.Generator) -> None:
        """Times the stages between reading and augmentation for an image file, whose pixels are `image`.

        The optimized pipeline decodes, crops and resizes in one call, which is timed twice: with the file, and with
        decoded pixels. The difference is decoding; the time for the pixels, less that to choose the crop, is resizing.
        """
        data, watch, honour_exif = self._data, self.watch, self._source.honour_exif
        fill = functools.partial(
            train_image, image_size=data.image_size, rng=rng, out=self._out, honour_exif=honour_exif, **data.train_crop
        )
        if data.cache == "decoded":
            image = shrink(image, Limits(short_side=data.cached_short_side))
        elif data.input_pipeline == "basic":
            with watch.at(DECODE):
                decode(encoded, honour_exif=honour_exif)
        else:
            with watch.at(_FROM_FILE):
                fill(encoded)
        height, width, _ = image.shape
        with watch.at(CROP):
            train_window(rng, height, width, data.image_size, data.min_crop_area)
        with watch.at(_FROM_PIXELS):
            fill(image)


def _cpu_by_stage(watch: Stopwatch) -> dict[str, int]:
    """CPU time by stage, in ns; for decoding and resizing, differences that `_Walk._time_decoding` explains."""
    spent = dict(watch.cpu_ns)
    from_file, from_pixels = spent.pop(_FROM_FILE, None), spent.pop(_FROM_PIXELS, None)
    if from_pixels is not None:
        spent[RESIZE] = max(0, from_pixels - spent[CROP])
    if from_file is not None and from_pixels is not None:
        spent[DECODE] = max(0, from_file - from_pixels)
    known = [name for name in (ORDER, READ, PARSE, CROP, DECODE, RESIZE) if name in spent]
    return {name: spent[name] for name in (*known, *(name for name in spent if name not in known))}


def _waiting(watch: Stopwatch) -> float:
    """Time that reading waited, in ns, assuming that other programs slow all stages down alike."""
    computing = [name for name in watch.cpu_ns if name != READ]
    slowdown = sum(watch.wall_ns[name] for name in computing) / sum(watch.cpu_ns[name] for name in computing)
    return max(0.0, watch.wall_ns[READ] - slowdown * watch.cpu_ns[READ])


def _reader(source: Source, data: DataConfig, records: Sequence[int]) -> Reader:
    """A reader of these records. For TFRecords on a disk, it times reading and parsing separately."""
    if far := _read_ahead(source, data):
        return _remote_reader(far, records)

    def read(watch: Stopwatch, position: int) -> Sample:
        if not isinstance(source, RecordSource):
            with watch.at(READ):
                return source[records[position]]
        with watch.at(READ):
            payload = source.payload(records[position])
        with watch.at(PARSE):
            return source.parse(records[position], payload)

    return read


def _read_ahead(source: Source, data: DataConfig) -> RemoteSource | None:
    """`source`, if training would request many images of it at once."""
    return None if data.input_pipeline == "basic" else as_remote(source)


def _remote_reader(source: RemoteSource, records: Sequence[int]) -> Reader:
    """A reader of these records, one after the other, whose requests are as large as in training."""
    found: list[Sample | RecordError] = []

    def read(watch: Stopwatch, position: int) -> Sample:
        if position == len(found):
            wanted = records[position : position + CHUNKS_PER_REQUEST * MOST_IN_CHUNK["threads"]]
            with watch.at(READ):
                found.extend(source.fetch(wanted))
        return raise_if_damaged(found[position])

    return read


def time_hand_over(config: Config, mesh: Mesh) -> Stage:
    """The CPU time per image to transfer a batch to the devices."""
    batch, spent = random_rows(config), []
    for _ in range(_TRANSFERS):
        begin = time.process_time()
        jax.block_until_ready(placement.put_batch(batch, mesh))
        spent.append(time.process_time() - begin)
    return Stage(HAND_OVER, 1e6 * statistics.median(spent) / len(batch["label"]))
