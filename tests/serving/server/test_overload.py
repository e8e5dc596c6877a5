"""Ten times as many clients as a server's limits allow: each gets a right answer or is told to come back."""

import base64
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.serving.server.conftest import StartServer

PREDICT = "/v1/models/flowers:predict"
BOUNDS = [
    "--max_queue=8", "--max_images_per_request=4", "--max_connections=20", "--max_batch_size=4",
    "--request_timeout=120",  # for a machine that is busy with other tests
]  # fmt: skip
IMAGES_A_REQUEST = 4
CLIENTS = 10 * 20
GROWTH_MB = 100

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def ask(client: httpx.Client, images: list[bytes], first: int) -> httpx.Response:
    """Asks about four of the images over a new connection."""
    chosen = [images[(first + k) % len(images)] for k in range(IMAGES_A_REQUEST)]
    body = json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in chosen]})
    return client.post(PREDICT, content=body)


def check_answer(answer: httpx.Response, expected: np.ndarray, first: int) -> None:
    """Checks for the probabilities that `predict` gives these images, or for a time to come back."""
    if answer.status_code == 200:
        found = [row["probabilities"] for row in answer.json()["predictions"]]
        places = [(first + k) % len(expected) for k in range(IMAGES_A_REQUEST)]
        np.testing.assert_allclose(found, expected[places], rtol=0, atol=1e-6)
    else:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]


def check_overload(
    export_dir: Path, start_server: "StartServer", images: list[bytes], expected: np.ndarray, requests: int
) -> None:
    alone = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    with (
        start_server(export_dir, *BOUNDS) as server,
        httpx.Client(base_url=server.url, timeout=240, limits=alone) as http,
    ):
        check_answer(ask(http, images, 0), expected, 0)
        before, ready = server.memory_mb(), threading.Barrier(CLIENTS)

        def client(number: int) -> Counter[int]:
            ready.wait()
            statuses: Counter[int] = Counter()
            for k in range(requests):
                first = number + 3 * k
                answer = ask(http, images, first)
                check_answer(answer, expected, first)
                statuses[answer.status_code] += 1
            return statuses

        with ThreadPoolExecutor(CLIENTS) as pool:
            statuses = sum(pool.map(client, range(CLIENTS)), Counter[int]())
        print(dict(statuses))
        assert statuses.total() == CLIENTS * requests
        assert min(statuses[200], statuses[503]) > 0
        assert server.memory_mb("VmHWM") < before + GROWTH_MB
        for first in range(len(images)):
            answer = ask(http, images, first)
            assert answer.status_code == 200
            check_answer(answer, expected, first)
        assert "Traceback" not in server.log.read_text()
        assert server.stop() == 0


@pytest.mark.long
def test_200_clients_where_20_are_allowed(
    export_dir: Path, start_server: "StartServer", images: list[bytes], expected: np.ndarray
) -> None:
    check_overload(export_dir, start_server, images, expected, requests=1)


@pytest.mark.slow
def test_200_clients_that_come_again_20_times(
    export_dir: Path, start_server: "StartServer", images: list[bytes], expected: np.ndarray
) -> None:
    check_overload(export_dir, start_server, images, expected, requests=20)
