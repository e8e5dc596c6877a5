"""HTTP connections with limits on their number and on the time of a request. h11 limits what it reads itself."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from resnet_tpu.serving.server.options import ServeOptions
from resnet_tpu.serving.server.predict_api import to_json

MAX_HEAD = 64 * 1024
"""Bytes of the first line and the headers of a request. Also of one read: h11 bounds only what is incomplete."""

_LINGER_SECONDS = 1.0
"""How long a refused client has to read why."""


def bounded_protocol(options: ServeOptions) -> type[asyncio.Protocol]:
    """uvicorn's protocol over h11 with bounds on the number of connections and on the time of a request."""
    busy = _last_answer(
        b"503 Service Unavailable",
        f"Server: got one connection too many, expected at most {options.max_connections}.",
        b"retry-after: 1\r\n",
    )

    class BoundedProtocol(H11Protocol):
        deadline: asyncio.TimerHandle | None = None
        is_refused = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.max_size = MAX_HEAD
            if len(self.connections) > options.max_connections:
                # if it were closed at once, a request on its way would reset the connection before the answer is read
                self.is_refused = True
                self.connections.discard(self)
                transport.write(busy)
                transport.write_eof()
                self.deadline = self.loop.call_later(_LINGER_SECONDS, transport.abort)
            else:
                self._give_time()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.is_refused:
                return
            if self._is_idle():
                self._give_time()
            super().data_received(data)

        def on_response_complete(self) -> None:
            if self.conn.their_state is not h11.SEND_BODY:  # a body that still comes gets no more time
                self._give_time()
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:
                self.cycle.disconnected = True  # or it would answer as well
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.write(_last_answer(b"400 Bad Request", msg))
            self.transport.close()

        def _give_time(self) -> None:
            """Allows time for a request and for reading its answer: more than the application, which answers first."""
            if self.deadline is not None:
                self.deadline.cancel()
            self.deadline = self.loop.call_later(options.request_timeout + 1, self._end_late)

        def _end_late(self) -> None:
            if not self._is_idle():
                self.transport.abort()

        def _is_idle(self) -> bool:
            """Whether there was a request, all requests are answered, and the answers are on their way."""
            is_between = self.cycle is not None and self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0]
            return is_between and not self.transport.get_write_buffer_size()

    return BoundedProtocol


def _last_answer(status: bytes, error: str, headers: bytes = b"") -> bytes:
    """An answer that closes the connection, where there is no request that the application could answer."""
    body = to_json({"error": error})
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
        status, headers, len(body), body
    )  # fmt: skip
