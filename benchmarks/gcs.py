"""Training images per second from records in a bucket, compared with the same records on the local disk.

The bucket is on the tests' server, in Python, which uses cores of the same machine. So the ratio shows the cost of the
client, not the speed of Google Cloud Storage. To measure the latter, run `resnet-tpu profile input
--data_dir=gs://...` on the machine that trains. `--slow_secs` delays every reply, as the distance to a real bucket
does.

    python -m benchmarks.gcs PHOTOS
    python -m benchmarks.gcs PHOTOS --slow_secs=0.05
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import script
from resnet_tpu import storage
from resnet_tpu.data.records.tfrecord import RecordWriter, read_records
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.tfrecords import RemoteRecordSource
from resnet_tpu.performance.bench.input import run_alone
from resnet_tpu.performance.bench.photos import write_photos
from resnet_tpu.performance.bench.task import Task
from resnet_tpu.system.machine import num_cores

DISK, KEPT, PIECES, DIRECT = "local disk", "gs://, kept here", "gs://, by pieces", "gs://, one by one"
SERVER = script.CHECKOUT / "tests" / "storage" / "gcs" / "server.py"


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("gcs", __doc__, rounds=5)
    parser.add_argument("photos", nargs="?", default="", help="Folder of JPEGs or of training records. Default: drawn.")
    parser.add_argument("--num_images", type=int, default=1000, help="Images in the bucket. Default: %(default)s.")
    parser.add_argument("--slow_secs", type=float, default=0.0, help="Delay of every reply. Default: none.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.num_images = 1, 32
    with tempfile.TemporaryDirectory() as folder, serving() as endpoint:
        records = Path(folder) / "records"
        write_photos(options.photos, records, options.num_images)
        place = copy_records(records)
        ask(endpoint, "/_control", {"slow": 1.0 if options.slow_secs else 0.0, "slow_secs": options.slow_secs})
        task = Task(
            records=str(records), num_images=options.num_images, image_size=224, resize_method="bicubic",
            num_parallel_calls=num_cores(), batch_size=8 if options.quick else 100,
            seconds=0.2 if options.quick else 5.0, options={},
        )  # fmt: skip
        kept = replace(task, records=place, options={"cache_folder": f"{folder}/kept"})
        anew = {order: {"cache_folder": "none", "data_order": order} for order in ("pieces", "records")}
        tasks = {
            DISK: task, KEPT: kept, PIECES: replace(kept, options=anew["pieces"]),
            DIRECT: replace(kept, options=anew["records"]),
        }  # fmt: skip
        for name in (KEPT, DIRECT):
            _say_requests(name, tasks[name], endpoint)
        commands = {name: run_alone("ours", one) for name, one in tasks.items()}
        outputs = script.alternate(commands, options)
    rows = [
        script.compared(f"{name}: {options.num_images} photos", metric, name, DISK, outputs)
        for name in (KEPT, PIECES, DIRECT)
        for metric in ("images_per_sec", "cpu_ms_per_image")
    ]
    script.report_ratios("gcs", rows, options)


def copy_records(records: Path) -> str:
    """Copies the records and their indexes to the bucket."""
    place = "gs://bucket/records"
    for path in records.glob("*-of-*"):
        with RecordWriter(f"{place}/{path.name}") as writer:
            for payload in read_records(str(path)):
                writer.write(payload)
    for path in records.glob("*.*"):
        storage.write_text(f"{place}/{path.name}", path.read_text())
    return place


def _say_requests(name: str, task: Task, endpoint: str) -> None:
    """Prints what the first epoch requests, in groups because training reads ahead."""
    source = open_source(task.data(), "train")
    assert isinstance(source, RemoteRecordSource)
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    before = ask(endpoint, "/_stats")
    for k in range(0, len(order), 64):
        source.fetch(order[k : k + 64])
    after = ask(endpoint, "/_stats")
    requests = sum(after["requests"].values()) - sum(before["requests"].values())
    num_bytes = (after["bytes"] - before["bytes"]) / len(source)
    print(f"{name}: {requests / len(source):.3f} requests and {num_bytes / 1000:.0f} kB per image of the first epoch.")


def ask(endpoint: str, path: str, body: dict[str, float] | None = None) -> Any:
    """Sends a control request to the test server and returns its reply."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(endpoint + path, data=data)) as reply:
        return json.load(reply)


@contextmanager
def serving() -> Iterator[str]:
    """A server in a separate process, which gs:// paths refer to within the block."""
    # in its own process group, so that its CPU time does not count as that of the input
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            assert server.stdout is not None
            os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{int(server.stdout.readline())}"
            yield os.environ["STORAGE_EMULATOR_HOST"]
        finally:
            server.kill()


if __name__ == "__main__":
    script.main(main)
