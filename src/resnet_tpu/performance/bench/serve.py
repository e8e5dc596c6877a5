"""Measures a bundle: its runtimes against peers, and over HTTP with increasing numbers of clients."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import numbers_in, option
from resnet_tpu.performance.bench import child, compare, http, record, runtimes
from resnet_tpu.performance.bench.bundle import make_bundle
from resnet_tpu.performance.bench.compare import Outputs
from resnet_tpu.performance.bench.figures import Bar, Grid, show, write_bars
from resnet_tpu.performance.bench.load import KINDS
from resnet_tpu.performance.bench.options import MeasureOptions
from resnet_tpu.performance.bench.photos import draw_photos, write_photos
from resnet_tpu.performance.bench.runtimes import BARE, BATCH_SIZES, OURS, PEERS, RUNTIMES
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.system.machine import num_cores

HTTP = "HTTP"
_CLASSES = 1000
_PHOTOS = 16


@dataclass(frozen=True)
class ServeBenchOptions(MeasureOptions):
    """How `bench serve` measures."""

    clients: str = option("1,8,64", "Numbers of simultaneous clients, separated by commas.")
    peers: str = option("", f"Compare with: {', '.join(PEERS)}; or none. Default: all.")


def bench_serve(where: str, config: Config, options: ServeBenchOptions, command: Sequence[str]) -> None:
    """Measures the bundle at `where`; if empty, the bundle of a network with random weights as `config` describes it.

    command: as typed, for the record. Raises UserError for invalid options, and when one of our programs fails.
    """
    options.check_files()
    clients = _parse_clients(options.clients)
    asked = [*OURS, *compare.requested_peers(options.peers, PEERS)]
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "photos")
        draw_photos(photos, _PHOTOS)
        path = where or _make_bundle(config, Path(folder), photos)
        bundle = open_bundle(path)
        names, notes = runtimes.choose(bundle, asked)
        task = {"bundle": bundle.path, "photos": sorted(map(str, photos.glob("*/*"))), "clients": clients}
        commands = {name: runtimes.run_alone(name, bundle.path, options.seconds) for name in names}
        commands[HTTP] = child.command_of(http.__name__, json.dumps(task | {"seconds": options.seconds}))
        optional = [name for name in names if name not in (*OURS, BARE)]
        outputs = compare.alternate(commands, rounds=options.rounds, optional=optional)
    notes += [f"Left out: {RUNTIMES[name].title}, which failed." for name in names if name not in outputs]
    what = f"{bundle.description['network']}, {bundle.image_size} px, {num_cores()} cores"
    show(_runtime_grid(outputs, what, notes), options.format)
    show(_http_grid(outputs, clients, what), options.format)
    if options.output:
        card = {name: value for name, value in bundle.description.items() if name != "class_names"}
        record.write(options.output, command, {"bundle": card, "runs": outputs})
    if options.picture:
        _draw(options.picture, outputs, clients, what)


def _parse_clients(text: str) -> list[int]:
    clients = numbers_in(text, int)
    if not clients or min(clients) < 1:
        raise UserError("clients", text, "positive numbers separated by commas, such as 1,8,64", "Change the value.")
    return clients


def _make_bundle(config: Config, folder: Path, photos: Path) -> str:
    """A bundle with all forms to measure; `photos` calibrate its int8 form."""
    write_photos(str(photos), folder / "records", _PHOTOS)
    config = config.replace(data_dir=str(folder / "records"), num_train_images=_PHOTOS, export_forms=",".join(OURS))
    return make_bundle(config, folder, numbers_as_names(_CLASSES))


def _reference(outputs: Outputs) -> str:
    """The runtime whose speed counts as 1: the bare ONNX Runtime, or the first one that ran."""
    return BARE if BARE in outputs else next(iter(outputs))


def _runtime_grid(outputs: Outputs, what: str, notes: Sequence[str]) -> Grid:
    reference = _reference(outputs)
    rows = []
    for name, runs in outputs.items():
        if name == HTTP:
            continue
        cells = [f"{compare.median(runs, 'ms_1'):.2f}"]
        cells += [f"{compare.median(runs, f'images_per_sec_{size}'):.1f}" for size in BATCH_SIZES]
        ratios = compare.ratios(outputs, f"images_per_sec_{BATCH_SIZES[-1]}", name, reference)
        cells += [*compare.ratio_cells(ratios), f"{compare.median(runs, f'cpu_ms_{BATCH_SIZES[-1]}'):.1f}"]
        rows.append((RUNTIMES[name].title, *cells))
    batches = [f"1/s at {size}" for size in BATCH_SIZES]
    header = ("runtime", "ms at 1", *batches, f"x {RUNTIMES[reference].title}", "range", "CPU ms")
    notes = [*notes, f"x: at {BATCH_SIZES[-1]} images. CPU ms: per image, at that size."]
    return Grid(f"{what}: images per second in batches of 1, 8 and 32, in one process", header, rows, notes)


def _http_grid(outputs: Outputs, clients: Sequence[int], what: str) -> Grid:
    reference, runs = _reference(outputs), outputs[HTTP]
    alone = [max(run[f"images_per_sec_{size}"] for size in BATCH_SIZES) for run in outputs[reference]]  # by round
    rows = []
    for kind in KINDS:
        for number in clients:
            key = f"{kind}_{number}"
            speed = f"{key}_images_per_sec"
            ratios = [run[speed] / best for run, best in zip(runs, alone, strict=True)]
            names = ("p50_ms", "p90_ms", "p99_ms", "server_cpu_ms_per_image", "client_cpu_ms_per_image")
            cells = [f"{compare.median(runs, f'{key}_{name}'):.2f}" for name in names]
            rows.append(
                (f"{kind}, {number}", f"{compare.median(runs, speed):.1f}", *compare.ratio_cells(ratios), *cells)
            )
    once = {name: compare.median(runs, name) for name in ("http_ms", "decode_ms", "run_ms", "overhead_ms")}
    notes = [
        "One photo at a time: {http_ms:.2f} ms over HTTP, of which decode {decode_ms:.2f} ms, network {run_ms:.2f} ms, "
        "and the server {overhead_ms:.2f} ms.".format(**once),
        "x: of its best batch size, images already decoded.",
    ]
    title = RUNTIMES[reference].title
    header = ("clients", "1/s", f"x {title}", "range", "p50 ms", "p90 ms", "p99 ms", "CPU ms", "clients' CPU ms")
    return Grid(f"{what}: JPEGs of 100 kB per second over HTTP, clients on the same cores", header, rows, notes)


def _draw(path: str, outputs: Outputs, clients: Sequence[int], what: str) -> None:
    bars = []
    for name, runs in outputs.items():
        if name != HTTP:
            value = compare.median(runs, f"images_per_sec_{BATCH_SIZES[-1]}")
            bars.append(Bar(RUNTIMES[name].title, value, f"{value:.1f}", name in OURS))
    value = compare.median(outputs[HTTP], f"multipart_{clients[-1]}_images_per_sec")
    bars.append(Bar(f"resnet-tpu serve, {clients[-1]} clients", value, f"{value:.1f}", True))
    write_bars(path, what, bars, f"images per second, batches of {BATCH_SIZES[-1]}")
