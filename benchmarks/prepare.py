"""Photos per second from class folders to TFRecords, compared with the original's method, written in TensorFlow.

The original's converter reads each file, decodes it with `tf.io.decode_jpeg` to check that it is an image, and writes a
`tf.train.Example` with nine features through a `TFRecordWriter`, in one process. Ours makes the same records, and also
repairs files, honours EXIF, finds duplicates, writes checksums and a manifest, and moves files into place only when
they are complete. Both write the same number of shards. All photos are read once beforehand, so that they come from
memory. Imports are not measured, but the start of our worker processes is. Give a folder that contains only JPEGs.

    python -m benchmarks.prepare flower_photos --copies 5     # a second of work is too short for several processes
    python -m benchmarks.prepare flower_photos --workers 1 2 4 --work_dir=/mnt/fast_disk
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.photos import draw_photos

OURS, PEER = "resnet_tpu", "TensorFlow, 1 process"
SUFFIXES = (".jpg", ".jpeg")
SPLITS = (("train", 0.8), ("validation", 0.1), ("test", 0.1))


def prepare_ours(photos: Path, out: Path, *, workers: int, train_shards: int) -> float:
    """Prepares `photos` with resnet_tpu. Returns seconds."""
    from rich.console import Console

    from resnet_tpu.data.prepare.options import PrepareOptions
    from resnet_tpu.data.prepare.prepare import prepare

    options = PrepareOptions(workers=workers, train_shards=train_shards, validation_shards=1, test_shards=1)
    start = time.perf_counter()
    prepare(str(photos), str(out), options, console=Console(quiet=True))
    return time.perf_counter() - start


def prepare_peer(photos: Path, out: Path, *, train_shards: int) -> float:
    """Converts `photos` as the original does. Returns seconds."""
    import tensorflow as tf

    tf.io.decode_jpeg(tf.io.encode_jpeg(tf.zeros((8, 8, 3), tf.uint8)))  # initialises the runtime
    start = time.perf_counter()
    class_names = sorted(path.name for path in photos.iterdir() if path.is_dir())
    files: dict[str, list[tuple[Path, int]]] = {split: [] for split, _ in SPLITS}
    for label, name in enumerate(class_names, 1):
        own = sorted(path for path in (photos / name).iterdir() if path.suffix.lower() in SUFFIXES)
        random.Random(0).shuffle(own)
        first = 0
        for split, share in SPLITS:
            last = len(own) if split == "test" else first + int(share * len(own))
            files[split] += [(path, label) for path in own[first:last]]
            first = last
    random.Random(0).shuffle(files["train"])
    for split, members in files.items():
        num_shards = train_shards if split == "train" else 1
        size = -(-len(members) // num_shards)
        for shard in range(num_shards):
            path = out / f"{split}-{shard:05d}-of-{num_shards:05d}"
            _write_shard(path, members[shard * size : (shard + 1) * size], class_names)
    return time.perf_counter() - start


def _write_shard(path: Path, members: list[tuple[Path, int]], class_names: list[str]) -> None:
    import tensorflow as tf

    def integer(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def text(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for file, label in members:
            encoded = file.read_bytes()
            height, width, channels = tf.io.decode_jpeg(encoded, channels=3).shape
            features = {
                "image/height": integer(height),
                "image/width": integer(width),
                "image/colorspace": text(b"RGB"),
                "image/channels": integer(channels),
                "image/class/label": integer(label),
                "image/class/synset": text(class_names[label - 1].encode()),
                "image/format": text(b"JPEG"),
                "image/filename": text(file.name.encode()),
                "image/encoded": text(encoded),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("prepare", __doc__, rounds=5)
    parser.add_argument(
        "photos", nargs="?", type=Path, help="Folder with a folder of JPEGs per class. Not for --quick."
    )
    parser.add_argument(
        "--copies", type=int, default=1,
        help="Measure on so many copies of every photo, told apart by a comment in the file. Default: %(default)s.",
    )  # fmt: skip
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], help="Our processes. Default: 1 2.")
    parser.add_argument("--train_shards", type=int, default=8, help="Files of training records. Default: %(default)s.")
    parser.add_argument("--work_dir", type=Path, help="Where to write. Default: the system's folder for such files.")
    parser.add_argument("--worker", choices=["ours", "peer"], help="One run in this process, as JSON.")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_run(options)))
        return
    compare.require(PEER, "tensorflow", "tensorflow-cpu")
    if not options.quick and options.photos is None:
        parser.error("the folder of photos is needed; --quick does without.")
    with tempfile.TemporaryDirectory(dir=options.work_dir) as folder:
        photos = Path(folder)
        if options.quick:
            options.rounds = 1
            draw_photos(photos, 60)
        elif options.copies > 1:
            _copy_photos(options.photos, photos, options.copies)
        else:
            photos = options.photos
        _compare(photos, options)


def _run(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=options.work_dir) as folder:
        out = Path(folder) / "out"
        out.mkdir()
        if options.worker == "ours":
            workers = options.workers[0]
            seconds = prepare_ours(options.photos, out, workers=workers, train_shards=options.train_shards)
        else:
            seconds = prepare_peer(options.photos, out, train_shards=options.train_shards)
    return {"images_per_sec": len(_jpegs(options.photos)) / seconds}


def _compare(photos: Path, options: argparse.Namespace) -> None:
    files = _jpegs(photos)
    if not files:
        raise UserError(
            "Photos", f"no {' or '.join(SUFFIXES)} files in {photos}", "a folder of them per class", "Check."
        )
    num_bytes = sum(len(file.read_bytes()) for file in files)
    common = [photos, "--train_shards", options.train_shards]
    if options.work_dir:
        common += ["--work_dir", options.work_dir]
    peer = script.worker("prepare", "--worker", "peer", *common)
    commands = {PEER: peer}
    names = {f"{OURS}, {count} process{'es' if count > 1 else ''}": count for count in options.workers}
    for name, count in names.items():
        commands[name] = script.worker("prepare", "--worker", "ours", *common, "--workers", count)
    outputs = script.alternate(commands, options)
    what = f"{len(files)} photos of {num_bytes / len(files) / 1000:.0f} kB"
    rows = [script.compared(f"{what}, {name}", "images_per_sec", name, PEER, outputs) for name in names]
    script.report_ratios("prepare", rows, options)


def _jpegs(photos: Path) -> list[Path]:
    return [path for path in sorted(photos.glob("*/*")) if path.suffix.lower() in SUFFIXES]


def _copy_photos(photos: Path, folder: Path, copies: int) -> None:
    for file in _jpegs(photos):
        encoded = file.read_bytes()
        into = folder / file.parent.name
        into.mkdir(exist_ok=True)
        for number in range(copies):
            comment = b"\xff\xfe\x00\x06" + number.to_bytes(4, "big")  # a JPEG segment: marker, length, content
            (into / f"{file.stem}_{number}.jpg").write_bytes(encoded[:2] + comment + encoded[2:])


if __name__ == "__main__":
    script.main(main)
