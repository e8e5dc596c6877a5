"""Input pipelines to compare with, each written as users of that library would write it for speed.

They read the same records as ours, or files of their own format with the same photos, shuffle them, crop random
windows, resize them, mirror half of them and make batches endlessly, with as many threads or processes as ours.
Libraries are imported where they are used: they are not dependencies of this package.
"""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from resnet_tpu.data.pixels.crop import train_window
from resnet_tpu.data.records.index import CHECKSUM, HEADER
from resnet_tpu.data.records.tfrecord import load_index
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.source import Source
from resnet_tpu.performance.bench.compare import Peer
from resnet_tpu.performance.bench.task import Task

_FILES_AT_ONCE = 64  # as the original
_SHUFFLE_BUFFER = 1024
_BATCHES_AHEAD = 2  # per worker
_ENDLESS = 1 << 40
_EPOCHS_AT_ONCE = 1000  # a short epoch would be mostly start-up
_BETON = "train-0.beton"


@dataclass(frozen=True, kw_only=True)
class Pipeline(Peer):
    """An input pipeline of another project.

    `write` stores the photos of a task's records in files of the pipeline's own format, and returns the path of their
    folder; None if the pipeline reads records.
    """

    open: Callable[[Task], Iterator[Any]]
    write: Callable[[Task], str] | None = None


def open_tf_optimized(task: Task) -> Iterator[Any]:
    """The original's pipeline: caches raw records, decodes images in threads, prepares batches ahead.

    tensorflow/tpu, models/official/resnet/imagenet_input.py with `use_cache`. Its `map_and_batch` is replaced by `map`
    and `batch`, and a private thread pool fixes the number of threads; neither costs more CPU time.
    """
    import tensorflow as tf

    dataset = _tf_records(task).cache().shuffle(_SHUFFLE_BUFFER).repeat()
    dataset = dataset.map(_tf_preprocess(task), num_parallel_calls=task.num_parallel_calls, deterministic=False)
    dataset = dataset.batch(task.batch_size, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = task.num_parallel_calls
    return iter(dataset.with_options(options))


def open_tf_basic(task: Task) -> Iterator[Any]:
    """The naive pipeline that the original was compared with: the same, but one image at a time, only on demand."""
    dataset = _tf_records(task).shuffle(_SHUFFLE_BUFFER).repeat()
    return iter(dataset.map(_tf_preprocess(task)).batch(task.batch_size, drop_remainder=True))


def _tf_records(task: Task) -> Any:
    import tensorflow as tf

    files = tf.data.Dataset.list_files(f"{task.records}/train-*", shuffle=False)
    return files.interleave(tf.data.TFRecordDataset, cycle_length=_FILES_AT_ONCE, num_parallel_calls=1)


def _tf_preprocess(task: Task) -> Callable[[Any], tuple[Any, Any]]:
    """Record -> (bfloat16 image, label): decodes only the window, and resizes with TF1's kernels."""
    import tensorflow as tf

    size = task.image_size
    resize = {"bicubic": tf.raw_ops.ResizeBicubic, "bilinear": tf.raw_ops.ResizeBilinear}[task.resize_method]

    def preprocess(record: Any) -> tuple[Any, Any]:
        kinds = {"image/encoded": tf.string, "image/class/label": tf.int64}
        spec = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
        features = tf.io.parse_single_example(record, spec)
        encoded = features["image/encoded"]
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = resize(images=image[None], size=[size, size])[0]
        image = tf.image.random_flip_left_right(tf.ensure_shape(image, [size, size, 3]))
        return tf.cast(image, tf.bfloat16), tf.cast(features["image/class/label"], tf.int32) - 1

    return preprocess


class _TorchPhotos:
    """A map-style data set for `DataLoader`."""

    def __init__(self, source: Source, decode: Callable[[bytes], Any], transform: Callable[[Any], Any]) -> None:
        self._source, self._decode, self._transform = source, decode, transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        sample = self._source[i]
        return self._transform(self._decode(bytes(sample.encoded))), sample.label


def open_torch(task: Task) -> Iterator[Any]:
    """PyTorch's DataLoader with a process per core, torchvision's JPEG decoder and transforms on uint8 tensors."""
    return _open_torch(task, _decode_torchvision, [])


def open_torch_pillow(task: Task) -> Iterator[Any]:
    """The same with Pillow and transforms on its images, as in torchvision's `ImageFolder` and reference training."""
    from torchvision.transforms import v2

    return _open_torch(task, _decode_pillow, [v2.PILToTensor()])


def _open_torch(task: Task, decode: Callable[[bytes], Any], last: list[Any]) -> Iterator[Any]:
    """The transforms of torchvision's references/classification.

    The crop is torchvision's, uniform in area; the original's is uniform in height. Either way, whole photos are
    decoded. The sampler continues from epoch to epoch without the pause that a new iterator would cause.
    """
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision.transforms import InterpolationMode, v2

    crop = v2.RandomResizedCrop(task.image_size, interpolation=InterpolationMode(task.resize_method), antialias=True)
    transform = v2.Compose([crop, v2.RandomHorizontalFlip(), *last])
    photos: Any = _TorchPhotos(open_source(task.data(), "train"), decode, transform)
    sampler = RandomSampler(photos, num_samples=_ENDLESS)
    workers = task.num_parallel_calls
    loader = DataLoader(
        photos, task.batch_size, sampler=sampler, drop_last=True, num_workers=workers, prefetch_factor=_BATCHES_AHEAD
    )
    return iter(loader)


def _decode_torchvision(encoded: bytes) -> Any:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), mode=ImageReadMode.RGB)


