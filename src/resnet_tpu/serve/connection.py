"""HTTP on a connection, within bounds."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from resnet_tpu.serve.options import ServeOptions
from resnet_tpu.serve.predict_api import to_json

_MAX_HEAD = 64 * 1024
"""Bytes of the first line and the headers of a request."""

_LINGER_SECONDS = 1.0
"""How long a refused client has to read why."""


def bounded_protocol(options: ServeOptions) -> type[asyncio.Protocol]:
    """uvicorn's protocol with bounds on the number of connections, on headers, and on the time of a request."""
    body = to_json({"error": f"Server: expected at most {options.max_connections} connections."})
    busy = (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )

    class BoundedProtocol(HttpToolsProtocol):
        deadline: asyncio.TimerHandle | None = None
        in_head, head_bytes = True, 0
        is_refused = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > options.max_connections:
                # closed at once, the request that is on its way would reset the connection before the answer is read
                self.is_refused = True
                self.connections.discard(self)
                transport.write(busy)
                transport.write_eof()
                self.deadline = self.loop.call_later(_LINGER_SECONDS, transport.close)
            else:
                self._start_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_request()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.is_refused:
                return
            if self.deadline is None:
                self._start_request()
            self.head_bytes += len(data)
            super().data_received(data)
            if self.in_head and self.head_bytes > _MAX_HEAD and not self.transport.is_closing():
                self.send_400_response("Headers too large.")

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.in_head = False

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._end_request()

        def _start_request(self) -> None:
            # somewhat after the application's own bound, which answers; this one closes whatever does not end
            self.deadline = self.loop.call_later(options.request_timeout + 1, self.transport.close)
            self.in_head, self.head_bytes = True, 0

        def _end_request(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return BoundedProtocol
