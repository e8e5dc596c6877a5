"""A server under abuse: each bad request gets the right status, memory stays flat, and photos are still answered."""

import asyncio
import base64
import collections
import contextlib
import gzip
import io
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from tests.serving.server.conftest import Server, StartServer

PREDICT, CLASSIFY = "/v1/models/flowers:predict", "/v1/models/flowers:classify"
MB = 1_000_000
GROWTH_MB = 100
"""How much the server's memory may grow in any of these tests: three bodies at their limit of 32 MB."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture(scope="module")
def server(export_dir: Path, start_server: "StartServer") -> Iterator["Server"]:
    """A server with default options, except a shorter timeout for this test."""
    with start_server(export_dir, "--request_timeout=6") as server:
        yield server


@pytest.fixture
def steady(server: "Server", images: list[bytes], expected: np.ndarray) -> Iterator[None]:
    """Checks that the server answers photos before and after the test, its memory stays flat, and its log is clean."""
    answer_photos(server.url, images, expected)
    before = server.memory_mb()
    server.forget_peak()
    yield
    answer_photos(server.url, images, expected)
    assert server.memory_mb("VmHWM") < before + GROWTH_MB
    assert "Traceback" not in server.log.read_text()


def answer_photos(url: str, images: list[bytes], expected: np.ndarray) -> None:
    """Asks about photos and checks the answer."""
    answer = httpx.post(url + PREDICT, content=instances(*images), timeout=60)
    found = [row["probabilities"] for row in answer.json()["predictions"]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def instances(*images: bytes) -> bytes:
    """The body of a request about these images."""
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}).encode()


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    """The image as a file in this format."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A valid PNG of side x side black or white pixels, with a thousandth as many bytes."""
    squeeze = zlib.compressobj(1)
    row = bytes(1 + (side + 7) // 8)
    data = b"".join([*(squeeze.compress(row * 100) for _ in range(side // 100)), squeeze.flush()])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    packed = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def with_jpeg_size(jpeg: bytes, side: int) -> bytes:
    """The JPEG with a header that claims side x side pixels."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", side, side) + jpeg[at + 4 :]


def strange_files() -> dict[str, tuple[bytes, int]]:
    """Files that are not photos, or unusual ones, with the status expected for each."""
    rng = np.random.default_rng(0)
    colours = Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8))
    jpeg, png = encoded(colours, "JPEG"), encoded(colours, "PNG")
    deep = Image.fromarray(rng.integers(0, 2**16, (40, 50), np.uint16))
    frames = [colours.rotate(angle) for angle in (90, 180)]
    return {
        "no bytes": (b"", 400),
        "text": (b"Dear diary, today I was no photo.", 400),
        "a page": (b"<!doctype html><script>alert(1)</script>", 400),
        "a drawing": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', 400),
        "zeros": (bytes(10_000), 400),
        "noise": (rng.bytes(10_000), 400),
        "JPEG, its first bytes": (jpeg[:3], 400),
        "JPEG, half": (jpeg[: len(jpeg) // 2], 400),
        "JPEG, header alone": (jpeg[: jpeg.index(b"\xff\xda")], 400),
        "PNG, half": (png[: len(png) // 2], 400),
        "PNG, a chunk of 2 GB": (png[:33] + b"\x77\0\0\0IDAT" + bytes(50), 400),
        "PostScript": (encoded(colours, "EPS"), 400),
        "JPEG of 65,500 px": (with_jpeg_size(jpeg, 65_500), 413),
        "PNG of 10,000 px": (bomb(10_000), 413),
        "GIF of 65,535 px": (b"GIF89a\xff\xff\xff\xff" + encoded(colours, "GIF")[10:], 413),
        "JPEG, grey": (encoded(colours.convert("L"), "JPEG"), 200),
        "JPEG, CMYK": (encoded(colours.convert("CMYK"), "JPEG"), 200),
        "JPEG, progressive": (encoded(colours, "JPEG", progressive=True), 200),
        "JPEG, 1 px": (encoded(colours.crop((0, 0, 1, 1)), "JPEG"), 200),
        "JPEG, a line": (encoded(colours.resize((20_000, 1)), "JPEG"), 200),
        "JPEG and more": (jpeg + rng.bytes(1000), 200),
        "PNG, 16 bits": (encoded(deep, "PNG"), 200),
        "PNG, palette": (encoded(colours.quantize(8), "PNG"), 200),
        "PNG, transparent": (encoded(colours.convert("RGBA"), "PNG"), 200),
        "GIF, animated": (encoded(colours, "GIF", save_all=True, append_images=frames), 200),
        "WebP": (encoded(colours, "WEBP"), 200),
        "TIFF": (encoded(colours, "TIFF"), 200),
    }


def test_each_strange_file_gets_its_status(server: "Server", steady: None) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for name, (content, status) in strange_files().items():
            uploaded = client.post(CLASSIFY, files={"images": ("photo.jpg", content)})
            asked = client.post(PREDICT, content=instances(content))
            for answer in (uploaded, asked):
                assert (name, answer.status_code) == (name, status), answer.text
                assert isinstance(answer.json()["predictions" if status == 200 else "error"], list | str)


PIXELS = b'{"signature_name": "pixels", "instances": '
STRANGE_BODIES = {
    "nothing": b"",
    "half": b'{"instances": [{"b64": "',
    "deep": b"[" * 1_000_000,
    "deep instances": b'{"instances": ' + b'[{"a":' * 100_000 + b"1" + b"}]" * 100_000 + b"}",
    "not UTF-8": b'{"instances": "\xff\xfe"}',
    "no instances": b'{"instances": []}',
    "an object": b'{"instances": {}}',
    "numbers": b'{"instances": [1, NaN, 1e999]}',
    "a long number": b'{"instances": [' + b"9" * 100_000 + b"]}",
    "nulls": b'{"instances": [null, {"b64": null}]}',
    "a list": b'{"instances": [{"b64": ["a"]}]}',
    "no base64": b'{"instances": [{"b64": "%%%"}]}',
    "half a surrogate": b'{"instances": [{"b64": "\\ud800"}]}',
    "no object": b'"instances"',
    "keys again and again": b'{"instances": [], ' + b'"a": 1, ' * 1_000_000 + b'"instances": []}',
    "lists without end": PIXELS + b"[" * 20_000_000,
    "a million arrays": PIXELS + b"[" + b'{"images": [[[]]]}, ' * 1_000_000 + b"1]}",
    "a million pieces of arrays": PIXELS + b"[[[1]]]a" * 3_000_000,
    "a million images": PIXELS + b"[[[[" + b"0]]], [[[" * 3_000_000 + b"0]]]]}",
    "an endless number of pixels": PIXELS + b"[[[[" + b"9" * 20_000_000 + b"]]]]}",
}


@pytest.mark.parametrize("name", STRANGE_BODIES)
def test_each_strange_body_is_refused(server: "Server", steady: None, name: str) -> None:
    answer = httpx.post(server.url + PREDICT, content=STRANGE_BODIES[name], timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert len(answer.content) < 2000


PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n'
STRANGE_UPLOADS = {
    "a million fields": (PART + b"\r\n\r\n") * 1_000_000,
    "a million files": (PART[:-2] + b'; filename="a"\r\n\r\n\r\n') * 1_000_000,
    "a million headers of a part": PART + b"A: b\r\n" * 5_000_000,
    "an endless header of a part": PART + b"A: " + b"b" * 30_000_000,
    "an endless name": PART[:-3] + b"b" * 30_000_000,
    "no name": PART.replace(b'; name="a"', b"; filename=a") + b"\r\n",
    "a field of 30 MB": PART + b"\r\n" + b"b" * 30_000_000,
    "no part": b"x" * 30_000_000,
    "no end": PART[:-2] + b'; filename="a"\r\n\r\n' + b"--" * 10_000_000,
}


@pytest.mark.parametrize("name", STRANGE_UPLOADS)
def test_each_strange_upload_is_refused(server: "Server", steady: None, name: str) -> None:
    kind = {"content-type": "multipart/form-data; boundary=x"}
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError):  # it hung up while we went on sending
        answer = httpx.post(server.url + CLASSIFY, content=STRANGE_UPLOADS[name][:31_000_000], headers=kind, timeout=60)
        assert (answer.status_code, list(answer.json())) == (400, ["error"])


@pytest.mark.parametrize(
    "coding", ["gzip", *(pytest.param(coding, marks=pytest.mark.long) for coding in ("deflate", "br"))]
)
def test_bodies_are_not_unpacked(server: "Server", steady: None, coding: str) -> None:
    packed = gzip.compress(b'{"instances": []}' + bytes(100 * MB), 1)
    for path in (PREDICT, CLASSIFY):
        headers = {"content-encoding": coding, "content-type": "multipart/form-data; boundary=x"}
        assert httpx.post(server.url + path, content=packed, headers=headers, timeout=60).status_code == 415


@pytest.mark.parametrize("announced", [True, False])
def test_100_mb_are_refused(server: "Server", steady: None, announced: bool) -> None:
    begin = b'--x\r\nContent-Disposition: form-data; name="a"; filename="a.jpg"\r\n\r\n'

    def body() -> Iterator[bytes]:
        yield begin
        for _ in range(100):
            yield bytes(MB)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    if announced:
        headers["content-length"] = str(len(begin) + 100 * MB)
    for path in (CLASSIFY, PREDICT):
        with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError):  # it hung up while we went on sending
            assert httpx.post(server.url + path, content=body(), headers=headers, timeout=60).status_code == 413


def mutate(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """The file with one to three mutations: bytes changed, cut out, truncated, repeated, or taken from another file."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        if not changed:
            break
        near = len(changed) if rng.random() < 0.5 else min(64, len(changed))  # half of the mutations are in the header
        at, length = int(rng.integers(near)), int(rng.integers(1, 64))
        match int(rng.integers(6)):
            case 0:
                changed[at] ^= 1 << int(rng.integers(8))
            case 1:
                changed[at : at + length] = rng.bytes(length)
            case 2:
                del changed[at : at + length]
            case 3:
                del changed[max(at, 1) :]
            case 4:
                changed[at:at] = changed[at : at + length] * 4
            case _:
                changed[at : at + length] = other[at : at + length]
    return bytes(changed)


def fuzz(server: "Server", count: int) -> collections.Counter[int]:
    """Counts of the statuses that `count` mutated images get."""
    rng = np.random.default_rng(0)
    seeds = [content for content, status in strange_files().values() if status == 200]
    statuses: collections.Counter[int] = collections.Counter()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(count):
            seed, other = (seeds[int(i)] for i in rng.integers(len(seeds), size=2))
            files = {"images": (f"{number}.jpg", mutate(rng, seed, other))}
            statuses[client.post(CLASSIFY, files=files).status_code] += 1
    return statuses


def check_fuzz(server: "Server", count: int) -> None:
    statuses = fuzz(server, count)
    assert statuses.keys() <= {200, 400, 413}
    assert min(statuses[200], statuses[400]) > count / 20  # neither too mild nor too wild to test anything


@pytest.mark.long
def test_100_mutated_images(server: "Server", steady: None) -> None:
    check_fuzz(server, 100)


@pytest.mark.slow
def test_1000_mutated_images_leave_nothing_behind(server: "Server", steady: None) -> None:
    check_fuzz(server, 1000)
    before = server.memory_mb()
    check_fuzz(server, 1000)
    assert server.memory_mb() < before + 10


async def storm(url: str, body: bytes, count: int, connections: int) -> collections.Counter[int]:
    """Counts of the statuses of `count` requests, each over its own connection; 0 if the connection broke."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    statuses: collections.Counter[int] = collections.Counter()
    places = asyncio.Semaphore(connections)

    async def ask() -> None:
        async with places:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(head + body)
                answer = await asyncio.wait_for(reader.read(), 120)
                statuses[int(answer[9:12]) if answer else 0] += 1
            except ConnectionError:
                statuses[0] += 1
            finally:
                writer.close()

    await asyncio.gather(*(ask() for _ in range(count)))
    return statuses


def check_storm(export_dir: Path, start_server: "StartServer", images: list[bytes], count: int) -> None:
    """Checks that all requests are answered, rightly or with 503."""
    body = instances(images[0])
    with start_server(export_dir, "--max_queue=128", "--max_connections=600") as server:
        asyncio.run(storm(server.url, body, 50, 50))
        before = server.memory_mb()
        server.forget_peak()
        statuses = asyncio.run(storm(server.url, body, count, 500))
        assert statuses.keys() <= {200, 503}
        assert statuses[200] >= 128
        assert server.memory_mb("VmHWM") < before + GROWTH_MB
        assert httpx.post(server.url + PREDICT, content=body, timeout=60).status_code == 200
        assert server.stop() == 0


@pytest.mark.long
def test_500_requests_at_once_are_all_answered(
    export_dir: Path, start_server: "StartServer", images: list[bytes]
) -> None:
    check_storm(export_dir, start_server, images, 500)


@pytest.mark.slow
def test_10000_requests_are_all_answered(export_dir: Path, start_server: "StartServer", images: list[bytes]) -> None:
    check_storm(export_dir, start_server, images, 10_000)


def test_clients_that_go_away_leave_nothing_behind(server: "Server", steady: None, images: list[bytes]) -> None:
    body = instances(*images)
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    ends = (len(head) // 2, len(head) + len(body) // 2, len(head) + len(body))
    for number in range(60):
        with server.connect() as connection:
            if number % 2:  # abruptly
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall((head + body)[: ends[number % 3]])
    for _ in range(600):
        if 'resnet_tpu_queue_images{model="flowers"} 0.0' in httpx.get(f"{server.url}/metrics").text:
            return
        time.sleep(0.05)
    pytest.fail("images of clients that are gone still wait")


@pytest.mark.long
def test_slow_clients_keep_nobody_waiting_and_are_dropped(
    server: "Server", steady: None, images: list[bytes], expected: np.ndarray
) -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n".encode()
    in_head, in_body = ([server.connect() for _ in range(50)] for _ in range(2))
    for connection in in_body:
        connection.sendall(head)
    for byte in range(5):
        for connection in in_head:
            connection.sendall(head[byte : byte + 1])
        for connection in in_body:
            connection.sendall(b" ")
        answer_photos(server.url, images, expected)
    for connections, last in ((in_head, b""), (in_body, b"HTTP/1.1 408")):
        for connection in connections:
            with connection:
                assert connection.recv(12) == last