def _decode_pillow(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded)).convert("RGB")


def open_grain(task: Task) -> Iterator[Any]:
    """Grain with its threads and OpenCV. Each thread makes whole batches: image by image, Grain has more overhead."""
    import grain

    cv2.setNumThreads(1)  # Grain's threads work on images in parallel
    source: Any = open_source(task.data(), "train")
    records = grain.MapDataset.source(source).seed(0).shuffle().repeat()
    batches = records.random_map(lambda sample, rng: _crop(sample.encoded, rng, task)).batch(task.batch_size)
    threads = task.num_parallel_calls
    return iter(
        batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_BATCHES_AHEAD * threads))
    )


def open_spdl(task: Task) -> Iterator[Any]:
    """SPDL with its threads and OpenCV, as its own decoder needs FFmpeg's libraries. Whole batches, as for Grain."""
    from spdl.pipeline import PipelineBuilder

    cv2.setNumThreads(1)
    source, threads = open_source(task.data(), "train"), task.num_parallel_calls

    def records() -> Iterator[int]:
        rng = np.random.default_rng(0)
        while True:
            yield from rng.permutation(len(source)).tolist()

    def make(batch: list[int]) -> np.ndarray:
        rng = np.random.default_rng(batch)
        return np.stack([_crop(bytes(source[i].encoded), rng, task) for i in batch])

    stages = PipelineBuilder().add_source(records()).aggregate(task.batch_size).pipe(make, concurrency=threads)
    pipeline = stages.add_sink(_BATCHES_AHEAD * threads).build(num_threads=threads)
    pipeline.start()
    return pipeline.get_iterator()


def open_dali(task: Task) -> Iterator[Any]:
    """DALI's ImageNet pipeline on the CPU. It decodes only the window, which is uniform in area like torchvision's."""
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    files = sorted(map(str, Path(task.records).glob("train-*")))
    features: Any = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    method = {"bicubic": types.INTERP_CUBIC, "bilinear": types.INTERP_LINEAR}[task.resize_method]
    size, threads = task.image_size, task.num_parallel_calls

    @pipeline_def(batch_size=task.batch_size, num_threads=threads, device_id=None, prefetch_queue_depth=_BATCHES_AHEAD)
    def make() -> Any:
        records: Any = fn.readers.tfrecord(
            path=files, index_path=_index_for_dali(files, f"{task.records}-dali"), features=features,
            random_shuffle=True, initial_fill=_SHUFFLE_BUFFER,
        )  # fmt: skip
        images = fn.decoders.image_random_crop(
            records["image/encoded"], random_aspect_ratio=(3 / 4, 4 / 3), random_area=(0.08, 1.0)
        )
        images = fn.resize(images, resize_x=size, resize_y=size, interp_type=method, antialias=False)
        return fn.flip(images, horizontal=fn.random.coin_flip()), records["image/class/label"] - 1

    pipeline: Any = make()
    pipeline.build()
    while True:
        yield pipeline.run()[0].as_tensor()


