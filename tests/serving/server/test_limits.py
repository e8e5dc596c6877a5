"""Excessive requests are refused, and the server keeps running."""

import base64
import concurrent.futures
import io
import json
import re
import resource
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from PIL import Image

if TYPE_CHECKING:
    from tests.serving.server.conftest import Server, StartServer

PREDICT, CLASSIFY = "/v1/models/flowers:predict", "/v1/models/flowers:classify"
BODY = 60_000


@pytest.fixture(scope="module")
def server(export_dir: object, start_server: "StartServer") -> Iterator["Server"]:
    """A server with low limits, whose log is quiet whatever the tests do."""
    limits = [
        f"--max_body_mb={BODY / 1e6}", "--max_pending_mb=0.2", "--max_image_megapixels=2", "--max_images_per_request=2",
        "--max_queue=2", "--max_connections=20", "--request_timeout=3",
    ]  # fmt: skip
    with start_server(export_dir, *limits) as server:
        yield server
        example = f"Open that, or: curl -F images=@photo.jpg {server.url}/v1/models/flowers:classify"
        said = server.log.read_text().splitlines()
        assert said[1:] == [f"Serving at {server.url}", example]


def png(width: int, height: int) -> bytes:
    """An image of one colour: few bytes, many pixels."""
    buffer = io.BytesIO()
    Image.new("L", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


def instances(*images: bytes) -> bytes:
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}).encode()


