"""Images per second of the training loader next to tf.data, on the same records.

Both read the same TFRecords, shuffle, draw the original's random windows, resize with TF1's bicubic kernel, mirror half
of the images and make batches with the same number of threads. The peer is the original's optimized pipeline, which
decodes nothing but the window (`decode_and_crop_jpeg`) and makes bfloat16; the loader makes uint8. `--full_decode`
measures against a peer that decodes whole photos as well.

    python -m benchmarks.loader imagenet_photos
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import compare
from resnet_tpu.data.example import encode_example
from resnet_tpu.data.tfrecord import RecordWriter

OURS, FUSED, FULL = "resnet_tpu", "tf.data, decode_and_crop", "tf.data, full decode"
SHARDS = 8


def write_records(images: Path, folder: Path, copies: int) -> None:
    """Writes every JPEG of `images` `copies` times into a few shards."""
    files = [path for path in sorted(images.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")] * copies
    for shard in range(SHARDS):
        with RecordWriter(str(folder / f"train-{shard:05}-of-{SHARDS:05}")) as writer:
            for path in files[shard::SHARDS]:
                features = {"image/encoded": path.read_bytes(), "image/class/label": 1, "image/filename": path.name}
                writer.write(encode_example(features))


def our_batches(folder: str, options: argparse.Namespace) -> Iterator[Any]:
    """The loader."""
    from resnet_tpu.config import DataConfig
    from resnet_tpu.data.loader import train_batches
    from resnet_tpu.data.source import open_source

    data = DataConfig(data_dir=folder, image_size=options.image_size, num_parallel_calls=options.threads)
    return train_batches(open_source(data, "train"), data, batch_size=options.batch_size, seed=0)


def peer_batches(folder: str, options: argparse.Namespace, *, fused: bool) -> Iterator[Any]:
    """tf.data as the original's optimized pipeline has it."""
    import tensorflow as tf

    size = options.image_size

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
        if fused:
            window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
            image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        else:
            image = tf.slice(tf.image.decode_jpeg(encoded, channels=3), begin, extent)
        image = tf.raw_ops.ResizeBicubic(images=image[None], size=[size, size])[0]
        image = tf.image.random_flip_left_right(tf.ensure_shape(image, [size, size, 3]))
        return tf.cast(image, tf.bfloat16), tf.cast(features["image/class/label"], tf.int32) - 1

    dataset = tf.data.Dataset.list_files(f"{folder}/train-*", shuffle=False)
    dataset = dataset.interleave(tf.data.TFRecordDataset, cycle_length=SHARDS, num_parallel_calls=1).cache()
    dataset = dataset.shuffle(1024).repeat()
    dataset = dataset.map(preprocess, num_parallel_calls=options.threads, deterministic=False)
    dataset = dataset.batch(options.batch_size, drop_remainder=True).prefetch(2)
    threads = tf.data.Options()
    threads.threading.private_threadpool_size = options.threads
    return iter(dataset.with_options(threads))


def time_batches(batches: Iterator[Any], batch_size: int, count: int) -> dict[str, float]:
    """Images per second and CPU time of `count` batches, after as many that warm caches and buffers up."""
    for _ in range(count):
        next(batches)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(batches)
    images = count * batch_size
    cpu_ms = (time.process_time() - cpu_begin) / images * 1000
    return {"images_per_sec": images / (time.perf_counter() - begin), "cpu_ms_per_image": cpu_ms}


def main() -> None:
    """The command line."""
    parser = compare.make_parser("loader", __doc__, rounds=5)
    parser.add_argument("images", nargs="?", type=Path, help="Folder with JPEG files. Not for --quick.")
    parser.add_argument("--copies", type=int, default=10, help="Of each image in the records. Default: %(default)s.")
    parser.add_argument("--image_size", type=int, default=224, help="Default: %(default)s.")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="Default: one per CPU core.")
    parser.add_argument("--batch_size", type=int, default=100, help="Default: %(default)s.")
    parser.add_argument("--batches", type=int, default=50, help="Batches per measurement. Default: %(default)s.")
    parser.add_argument("--full_decode", action="store_true", help="Let the peer decode whole photos.")
    parser.add_argument("--worker", choices=["ours", "fused", "full"], help="One run in this process, as JSON.")
    options = parser.parse_args()
    if options.worker:
        folder = str(options.images)
        batches = (
            our_batches(folder, options)
            if options.worker == "ours"
            else peer_batches(folder, options, fused=options.worker == "fused")
        )
        print(json.dumps(time_batches(batches, options.batch_size, options.batches)), flush=True)
        os._exit(0)  # the threads of an endless iterator end with the process
    compare.require(FUSED, "tensorflow", "tensorflow-cpu")
    if not options.quick and options.images is None:
        parser.error("the folder of images is needed; --quick does without.")
    with tempfile.TemporaryDirectory() as folder:
        images, records = options.images, Path(folder) / "records"
        records.mkdir()
        if options.quick:
            images, options.rounds, options.batches = Path(folder), 1, 3
            compare.draw_photos(images)
        write_records(images, records, options.copies)
        shared = [
            records, "--image_size", options.image_size, "--threads", options.threads,
            "--batch_size", options.batch_size, "--batches", options.batches,
        ]  # fmt: skip
        peer = FULL if options.full_decode else FUSED
        sides = {OURS: "ours", peer: "full" if options.full_decode else "fused"}
        contenders = [
            compare.Contender(name, lambda _, side=side: compare.worker("loader", *shared, "--worker", side))
            for name, side in sides.items()
        ]
        outputs = compare.alternate(contenders, options)
    what = f"{options.image_size} px, {options.threads} threads"
    rows = [compare.compare(what, metric, OURS, peer, outputs) for metric in ("images_per_sec", "cpu_ms_per_image")]
    compare.report_ratios("loader-full" if options.full_decode else "loader", rows, options)


if __name__ == "__main__":
    compare.main(main)
