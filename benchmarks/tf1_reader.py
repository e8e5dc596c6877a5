"""Reading and writing a TensorFlow 1 checkpoint, compared with TensorFlow's own code.

The checkpoint is like one from the original's training: ResNet-50 at full width with its Momentum slots, 205 MB of
random numbers, written by TensorFlow. Read: both read all variables as NumPy arrays and verify each checksum; the peer
is `tf.train.load_checkpoint(...).get_tensor`, which copies, while our arrays are memory-mapped. One figure is the first
read of a process, the other the median of later reads, with its CPU time. Write: both write all variables from memory,
TensorFlow with its `SaveV2` operation. Ours also waits until the files are on disk (fsync) and only then gives them
their names; the peer does neither. Imports are not measured, and the file is in the system's cache. Every round checks
that both read the same bits.

    python -m benchmarks.tf1_reader
    python -m benchmarks.tf1_reader --work_dir=/dev/shm      # without the disk
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import compare

OURS, PEER = "resnet_tpu", "TensorFlow"

Reader = Callable[[str], dict[str, np.ndarray]]


def make_variables(width: int) -> dict[str, np.ndarray]:
    """Random variables of a ResNet-50 training run, under the original's names."""
    from resnet_tpu.checkpoints.tf1_names import tf_names
    from resnet_tpu.models.arrays import leaf_at
    from resnet_tpu.models.from_options import create_network
    from resnet_tpu.options.config import Config

    config = Config().replace(resnet_depth=50, resnet_width=width)
    network = create_network(config.model, num_classes=1000, image_size=224)
    params, batch_stats = network.shapes()
    trees = {"params": params, "batch_stats": batch_stats}
    rng = np.random.default_rng(0)
    variables: dict[str, np.ndarray] = {"global_step": np.array(112590, np.int64)}
    for name, place in tf_names(network).items():
        for copy in (name, f"{name}/Momentum") if place[0] == "params" else (name,):
            variables[copy] = rng.standard_normal(leaf_at(trees, place).shape, np.float32)
    return variables


def make_reader_ours() -> Reader:
    """A function that reads all variables at a prefix with resnet_tpu."""
    from resnet_tpu.checkpoints.tf1_bundle import read_bundle

    return read_bundle


def make_reader_peer() -> Reader:
    """A function that reads all variables at a prefix with TensorFlow."""
    import tensorflow as tf

    def read(prefix: str) -> dict[str, np.ndarray]:
        reader = tf.train.load_checkpoint(prefix)
        return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}

    return read


def make_writer_ours(variables: Mapping[str, np.ndarray]) -> Callable[[str], None]:
    """A function that writes `variables` at a prefix with resnet_tpu."""
    from resnet_tpu.checkpoints.tf1_bundle import write_bundle

    return lambda prefix: write_bundle(prefix, variables)


def make_writer_peer(variables: Mapping[str, np.ndarray]) -> Callable[[str], None]:
    """A function that writes `variables` at a prefix with TensorFlow."""
    import tensorflow as tf

    names, tensors = list(variables), [tf.constant(array) for array in variables.values()]
    slices = [""] * len(names)
    return lambda prefix: tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors)


def measure_read(read: Reader, prefix: str, repeats: int) -> dict[str, Any]:
    """MB per second of the first read and of the median of later ones, their CPU time, and a checksum of all."""
    seconds, cpu_seconds = [], []
    variables: dict[str, np.ndarray] = {}
    for _ in range(1 + repeats):
        variables = {}  # frees the memory of the previous read
        start, cpu_start = time.perf_counter(), time.process_time()
        variables = read(prefix)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    crc = 0
    for name, array in sorted(variables.items()):
        crc = google_crc32c.extend(google_crc32c.extend(crc, name.encode()), np.asarray(array).tobytes())
    megabytes = sum(array.nbytes for array in map(np.asarray, variables.values())) / 1e6
    return {
        "first_mb_per_sec": megabytes / seconds[0],
        "mb_per_sec": megabytes / statistics.median(seconds[1:]),
        "cpu_ms": statistics.median(cpu_seconds[1:]) * 1000,
        "crc": crc,
    }


def measure_write(write: Callable[[str], None], prefix: str, repeats: int) -> dict[str, Any]:
    """MB per second and CPU time of the median write after the first."""
    speeds, cpu_seconds = [], []
    for number in range(1 + repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        write(f"{prefix}-{number}")
        seconds = time.perf_counter() - start
        cpu_seconds.append(time.process_time() - cpu_start)
        written = list(Path(prefix).parent.glob(f"{Path(prefix).name}-{number}.*"))
        speeds.append(sum(file.stat().st_size for file in written) / 1e6 / seconds)
        for file in written:
            file.unlink()
    return {"mb_per_sec": statistics.median(speeds[1:]), "cpu_ms": statistics.median(cpu_seconds[1:]) * 1000}


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("tf1_reader", __doc__, rounds=9)
    parser.add_argument("--repeats", type=int, default=5, help="In a process, after the first. Default: %(default)s.")
    parser.add_argument("--width", type=int, default=64, help="Of the ResNet-50. Default: %(default)s.")
    parser.add_argument("--work_dir", type=Path, help="Where to write. Default: the system's folder for such files.")
    parser.add_argument("--prefix", help="Of the checkpoint, for --worker.")
    parser.add_argument("--worker", nargs=2, metavar=("DO", "WHO"), help="One run in this process, as JSON.")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_work(options)))
        return
    compare.require(PEER, "tensorflow", "tensorflow-cpu")
    if options.quick:
        options.rounds, options.repeats, options.width = 1, 1, 8
    rows = []
    with tempfile.TemporaryDirectory(dir=options.work_dir) as folder:
        options.prefix = str(Path(folder) / "model.ckpt-112590")
        once = argparse.Namespace(**vars(options) | {"rounds": 1})
        script.alternate(_commands("make", ["peer"], options), once)
        for do in ("read", "write"):
            outputs = script.alternate(_commands(do, ["ours", "peer"], options), options)
            if do == "read" and len({run["crc"] for runs in outputs.values() for run in runs}) != 1:
                raise UserError("Variables read", "different bits", "the same", "One of the two programs is wrong.")
            what = f"{do} ResNet-50 with Momentum slots"
            metrics = ("first_mb_per_sec", "mb_per_sec", "cpu_ms") if do == "read" else ("mb_per_sec", "cpu_ms")
            rows += [script.compared(what, metric, OURS, PEER, outputs) for metric in metrics]
    script.report_ratios("tf1_reader", rows, options)


def _commands(do: str, programs: Sequence[str], options: argparse.Namespace) -> dict[str, list[str]]:
    shared = ("--prefix", options.prefix, "--width", options.width, "--repeats", options.repeats)
    titles = {"ours": OURS, "peer": PEER}
    return {titles[who]: script.worker("tf1_reader", "--worker", do, who, *shared) for who in programs}


def _work(options: argparse.Namespace) -> dict[str, Any]:
    do, who = options.worker
    if do == "read":
        read = make_reader_ours() if who == "ours" else make_reader_peer()
        return measure_read(read, options.prefix, options.repeats)
    variables = make_variables(options.width)
    write = (make_writer_ours if who == "ours" else make_writer_peer)(variables)
    if do == "make":
        write(options.prefix)
        return {"variables": len(variables)}
    return measure_write(write, f"{options.prefix}-again", options.repeats)


if __name__ == "__main__":
    script.main(main)
