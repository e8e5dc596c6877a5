"""Measures the speed of a server: for one photo at a time, and for many clients at once."""

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from resnet_tpu.performance.bench import child, load, server
from resnet_tpu.performance.bench.load import KINDS, Load
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import default_form, load_classifier
from resnet_tpu.serving.server import images
from resnet_tpu.serving.server.options import ServeOptions

_PAIRS_PER_SECOND = 4
_WARM_UP_PAIRS = 3
_PAUSE = 0.1  # seconds, in which the runtime's idle threads stop spinning


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a server: for one photo at a time, and for each way of sending and number of clients.

    task: `bundle`, a path; `photos`, paths of JPEGs; `clients`, their numbers; `seconds` for each.
    """
    figures: dict[str, Any] = {}
    with server.running([task["bundle"]]) as served:
        first = Load(served.url, served.model, "multipart", task["photos"], 1, task["seconds"], task["seconds"] / 5)
        figures |= _measure_overhead(task["bundle"], first)
        for kind in KINDS:
            for clients in task["clients"]:
                changes = {"kind": kind, "clients": clients, "warm_up": max(task["seconds"] / 5, _PAUSE)}
                asked = json.dumps(asdict(first) | changes)
                begin = served.cpu_secs()
                found = child.run("the clients", child.command_of(load.__name__, asked))
                found["server_cpu_ms_per_image"] = 1000 * (served.cpu_secs() - begin) / found["requests"]
                figures |= {f"{kind}_{clients}_{name}": value for name, value in found.items()}
    return figures


def _measure_overhead(path: str, asked: Load) -> dict[str, float]:
    """Medians in ms: a photo over HTTP; decoding and the network in this process; the server's overhead over these.

    The three are measured in turn for each photo, so that a machine that becomes slower affects all of them.
    """
    bundle = open_bundle(path)
    classify = load_classifier(bundle, default_form(bundle))
    max_pixels = ServeOptions().max_pixels
    rows: list[tuple[float, float, float]] = []
    with socket.create_connection(asked.address) as connection:
        for number in range(_WARM_UP_PAIRS + max(2, round(_PAIRS_PER_SECOND * asked.seconds))):
            photo = Path(asked.photos[number % len(asked.photos)])
            request, encoded = load.multipart_request(asked, photo), photo.read_bytes()
            time.sleep(_PAUSE)
            begin = time.perf_counter()
            load.ask(connection, request)
            http = time.perf_counter() - begin
            time.sleep(_PAUSE)
            begin = time.perf_counter()
            image = images.network_input(encoded, bundle.config.data, max_pixels)
            decoded = time.perf_counter()
            classify(image[None])
            rows.append((http, decoded - begin, time.perf_counter() - decoded))
    http, decode, run = 1000 * np.array(rows[_WARM_UP_PAIRS:]).T
    medians = {"http_ms": http, "decode_ms": decode, "run_ms": run, "overhead_ms": http - decode - run}
    return {name: float(np.median(values)) for name, values in medians.items()}


if __name__ == "__main__":
    child.print_figures(lambda task: measure(json.loads(task)))
