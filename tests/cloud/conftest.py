"""Local stand-ins for the Google Cloud services to which trainings are submitted."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest


class TpuService:
    """Cloud TPU's queued resources, with its real gRPC protocol: records requests and answers with `states`."""

    def __init__(self) -> None:
        from google.cloud import tpu_v2
        from google.longrunning import operations_pb2

        self.created: list[Any] = []
        self.deleted: list[Any] = []
        self.states: deque[Any] = deque()
        self.refusals: dict[str, deque[tuple[grpc.StatusCode, str]]] = {}
        self.on_look: Callable[[], None] = lambda: None
        self._types, self._operation = tpu_v2, operations_pb2.Operation
        names = ("CreateQueuedResource", "GetQueuedResource", "DeleteQueuedResource")
        handlers = {name: self._handler(name) for name in names}
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("google.cloud.tpu.v2.Tpu", handlers),)
        )
        self.address = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        """Ends it."""
        self._server.stop(None).wait()

    def say(self, *states: str, message: str = "") -> None:
        """Sets the states returned by the next requests; the last one is repeated."""
        kind = self._types.QueuedResourceState
        for state in states:
            found = kind(state=kind.State[state])
            if message and state == "FAILED":
                found.failed_data.error.message = message
            self.states.append(self._types.QueuedResource(state=found))

    def _handler(self, name: str) -> Any:
        answers = self._types.QueuedResource.serialize if name.startswith("Get") else self._operation.SerializeToString
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(name, request, context),
            request_deserializer=getattr(self._types, f"{name}Request").deserialize,
            response_serializer=answers,
        )

    def _answer(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        if waiting := self.refusals.get(name):
            context.abort(*waiting.popleft())
        if name == "CreateQueuedResource":
            self.created.append(request)
        elif name == "DeleteQueuedResource":
            self.deleted.append(request)
        else:
            self.on_look()
            return self.states.popleft() if len(self.states) > 1 else self.states[0]
        return self._operation(name="operations/1")


@pytest.fixture
def tpu_service() -> Iterator[TpuService]:
    """A `TpuService`."""
    pytest.importorskip("google.cloud.tpu_v2")
    service = TpuService()
    yield service
    service.close()


class VertexService:
    """Custom jobs of Vertex AI over HTTP: records requests and answers with `answers` (status, body)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: deque[tuple[int, Any]] = deque()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                service.asked.append((self.command, self.path, body))
                status, answer = service.answers.popleft()
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def vertex_service() -> Iterator[VertexService]:
    """A `VertexService`."""
    pytest.importorskip("google.auth")
    service = VertexService()
    yield service
    service.close()
