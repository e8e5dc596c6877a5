"""HTTP itself: malformed requests are refused, endless ones closed, and memory stays flat, whatever is sent."""

import base64
import contextlib
import itertools
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.serving.server.conftest import Server, StartServer

PREDICT = "/v1/models/flowers:predict"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LAST = b"Connection: close\r\n"
SENT, GROWTH_MB = 20_000_000, 20
"""Bytes of each flood, and the memory growth allowed, which would be exceeded if the server kept them."""


@pytest.fixture(scope="module")
def server(export_dir: Path, start_server: "StartServer") -> Iterator["Server"]:
    """A server with a short request timeout."""
    with start_server(export_dir, "--request_timeout=3") as server:
        yield server


def request(headers: bytes = b"", body: bytes = b"", *, method: str = "POST", path: str = PREDICT) -> bytes:
    """The bytes of a request."""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode() + headers + b"\r\n" + body


def get(headers: bytes = b"", path: str = "/health") -> bytes:
    return request(headers, method="GET", path=path)


def codes(received: bytes) -> list[int]:
    """The status codes of the answers."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


def error(received: bytes) -> str:
    """The error message in the only answer."""
    (code,) = codes(received)
    assert code >= 400
    return json.loads(received.partition(b"\r\n\r\n")[2])["error"]


FLOODS = {
    "trailers": (request(CHUNKED, b"2\r\n{}\r\n0\r\n"), b"A: b\r\n"),
    "a trailer": (request(CHUNKED, b"2\r\n{}\r\n0\r\nA: "), b"a"),
    "trailers of a GET": (get(CHUNKED) + b"0\r\n", b"A: b\r\n"),
    "a chunk's extension": (request(CHUNKED, b"2;"), b"a"),
    "chunks' extensions": (request(CHUNKED), b"1;" + b"a" * 1000 + b"\r\n \r\n"),
    "headers": (b"GET / HTTP/1.1\r\n", b"A: b\r\n"),
    "a header": (b"GET / HTTP/1.1\r\nA: ", b"a"),
    "a path": (b"GET /", b"a"),
    "empty lines": (b"", b"\r\n"),
    "a body that nobody reads": (request(b"Content-Length: 99000000000\r\n", path="/nowhere"), b"a"),
    "requests whose answers are not read": (b"", get(path="/page/page.js")),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("name", FLOODS)
def test_memory_stays_flat_under_a_flood_of(server: "Server", name: str) -> None:
    begin, unit = FLOODS[name]
    piece = unit * (100_000 // len(unit))
    assert codes(server.ask(get(LAST))) == [200]
    before = server.memory_mb("VmHWM")
    with server.connect() as connection:
        connection.settimeout(1)  # the server need not read everything
        with contextlib.suppress(TimeoutError, ConnectionError):
            connection.sendall(begin)
            for _ in range(SENT // len(piece)):
                connection.sendall(piece)
        assert codes(server.ask(get(LAST))) == [200]
        assert server.memory_mb("VmHWM") < before + GROWTH_MB
    assert "Traceback" not in server.log.read_text()


@pytest.mark.long
def test_a_client_that_never_reads_is_closed(server: "Server") -> None:
    asked = get(path="/page/page.js") * 1000  # makes for megabytes of answers
    with server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.1)
        with contextlib.suppress(TimeoutError):
            connection.sendall(asked)
        with pytest.raises(ConnectionError):  # ends at pytest's own timeout at the latest
            while True:
                with contextlib.suppress(TimeoutError):
                    connection.sendall(asked)


def test_requests_in_one_packet_are_answered_in_order(server: "Server", images: list[bytes]) -> None:
    body = json.dumps({"instances": [{"b64": base64.b64encode(images[0]).decode()}]}).encode() + b" " * 1_000_000
    post = request(LAST + b"Content-Length: %d\r\n" % len(body), body)
    assert codes(server.ask(get() + post)) == [200, 200]
    assert codes(server.ask(get() * 50 + get(LAST, "/nowhere"))) == [200] * 50 + [404]


@pytest.mark.long
def test_a_connection_may_last_longer_than_a_request(server: "Server") -> None:
    begun: dict[object, float] = {}
    latest = time.monotonic() + 60  # on a busy machine one late answer may end a connection
    with httpx.Client(base_url=server.url) as client:
        while time.monotonic() < latest:
            stream = client.get("/health/live").extensions["network_stream"]
            if time.monotonic() - begun.setdefault(stream, time.monotonic()) > 5:
                return
            time.sleep(0.2)
    pytest.fail(f"none of {len(begun)} connections lasted")


@pytest.mark.long
def test_a_connection_that_was_made_in_advance_has_all_the_time_for_its_request(server: "Server") -> None:
    """A second after `request_timeout`, 3 s, a connection without a request would be closed."""
    with server.connect() as connection:
        time.sleep(3)
        connection.sendall(get()[:10])
        time.sleep(2)
        connection.sendall(get()[10:])
        assert codes(connection.recv(65536)) == [200]


@pytest.mark.parametrize(
    "head", [b"A: " + b"a" * 70_000 + b"\r\n", b"A: b\r\n" * 12_000, b"A: " + b"a" * 1_000_000 + b"\r\n"]
)
def test_a_head_is_bounded(server: "Server", head: bytes) -> None:
    received = server.ask(get(head) + get())
    assert codes(received) == [431]
    assert re.match(r"Request: got a head of (more than )?\d+ bytes, expected at most 65536", error(received))
    assert codes(server.ask(get(LAST + b"A: " + b"a" * 60_000 + b"\r\n"))) == [200]


@pytest.mark.parametrize("size", [65_000, 66_000])
def test_a_target_is_bounded(server: "Server", size: int) -> None:
    assert codes(server.ask(get(LAST, "/health?" + "a" * size))) == [200 if size == 65_000 else 431]


MALFORMED = {
    "no Host": b"GET /health HTTP/1.1\r\n\r\n",
    "two Hosts": get(b"Host: y\r\n"),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "a blank before the colon": get(b"A : b\r\n"),
    "a zero in a header": get(b"A: \0\r\n"),
    "a path with a byte that is no ASCII": get(path="/h\xe9"),
    "two ends of a body": request(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n"),
    "two lengths": request(b"Content-Length: 2\r\nContent-Length: 60\r\n", b"{}"),
    "a length below nothing": request(b"Content-Length: -1\r\n"),
    "a length with a sign": request(b"Content-Length: +2\r\n", b"{}"),
    "a length of a hundred digits": request(b"Content-Length: " + b"9" * 100 + b"\r\n"),
    "another coding": request(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "a chunk below nothing": request(CHUNKED, b"-1\r\n"),
    "a chunk of a hundred digits": request(CHUNKED, b"f" * 100 + b"\r\n"),
    "a chunk longer than it says": request(CHUNKED, b"1\r\n{}\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_told_so_and_hides_no_second_request(server: "Server", name: str) -> None:
    assert error(server.ask(MALFORMED[name] + get())).startswith(
        ("Invalid HTTP request", "Request: got Content-Length")
    )


@pytest.mark.parametrize(
    ("size", "count", "message"),
    [
        (1, 1000, "Request: got a body that is not JSON"),
        (1, 1001, "Request: got 1001 chunks for the first 1001 bytes of a body, expected at most 1000, or 64 bytes"),
        (63, 1001, "Request: got 1001 chunks for"),
        (64, 5000, "Request: got a body that is not JSON"),
    ],
)
def test_a_body_in_tiny_chunks_is_refused(server: "Server", size: int, count: int, message: str) -> None:
    """Each chunk costs as much time as a read of 64 KiB, in which no other client is answered."""
    chunks = b"%x\r\n%b\r\n" % (size, b" " * size) * count
    assert error(server.ask(request(LAST + CHUNKED, chunks + b"0\r\n\r\n"))).startswith(message)


def test_tiny_chunks_after_the_answer_end_the_connection(server: "Server") -> None:
    piece = b"1\r\n \r\n" * 10_000
    with server.connect() as connection:
        connection.sendall(request(CHUNKED, path="/nowhere"))
        received = connection.recv(65536)
        with contextlib.suppress(ConnectionError):
            connection.sendall(piece)
            while chunk := connection.recv(65536):
                received += chunk
    assert codes(received) == [404]


def test_the_chunks_of_each_body_are_counted_anew(server: "Server") -> None:
    asked = request(CHUNKED, b"1\r\n \r\n" * 500 + b"0\r\n\r\n")
    assert codes(server.ask(asked * 3 + get(LAST))) == [400] * 3 + [200]


def test_a_malformed_end_of_a_body_after_its_answer_is_closed_quietly(server: "Server") -> None:
    with server.connect() as connection:
        connection.sendall(request(CHUNKED, b"1\r\n", path="/nowhere"))
        received = connection.recv(65536)
        connection.sendall(b"no chunk")
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                received += chunk
    assert codes(received) == [404]
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_other_protocols_are_not_taken_up(server: "Server", upgrade: str) -> None:
    asked = get(f"Connection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Key: YQ==\r\n".encode())
    assert codes(server.ask(asked + get(LAST))) == [200, 200]


def test_a_body_is_asked_for_when_it_is_wanted(server: "Server") -> None:
    expect = LAST + b"Expect: 100-continue\r\n"
    assert codes(server.ask(request(expect + b"Content-Length: 2\r\n", b"{}"))) == [100, 400]
    assert codes(server.ask(request(expect + b"Content-Length: 99000000000\r\n"))) == [413]


def test_a_refused_body_is_not_mistaken_for_a_request_nor_the_reverse(server: "Server") -> None:
    expect = b"Content-Length: %d\r\nExpect: 100-Continue\r\n" % len(get())
    for path, code in ((PREDICT.replace("flowers", "birds"), 404), (PREDICT.replace("predict", "classify"), 415)):
        assert codes(server.ask(request(expect, get(), path=path) + get(LAST))) == [code]
        assert codes(server.ask(request(expect, path=path))) == [code]  # a client that waits in vain, and leaves
        assert codes(server.ask(request(expect[:20], get(), path=path) + get(LAST))) == [code, 200]


def test_a_client_that_sends_more_than_it_may_can_read_why(server: "Server") -> None:
    body = b"a" * 33_000_000
    assert codes(server.ask(request(LAST + b"Content-Length: %d\r\n" % len(body), body))) == [413]
    assert codes(server.ask(request(CHUNKED, b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 1_000_000))) == [431]
    assert codes(server.ask(b"no HTTP\r\n\r\n" + body)) == [400]


SURE = {
    "a page": (get(), 200, False),
    "a body that is read": (request(b"Content-Length: 2\r\n", b"{}"), 400, False),
    "chunks": (request(CHUNKED, b"1\r\n{\r\n1;a=b\r\n}\r\n0\r\nA: b\r\n\r\n"), 400, False),
    "a body that is not read": (
        request(b"Content-Length: %d\r\n" % len(get() * 2000), get() * 2000, path="/nowhere"),
        404,
        False,
    ),
    "chunks that are not read": (request(CHUNKED, b"1\r\n{\r\n0\r\n\r\n", path="/nowhere"), 404, False),
    "a held body": (request(b"Content-Length: 40\r\nExpect: 100-continue\r\n", path="/nowhere"), 404, True),
    "a large head": (get(b"A: " + b"a" * 66_000 + b"\r\n"), 431, True),
    "a larger head": (get(b"A: " + b"a" * 300_000 + b"\r\n"), 431, True),
    "two ends": (request(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n"), 400, True),
    "no HTTP": (b"\0\r\n\r\n", 400, True),
    "an old client": (b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, True),
}
"""Requests, the status of each, and whether the connection ends with it."""


def test_random_requests_are_each_answered_until_one_ends_the_connection(server: "Server") -> None:
    rng = random.Random(1)
    for _ in range(100):
        names = rng.choices(list(SURE), [2 if closes else 7 for _, _, closes in SURE.values()], k=8)
        sent = b"".join(SURE[name][0] for name in names) + get(LAST)
        ends = sorted(rng.randrange(len(sent)) for _ in range(rng.randrange(4)))
        parts = [sent[begin:end] for begin, end in itertools.pairwise((0, *ends, len(sent)))]
        count = next((index for index, name in enumerate(names) if SURE[name][2]), len(names))
        expected = [SURE[name][1] for name in names[: count + 1]] + [200] * (count == len(names))
        assert codes(server.ask(*parts)) == expected, (names, ends)
    assert "Traceback" not in server.log.read_text()


def test_http_1_0_is_answered_and_closed(server: "Server") -> None:
    assert server.ask(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").startswith(b"HTTP/1.1 200 ")
