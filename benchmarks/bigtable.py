"""Training images per second from a Bigtable table, compared with the same records on the local disk.

The table is on a server that uses cores of the same machine: the tests' stand-in, in Python, or Google's emulator. So
the ratio shows the cost of the client, not the speed of a real instance. To measure the latter, run `resnet-tpu profile
input --bigtable_instance=...` on the machine that trains.

    python -m benchmarks.bigtable PHOTOS
    python -m benchmarks.bigtable PHOTOS --emulator=cbtemulator
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks import script
from resnet_tpu.data.prepare.bigtable_writer import write_table
from resnet_tpu.data.sources.bigtable_rows import EMULATOR
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench.input import run_alone
from resnet_tpu.performance.bench.photos import write_photos
from resnet_tpu.performance.bench.task import Task
from resnet_tpu.system.machine import num_cores

DISK, TABLE = "local disk", "Bigtable"
STAND_IN = script.CHECKOUT / "tests" / "data" / "sources" / "bigtable_server.py"
_SECONDS_TO_START = 30


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("bigtable", __doc__, rounds=5)
    parser.add_argument("photos", nargs="?", default="", help="Folder of JPEGs or of training records. Default: drawn.")
    parser.add_argument("--emulator", default="", help="Program of Google's emulator. Default: the tests' stand-in.")
    parser.add_argument("--num_images", type=int, default=1000, help="Images in the table. Default: %(default)s.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.num_images = 1, 32
    with tempfile.TemporaryDirectory() as folder, _serving(options.emulator):
        records = Path(folder) / "records"
        write_photos(options.photos, records, options.num_images)
        task = Task(
            records=str(records), num_images=options.num_images, image_size=224, resize_method="bicubic",
            num_parallel_calls=num_cores(), batch_size=8 if options.quick else 100,
            seconds=0.2 if options.quick else 5.0, options={},
        )  # fmt: skip
        stored = replace(task, records="", options=_table("photos"))
        quiet = Console(quiet=True)
        write_table(task.records, replace(stored, options=_table("first")).data(), console=quiet)  # loads the client
        start = time.perf_counter()
        write_table(task.records, stored.data(), console=quiet)
        writing = options.num_images / (time.perf_counter() - start)
        tasks = {DISK: task, TABLE: stored}
        commands = {name: run_alone("ours", one) for name, one in tasks.items()}
        outputs = script.alternate(commands, options)
    rows = [
        script.compared(f"{options.num_images} photos, 224 px", metric, TABLE, DISK, outputs)
        for metric in ("images_per_sec", "cpu_ms_per_image")
    ]
    print(f"Written to the table: {writing:,.0f} images/s.")
    script.report_ratios("bigtable", rows, options)


def _table(name: str) -> dict[str, str]:
    return {"bigtable_instance": "instance", "bigtable_project": "project", "bigtable_table": name}


@contextmanager
def _serving(emulator: str) -> Iterator[None]:
    """A server in a separate process, which Google's client uses within the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [emulator, "-host=127.0.0.1", f"-port={port}"] if emulator else [sys.executable, str(STAND_IN), str(port)]
    # in its own process group, so that its CPU time does not count as that of the input
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            _wait_for(port, server)
            os.environ[EMULATOR] = f"127.0.0.1:{port}"
            yield
        finally:
            server.kill()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _SECONDS_TO_START
    while server.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise UserError("Server of Bigtable", "none that answers", "it to start", "Check --emulator.")


if __name__ == "__main__":
    script.main(main)
