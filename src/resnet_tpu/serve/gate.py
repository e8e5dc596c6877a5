"""What every request passes: counts, the access log, and the state of the server."""

import json
import logging
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resnet_tpu.serve.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass
class State:
    """Whether the server takes requests from a load balancer; it answers them either way."""

    is_ready: bool = False


class Gate:
    """ASGI middleware: counts requests by route and code, and asks clients to leave while the server stops."""

    def __init__(self, app: ASGIApp, metrics: Metrics, state: State, *, access_log: bool) -> None:
        self.app, self.metrics, self.state, self.access_log = app, metrics, state, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not self.state.is_ready:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self.app(scope, receive, send_on)
        finally:
            seconds = time.perf_counter() - start
            # a route's pattern, not the path: what clients make up must not become names of counters
            route = getattr(scope.get("route"), "path", "none")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.request_seconds.labels(route).observe(seconds)
            if self.access_log:
                self._write_log(scope, status, seconds)

    def _write_log(self, scope: Scope, status: int, seconds: float) -> None:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": (scope["client"] or ("",))[0],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 2),
            "images": scope.get("state", {}).get("num_images", 0),
        }
        log.info(json.dumps(entry))