def count(client: httpx.Client, name: str) -> float:
    """The sum of the counters whose lines match."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.match(name, line))


def test_a_body_that_is_too_large_is_refused_whether_announced_or_not(client: httpx.Client) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="a.jpg"\r\n\r\n'
    kind = {"content-type": "multipart/form-data; boundary=x"}
    for path, body in ((PREDICT, instances(b"x" * BODY)), (CLASSIFY, part + b"x" * BODY)):
        for content in (body, iter([body[:1000], body[1000:]])):
            answer = client.post(path, content=content, headers=kind)
            assert answer.status_code == 413
            assert f"expected at most {BODY}" in answer.json()["error"]


def test_an_announced_body_is_refused_before_it_is_sent(server: "Server") -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100000000000\r\n\r\n"
    assert server.ask(head.encode()).startswith(b"HTTP/1.1 413 ")


def test_too_many_images(client: httpx.Client, images: list[bytes]) -> None:
    assert client.post(PREDICT, content=instances(*images[:2])).status_code == 200
    assert client.post(PREDICT, content=instances(*images[:3])).status_code == 400
    files = [("images", image) for image in images[:3]]
    assert client.post(CLASSIFY, files=files[:2]).status_code == 200
    assert client.post(CLASSIFY, files=files).status_code == 400


def test_decompression_bombs_are_not_decoded(client: httpx.Client) -> None:
    small = png(1000, 100)
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    huge = small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    for bomb in (png(2001, 1000), huge):
        answer = client.post(PREDICT, content=instances(small, bomb))
        assert answer.status_code == 413
        assert "Image 1: got " in answer.json()["error"]
        assert "expected at most 2000000" in answer.json()["error"]
    assert client.post(PREDICT, content=instances(png(2000, 1000))).status_code == 200


def test_a_jpeg_of_many_scans_is_not_decoded(client: httpx.Client) -> None:
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "JPEG")
    scans = buffer.getvalue()[:-2] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" * 300 + b"\xff\xd9"
    answer = client.post(PREDICT, content=instances(scans))
    assert (answer.status_code, "scans" in answer.json()["error"]) == (413, True)


def test_the_queue_is_bounded_and_everyone_is_answered(server: "Server", images: list[bytes]) -> None:
    content = instances(png(2000, 1000), images[0])

    def post(_: int) -> httpx.Response:
        return httpx.post(server.url + PREDICT, content=content, timeout=60)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(post, range(36)))
    codes = {answer.status_code for answer in answers}
    assert {200, 503} <= codes <= {200, 503, 504}  # 504 where other programs keep the cores busy for seconds
    refused = [answer for answer in answers if answer.status_code == 503]
    assert all(answer.headers["retry-after"] == "1" and "Queue" in answer.json()["error"] for answer in refused)
    assert post(0).status_code == 200


@pytest.mark.long
def test_the_bytes_of_all_requests_are_bounded(server: "Server") -> None:
    body = b" " * (BODY - 1)
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: server.ask(head, body[:-1]), range(5)))  # the last byte is never sent
    codes = sorted(answer.split()[1] for answer in answers)
    assert codes == [b"408", b"408", b"408", b"503", b"503"]


@pytest.mark.long
def test_what_does_not_come_to_an_end_is_closed(server: "Server") -> None:
    chunked = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n".encode()
    silent, half, slow = b"", b"GET / HTTP/1.1\r\nHos", chunked
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda part: server.ask(part), (silent, half, slow)))
    assert answers[:2] == [b"", b""]
    assert answers[2].startswith(b"HTTP/1.1 408 ")


def test_connections_are_bounded(server: "Server", client: httpx.Client) -> None:
    too_many = 'resnet_tpu_requests_total{code="503",route="none"}'
    before = count(client, too_many)
    idle = [server.connect() for _ in range(25)]
    answers = [connection.recv(1000) for connection in idle[20:]]
    for connection in idle:
        connection.close()
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"retry-after" in answer for answer in answers)
    wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    assert count(client, too_many) >= before + 5


def test_a_busy_server_still_says_that_it_is_alive(server: "Server", client: httpx.Client, images: list[bytes]) -> None:
    def asks(method: str, path: str) -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

    wait_until(lambda: count(client, "resnet_tpu_connections") == 1)  # those of earlier tests have ended
    client.close()
    idle = [server.connect() for _ in range(20)]
    for connection in idle:
        connection.sendall(asks("GET", "/health"))  # without any request it would be closed after a few seconds
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    welcome = [("GET", "/health/live"), ("HEAD", "/health/ready"), ("GET", "/health"), ("GET", "/metrics")]
    for method, path in welcome * 10:  # more than there are connections: each is closed after its answer
        said = server.ask(asks(method, path))
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in said
    sending = asks("GET", "/health").replace(b"Host", b"Content-Length: 100\r\nHost")
    assert server.ask(sending).startswith(b"HTTP/1.1 200 ")  # closed although no body follows
    assert server.ask(asks("GET", "/health/live") * 2).count(b"HTTP/1.1") == 1
    post = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode()
    half = asks("GET", "/health")[:15]
    for refused in (asks("GET", "/v1/models"), post, half, b"\0", b""):
        assert server.ask(refused).startswith(b"HTTP/1.1 503 ")
    answer = httpx.post(server.url + PREDICT, content=instances(images[0]))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "got one connection too many, expected at most 20" in answer.json()["error"]
    for connection in idle:
        connection.close()
    wait_until(lambda: httpx.post(server.url + PREDICT, content=instances(images[0])).status_code == 200)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is set")
def test_more_connections_than_files_that_it_may_open_wait_and_are_logged_once(
    export_dir: object, start_server: "StartServer"
) -> None:
    with start_server(export_dir) as server:
        most = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) + 5
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
        idle = [server.connect() for _ in range(20)]
        server.wait_for("New connections wait, as none can be accepted: Too many open files. Raise the limit")
        time.sleep(1.5)  # the event loop tries again every second
        for connection in idle:
            connection.close()
        wait_until(lambda: httpx.get(f"{server.url}/health", timeout=30).status_code == 200)
        log = server.log.read_text()
        assert log.count("New connections wait") == 1
        assert "Traceback" not in log


def test_what_is_refused_before_there_is_a_route_is_counted(server: "Server", client: httpx.Client) -> None:
    malformed = 'resnet_tpu_requests_total{code="400",route="none"}'
    before = count(client, malformed)
    assert server.ask(b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")  # without Host
    assert count(client, malformed) == before + 1


def test_the_work_for_a_client_that_is_gone_is_dropped(client: httpx.Client, server: "Server") -> None:
    body = instances(png(2000, 1000), png(2000, 1000))
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    pattern = r'resnet_tpu_requests_total.*code="499"'
    before = count(client, pattern)
    for parts in ((head, body), (head, body[:100])):
        with server.connect() as connection:
            for part in parts:
                connection.sendall(part)
    wait_until(lambda: count(client, pattern) == before + 2)
    wait_until(lambda: count(client, "resnet_tpu_queue_images") == 0)
    assert count(client, r'resnet_tpu_requests_total.*code="5\d\d"') == count(client, r'.*_total.*code="503"')


def wait_until(is_so: Callable[[], object]) -> None:
    """Waits until this is true."""
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError
