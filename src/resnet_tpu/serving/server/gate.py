"""The middleware before the application: limits a request's head, counts and logs it, and applies the readiness."""

import asyncio
import json
import logging
import time
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resnet_tpu.serving.server.connection import MAX_HEAD
from resnet_tpu.serving.server.json_answer import json_response
from resnet_tpu.serving.server.metrics import Metrics
from resnet_tpu.serving.server.refusal import Refusal

log = logging.getLogger(__name__)

_LENGTHS = {b"content-length", b"transfer-encoding"}
_CLOSE = {"connection": "close"}
_STOPPING = Refusal(503, "Server: got a request that it has no time to answer, as it is stopping. Send it again.")


@dataclass
class Readiness:
    """Whether load balancers should send requests. The server answers them either way."""

    is_ready: bool = False


class Gate:
    """ASGI middleware: counts requests by route and code, and asks clients to leave while the server stops.

    HEAD is answered like GET; the connection omits the body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, readiness: Readiness, *, access_log: bool) -> None:
        self.app, self.metrics, self.readiness, self.access_log = app, metrics, readiness, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, method = time.perf_counter(), 500, scope["method"]
        is_body_held = any(name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"])
        is_answered = False
        if method == "HEAD":
            scope = {**scope, "method": "GET"}
        app = _refuse_head(scope) or self.app

        async def receive_on() -> Message:
            nonlocal is_body_held
            is_body_held = False
            return await receive()

        async def send_on(message: Message) -> None:
            nonlocal status, is_answered
            if message["type"] == "http.response.start":
                status, is_answered = message["status"], True
                # a client that waits for 100 Continue may skip its body: its next request would be read as the body
                if is_body_held or not self.readiness.is_ready:
                    headers = dict(message["headers"]) | {b"connection": b"close"}
                    message["headers"] = list(headers.items())
            await send(message)

        try:
            await app(scope, receive_on, send_on)
        except asyncio.CancelledError:  # the server is stopping, and has no more time for this request
            if not is_answered:
                await json_response({"error": _STOPPING.message}, 503, _STOPPING.headers | _CLOSE)(
                    scope, receive, send_on
                )
        finally:
            seconds = time.perf_counter() - start
            # a route's pattern, not the path: clients must not create counters by making up paths
            route = getattr(scope.get("route"), "path_format", "none")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.request_seconds.labels(route).observe(seconds)
            if self.access_log:
                self._write_log(scope, method, status, seconds)

    def _write_log(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": (scope["client"] or ("",))[0],
            "method": method,
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 2),
            "images": scope.get("state", {}).get("num_images", 0),
        }
        log.info(json.dumps(entry))


def _refuse_head(scope: Scope) -> Response | None:
    """The answer to a head that is too large, or whose headers leave the length of its body ambiguous."""
    headers = scope["headers"]
    size = (
        len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) + 4 for name, value in headers)
    )
    if size > MAX_HEAD:
        error = f"Request: got a head of {size} bytes, expected at most {MAX_HEAD}."
        return json_response({"error": error}, 431, _CLOSE)
    if {name for name, _ in headers} >= _LENGTHS:
        error = "Request: got Content-Length and Transfer-Encoding, expected one of them."
        return json_response({"error": error}, 400, _CLOSE)
    return None
