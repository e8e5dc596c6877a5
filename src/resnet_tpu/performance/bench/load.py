"""Clients, in a process of their own, that request predictions from a server, each as soon as it has its last answer.

They share the cores with the server, so they do as little as possible: requests are prepared beforehand, connections
stay open, and only the status and length of an answer are parsed. Their remaining CPU time is among the figures.
"""

import asyncio
import base64
import collections
import importlib.util
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import child

_BOUNDARY = "a-boundary-between-photos"
_PATIENCE = 60  # seconds
_HEADER_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True)
class Load:
    """Clients that send the photos in turn for some time, one per request."""

    url: str  # of the server, http://host:port
    model: str
    kind: str  # one of KINDS
    photos: list[str]  # paths
    clients: int
    seconds: float  # of measurement, after the warm-up
    warm_up: float  # seconds

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80


def multipart_request(load: Load, photo: Path) -> bytes:
    """The request by which a browser or `curl --form` uploads the photo."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="{photo.name}"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    )
    body = head.encode() + photo.read_bytes() + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return _request(load, "classify", f"multipart/form-data; boundary={_BOUNDARY}", body)


def json_request(load: Load, photo: Path) -> bytes:
    """The request by which a client of TensorFlow Serving sends the photo: base64 in JSON."""
    body = json.dumps({"instances": [{"b64": base64.b64encode(photo.read_bytes()).decode()}]}).encode()
    return _request(load, "predict", "application/json", body)


KINDS: dict[str, Callable[[Load, Path], bytes]] = {"multipart": multipart_request, "json": json_request}
"""The ways to send a photo."""


def _request(load: Load, verb: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"POST /v1/models/{load.model}:{verb} HTTP/1.1\r\nHost: {urlsplit(load.url).netloc}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def ask(connection: socket.socket, request: bytes) -> None:
    """Sends the request over a connection that stays open, and waits for the whole answer.

    Raises UserError when there is none, or its status is not 200.
    """
    connection.sendall(request)
    received, length = bytearray(), 0
    while not length or len(received) < length:
        data = connection.recv(1 << 16)
        if not data:
            raise _failure("a connection that broke off")
        received += data
        length = length or _length(received)
    if (status := _status(received)) != 200:
        raise _failure(f"status {status}")


def _length(received: bytearray) -> int:
    """Total bytes of the answer being received; 0 until that is known. Raises UserError."""
    end = received.find(_HEADER_END)
    if end < 0:
        return 0
    head = bytes(received[:end]).lower()
    _, found, rest = head.partition(_LENGTH)
    if not found:
        raise _failure(f"an answer without Content-Length: {head[:200]!r}")
    return end + len(_HEADER_END) + int(rest.split(b"\r\n", 1)[0])


def _status(received: bytearray) -> int:
    return int(received[9:12])


def _failure(got: str) -> UserError:
    return UserError("Answer of the server", got, "a complete one for each request", "See the log of the server.")


@dataclass
class _Tally:
    """Results of all clients: (begin, end) by `time.perf_counter` of each request answered 200, statuses, the end."""

    done: asyncio.Future[None]
    clients: int
    spans: list[tuple[float, float]] = field(default_factory=list)
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)


class _Client(asyncio.Protocol):
    """A client with one connection, which stays open."""

    def __init__(self, requests: Sequence[bytes], first: int, until: float, tally: _Tally) -> None:
        self._requests, self._next, self._until, self._tally = requests, first, until, tally
        self._received = bytearray()
        self._length = 0  # of the whole answer, 0 until it is known
        self._is_over = False

    def connection_made(self, transport: Any) -> None:  # uvloop's is not an asyncio.Transport
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._received.clear()
        self._length = 0
        self._begin = time.perf_counter()
        self._transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._length:
            try:
                self._length = _length(self._received)
            except UserError as error:
                self._fail(error)
                return
        if self._length and len(self._received) >= self._length:
            self._finish()

    def _finish(self) -> None:
        end = time.perf_counter()
        status = _status(self._received)
        self._tally.statuses[status] += 1
        if status == 200:
            self._tally.spans.append((self._begin, end))
        if end < self._until:
            self._send()
            return
        self._is_over = True
        self._tally.clients -= 1
        self._transport.close()
        if not self._tally.clients and not self._tally.done.done():
            self._tally.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_over:
            self._fail(_failure(f"a connection that broke off: {exc}"))

    def _fail(self, error: UserError) -> None:
        if not self._tally.done.done():
            self._tally.done.set_exception(error)


async def _run(load: Load) -> tuple[_Tally, float, float]:
    """The clients' results, the time when counting began, and the CPU seconds of this process from then on."""
    requests = [KINDS[load.kind](load, Path(photo)) for photo in load.photos]
    loop = asyncio.get_running_loop()
    tally = _Tally(loop.create_future(), load.clients)
    begin = time.perf_counter() + load.warm_up
    transports = []
    try:
        for number in range(load.clients):
            transport, _ = await loop.create_connection(
                lambda number=number: _Client(requests, number, begin + load.seconds, tally), *load.address
            )
            transports.append(transport)
        await asyncio.sleep(max(0.0, begin - time.perf_counter()))
        cpu_begin = time.process_time()
        await asyncio.wait_for(tally.done, load.seconds + _PATIENCE)
    except TimeoutError:
        raise _failure(f"{tally.clients} clients still waiting {_PATIENCE} s after the end") from None
    finally:
        for transport in transports:
            transport.abort()
    return tally, begin, time.process_time() - cpu_begin


def measure(load: Load) -> dict[str, Any]:
    """Images per second, percentiles of the latency in ms, the clients' CPU ms per image, and other statuses.

    Only answers of status 200 after the warm-up count; `requests` includes earlier ones.
    Raises UserError when a connection breaks, or no request is answered with 200.
    """
    run = asyncio.run
    if importlib.util.find_spec("uvloop"):
        import uvloop

        run = uvloop.run
    tally, begin, cpu = run(_run(load))
    counted = [span for span in tally.spans if span[1] >= begin]
    refused = {str(status): number for status, number in tally.statuses.items() if status != 200}
    if not counted:
        got = f"answers of status {refused}" if refused else "no answer in time"
        raise UserError(f"{load.clients} clients, {load.kind}", got, "status 200", "See the server's log.")
    latencies = 1000 * np.array([end - start for start, end in counted])
    p50, p90, p99 = np.percentile(latencies, [50, 90, 99])
    # from one answer to another: answers come in batches, and a part of a batch must not count as a whole one
    ends = sorted(end for _, end in tally.spans)
    seconds = ends[-1] - max([end for end in ends if end < begin], default=begin)
    return {
        "images_per_sec": len(counted) / seconds,
        "p50_ms": float(p50),
        "p90_ms": float(p90),
        "p99_ms": float(p99),
        "client_cpu_ms_per_image": 1000 * cpu / len(counted),
        "requests": len(tally.spans),
        "refused": refused,
    }


if __name__ == "__main__":
    child.print_figures(lambda load: measure(Load(**json.loads(load))))