def _index_for_dali(files: Sequence[str], folder: str) -> list[str]:
    """Writes the offset and length of each TFRecord into text files in `folder`. Returns their paths."""
    Path(folder).mkdir(exist_ok=True)
    paths = [Path(folder, Path(file).name) for file in files]
    for file, path in zip(files, paths, strict=True):
        rows = [(begin - HEADER.size, HEADER.size + n + CHECKSUM.size) for begin, n in load_index(file).tolist()]
        path.write_text("".join(f"{begin} {length}\n" for begin, length in rows))
    return list(map(str, paths))


def write_ffcv(task: Task) -> str:
    """Writes the photos as FFCV's own recipe for ImageNet encodes them, as JPEGs of quality 90, but not smaller."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    folder = Path(f"{task.records}-ffcv")
    if folder.exists():  # from an earlier round
        return str(folder)
    folder.mkdir()
    photos: Any = _TorchPhotos(open_source(task.data(), "train"), _decode_pillow, np.asarray)
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(folder / _BETON), fields, num_workers=task.num_parallel_calls).from_indexed_dataset(photos)
    return str(folder)


def open_ffcv(task: Task) -> Iterator[Any]:
    """FFCV with its threads. It decodes whole photos, and resizes by area, regardless of `resize_method`."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip

    image = [RandomResizedCropRGBImageDecoder((task.image_size, task.image_size)), RandomHorizontalFlip()]
    loader = Loader(
        f"{task.records}/{_BETON}", task.batch_size, num_workers=task.num_parallel_calls, os_cache=True,
        order=OrderOption.RANDOM, indices=np.tile(np.arange(task.num_images), _EPOCHS_AT_ONCE),
        batches_ahead=_BATCHES_AHEAD, pipelines={"image": image, "label": [IntDecoder()]},
    )  # fmt: skip
    return (images for _ in itertools.count() for images, _ in loader)


def _crop(encoded: bytes, rng: np.random.Generator, task: Task) -> np.ndarray:
    image = np.asarray(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION))
    height, width, _ = image.shape
    y, x, h, w = train_window(rng, height, width, task.image_size)
    method = {"bicubic": cv2.INTER_CUBIC, "bilinear": cv2.INTER_LINEAR}[task.resize_method]
    small = cv2.resize(image[y : y + h, x : x + w], (task.image_size, task.image_size), interpolation=method)
    small = cv2.cvtColor(small, cv2.COLOR_BGR2RGB)
    return cv2.flip(small, 1) if rng.random() < 0.5 else small


PEERS = {
    "tf_optimized": Pipeline("tf.data, optimized", "tensorflow", "tensorflow", open=open_tf_optimized),
    "tf_basic": Pipeline("tf.data, basic", "tensorflow", "tensorflow", open=open_tf_basic),
    "torch": Pipeline("PyTorch DataLoader", "torchvision", "torchvision", open=open_torch),
    "torch_pillow": Pipeline("PyTorch DataLoader, Pillow", "torchvision", "torchvision", open=open_torch_pillow),
    "grain": Pipeline("Grain, OpenCV", "grain", "grain", open=open_grain),
    "spdl": Pipeline("SPDL, OpenCV", "spdl", "spdl-core", open=open_spdl),
    "dali": Pipeline("DALI", "nvidia.dali", "nvidia-dali-cuda120", open=open_dali),
    "ffcv": Pipeline("FFCV", "ffcv", "ffcv", open=open_ffcv, write=write_ffcv),
}
