"""HTTP connections, with limits on their number, and on the time and the chunks of a request."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from resnet_tpu.serving.server.json_answer import to_json
from resnet_tpu.serving.server.options import ServeOptions

MAX_HEAD = 64 * 1024
"""The most bytes of a request's first line and headers, and of one read: h11 limits only an incomplete head."""

_FREE_CHUNKS, _CHUNK_BYTES = 1000, 64
"""A body may have _FREE_CHUNKS chunks of any size. If it has more, they must have _CHUNK_BYTES bytes on average.

h11 needs as much time for a chunk of one byte as for one of 64 KiB, and meanwhile nobody else is answered.
"""

_WELCOME = (b"GET /health", b"HEAD /health", b"GET /metrics", b"HEAD /metrics")
"""Beginnings of requests that are answered on surplus connections too: a busy server is alive, and can be monitored."""

_LINGER_SECONDS = 1.0
"""Time for a client on a surplus connection to send its request, and then to read why it is refused."""

_WELCOME_SECONDS = 5.0
"""Time for the answer to a request on a surplus connection, until the client has read it."""


def bounded_protocol(options: ServeOptions, refuse: Callable[[int], object]) -> type[asyncio.Protocol]:
    """uvicorn's h11 protocol with limits on the number of connections, and on the time and the chunks of a request.

    refuse: called with the status of each answer that the protocol gives itself, without the application.
    """

    class Bounded(_BoundedProtocol):
        limits, on_refusal = options, staticmethod(refuse)

    return Bounded


class _BoundedProtocol(H11Protocol):
    limits: ServeOptions
    on_refusal: Callable[[int], object]
    deadline: asyncio.TimerHandle | None = None
    is_surplus = False  # whether this is one connection too many

    def connection_made(self, transport: Any) -> None:
        self.conn = _FewChunks(h11.SERVER, MAX_HEAD)
        self.lingering = _LingeringTransport(transport, self._is_client_sending)
        super().connection_made(cast("asyncio.Transport", self.lingering))
        transport.max_size = MAX_HEAD
        if len(self.connections) > self.limits.max_connections:
            self.connections.discard(self)
            self.is_surplus = True
            self._call_later(_LINGER_SECONDS, self._refuse)
        else:
            self._give_time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.is_surplus:
            self._serve_surplus(data)
            return
        if self._is_idle() or self._is_unused():
            self._give_time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        if not self.is_surplus and self.conn.their_state is not h11.SEND_BODY:  # a body still being sent gets no more
            self._give_time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that h11 refuses. Called while its exception is being handled."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # or the application would answer as well
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refused = sys.exception()
            is_large = isinstance(refused, h11.RemoteProtocolError) and refused.error_status_hint == 431
            reason = str(refused) if isinstance(refused, _SmallChunksError) else msg
            self.transport.write(_too_large() if is_large else _last_answer(b"400 Bad Request", reason))
            self.on_refusal(431 if is_large else 400)
        self.transport.close()

    def shutdown(self) -> None:
        """Closes the connection after the current answer, even while the client sends a body that nobody reads."""
        if not self.transport.is_closing():
            super().shutdown()
        if self.transport.is_closing():
            self.transport.close()

    def _serve_surplus(self, data: bytes) -> None:
        """Answers a single request in `_WELCOME`, if its head arrives in one piece; refuses any other."""
        if self.cycle is None and data.startswith(_WELCOME):
            self._call_later(_WELCOME_SECONDS, self.transport.abort)
            super().data_received(data)
        if self.cycle is not None:
            self.headers.append((b"connection", b"close"))  # in the request, so that the answer has it too
            self.shutdown()
        elif not self.transport.is_closing():
            self._refuse()

    def _refuse(self) -> None:
        """Answers that this is one connection too many, and closes it once the client can have read that."""
        self.transport.write(_too_many(self.limits.max_connections))
        self.on_refusal(503)
        self.lingering.linger()
        self._call_later(_LINGER_SECONDS, self.transport.abort)

    def _give_time(self) -> None:
        """Restarts the time for a request and its answer. The application has less time, so that it answers first."""
        self._call_later(self.limits.request_timeout + 1, self._abort_if_busy)

    def _call_later(self, seconds: float, end: Callable[[], object]) -> None:
        """Replaces what would end the connection, and when."""
        if self.deadline is not None:
            self.deadline.cancel()
        self.deadline = self.loop.call_later(seconds, end)

    def _abort_if_busy(self) -> None:
        if not self._is_idle():
            self.transport.abort()

    def _is_client_sending(self) -> bool:
        """Whether the client is still sending a body, or the rest of a malformed request."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _is_unused(self) -> bool:
        """Whether not a byte of the first request has arrived."""
        return self.cycle is None and not self.conn.trailing_data[0]

    def _is_idle(self) -> bool:
        """Whether there were requests, all of them are answered, and the answers are sent."""
        if self.transport.is_closing():
            return False
        is_between = self.cycle is not None and self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0]
        return is_between and not self.transport.get_write_buffer_size()


class _SmallChunksError(h11.RemoteProtocolError):
    """A body comes in too many small chunks."""


class _FewChunks(h11.Connection):
    """h11's connection, with a limit on the number of chunks in a body."""

    num_chunks = num_bytes = 0
    """The number of complete chunks of the current body, and of bytes, that have arrived."""

    def next_event(self) -> Any:
        """The next event. Also raises h11.RemoteProtocolError if the body has too many chunks for its size."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.num_chunks = self.num_bytes = 0
        elif isinstance(event, h11.Data):
            self.num_chunks += event.chunk_end
            self.num_bytes += len(event.data)
            if self.num_chunks > _FREE_CHUNKS and self.num_bytes < _CHUNK_BYTES * self.num_chunks:
                got = f"{self.num_chunks} chunks for the first {self.num_bytes} bytes of a body"
                expected = f"at most {_FREE_CHUNKS}, or {_CHUNK_BYTES} bytes in each on average"
                raise _SmallChunksError(f"Request: got {got}, expected {expected}. Send it in larger ones.")
        return event


class _LingeringTransport:
    """A transport that, when closed while its client is sending, waits until the client closes the connection.

    If it closed at once, the data still arriving would reset the connection, often before the client read the answer.
    """

    def __init__(self, transport: asyncio.Transport, is_client_sending: Callable[[], bool]) -> None:
        self._transport, self._is_client_sending = transport, is_client_sending
        self._is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether writing is no longer allowed."""
        return self._is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Flushes and closes the connection. While the client is sending, only a second call closes it."""
        if not self.is_closing() and self._is_client_sending():
            self.linger()
        else:
            self._transport.close()

    def linger(self) -> None:
        """Flushes, and signals the end; the connection then closes when the client closes it."""
        self._is_lingering = True
        self._transport.resume_reading()
        try:
            self._transport.write_eof()
        except OSError:  # the client is gone
            self._transport.abort()


def _too_many(most: int) -> bytes:
    error = f"Server: got one connection too many, expected at most {most}."
    return _last_answer(b"503 Service Unavailable", error, b"retry-after: 1\r\n")


def _too_large() -> bytes:
    error = f"Request: got a head of more than {MAX_HEAD} bytes, expected at most {MAX_HEAD}."
    return _last_answer(b"431 Request Header Fields Too Large", error)


def _last_answer(status: bytes, error: str, headers: bytes = b"") -> bytes:
    """An answer that closes the connection, for when there is no request that the application could answer."""
    body = to_json({"error": error})
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
        status, headers, len(body), body
    )  # fmt: skip
