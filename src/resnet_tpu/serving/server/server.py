"""The server process: its socket, its connections, how it starts and stops."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from resnet_tpu.errors import UserError
from resnet_tpu.serving.server import images
from resnet_tpu.serving.server.app import make_app
from resnet_tpu.serving.server.connection import bounded_protocol
from resnet_tpu.serving.server.gate import Readiness
from resnet_tpu.serving.server.metrics import Metrics
from resnet_tpu.serving.server.models import Loader, load_models
from resnet_tpu.serving.server.options import ServeOptions
from resnet_tpu.serving.server.threads import start_threads
from resnet_tpu.system import machine, signals

log = logging.getLogger(__name__)

_BACKLOG = 2048
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}  # EINVAL: a link-local address without its link
_KEEP_ALIVE_SECONDS = 75
_SILENT_SECONDS = 60.0  # between warnings that no connection can be accepted
_LATE_SECONDS = 1.0  # for requests on connections made just before the server stops


def serve(given: Sequence[str], options: ServeOptions) -> None:
    """Serves bundles until SIGTERM, SIGHUP or SIGINT, then answers the requests in progress. Raises UserError.

    given: `NAME=PATH`, or PATH for the bundle's own name.
    """
    _allow_connections(options.max_connections)
    metrics, readiness = Metrics(), Readiness()
    with (
        _listen(options.host, options.port) as listener,
        start_threads(options.num_parallel_calls or machine.num_cores(), "decode") as decoders,
    ):
        loader = Loader(options, decoders, metrics)
        models = load_models(given, loader)
        images.warm_up_decoders()
        for name, model in models.items():
            count = len(model.current.bundle.class_names)
            log.info("%s: version %d, %d classes, %s", name, model.current.bundle.version, count, model.current.form)
        _Server(make_app(models, loader, readiness), listener, options, metrics, readiness, next(iter(models))).run(
            [listener]
        )
        decoders.shutdown(wait=False, cancel_futures=True)
    log.info("Stopped.")


def _allow_connections(count: int) -> None:
    """Raises this process's limit on open files as far as allowed, so that it can still refuse further connections."""
    with contextlib.suppress(ValueError, OSError):  # the system may have a limit of its own
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * count + 2 * _BACKLOG
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # asyncio switches Nagle's algorithm off only if the protocol is given
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:  # the system has no IPv6
        raise _unusable(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, TypeError) as error:  # TypeError: the text cannot be a host name
        listener.close()
        raise _unusable(host, port, error) from None
    return listener


def _unusable(host: str, port: int, error: OSError | TypeError) -> UserError:
    do = "Stop the program that listens there, or choose another port with --port; 0 takes a free one."
    code = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror | TypeError) or code in _NOT_HERE:
        do = "Give --host an address of this machine, without a port; 0.0.0.0 means all of them."
    elif code == errno.EACCES:
        do = "Choose a port of at least 1024 with --port: lower ones need more privileges."
    return UserError(
        "Address", f"{host}:{port} ({getattr(error, 'strerror', error)})", "one that is free on this machine", do
    )


class _Server(uvicorn.Server):
    """uvicorn with limits on connections and an orderly stop."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        options: ServeOptions,
        metrics: Metrics,
        readiness: Readiness,
        model: str,
    ) -> None:
        """model: the name of a served model, for the example in the log."""
        # no log line for each malformed request
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(options, metrics.count_refusal),
                loop="asyncio",  # closes the listener at once, see `shutdown`
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self._options, self._readiness, self._model = options, readiness, model
        self._skips_waiting = False
        self._warns_at = 0.0
        host, port = listener.getsockname()[:2]
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 (compares only)
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        metrics.connections.set_function(lambda: len(self.server_state.connections))

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves the signals alone: `run` handles them, from before the event loop starts until after it ends."""
        yield

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal, even one that arrives before the start."""
        before = {number: signal.signal(number, self._begin_to_stop) for number in signals.ending()}
        try:
            super().run(sockets)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin_to_stop(self, number: int, _: FrameType | None) -> None:
        """Handles a signal. Ctrl-C after any first signal stops the server without waiting."""
        if number == signal.SIGHUP:
            signals.drop_lost_terminal()
        self._skips_waiting |= self.should_exit and number == signal.SIGINT
        self.should_exit = True

    async def main_loop(self) -> None:
        """Serves until a signal, and then for drain_seconds more, so that clients and load balancers can leave."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        log.info("Serving at %s", self._url)
        log.info("Open that, or: curl -F images=@photo.jpg %s/v1/models/%s:classify", self._url, self._model)
        await super().main_loop()
        self._readiness.is_ready = False
        log.info("Stopping: answering requests in progress")
        # even while nobody is connected: load balancers connect only to ask whether it is ready
        await self._wait(self._options.drain_seconds, lambda: False)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error of the event loop, but failures to accept only once a minute: the loop retries incessantly."""
        error = context.get("exception")
        if not isinstance(error, OSError) or "accept" not in context["message"]:
            loop.default_exception_handler(context)
        elif loop.time() >= self._warns_at:
            self._warns_at = loop.time() + _SILENT_SECONDS
            do = "Raise the limit on open files, or lower --max_connections."
            log.warning("New connections wait, as none can be accepted: %s. %s", error.strerror, do)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more connections, and answers the requests on existing ones."""
        loop = asyncio.get_running_loop()
        late = [connection for listener in sockets or () for connection in accept_waiting(listener)]
        for server in self.servers:
            server.close()
        for connection in late:
            await loop.connect_accepted_socket(self._make_protocol, connection)
        await self._wait(min(_LATE_SECONDS, self._options.stop_seconds), self._has_no_clients)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait(self._options.stop_seconds, self._has_no_clients)
        await self._drop_clients()
        await super().shutdown(sockets)

    async def _drop_clients(self) -> None:
        """Answers 503 to requests that are still in progress, and closes all connections."""
        if tasks := list(self.server_state.tasks):
            log.info("Stopping: requests in progress answered with 503: %d", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_LATE_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Waits until `is_over()`, but for at most `seconds`, and only until a second Ctrl-C."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not is_over() and loop.time() < end and not self._skips_waiting:
            await asyncio.sleep(0.02)

    def _has_no_clients(self) -> bool:
        """Whether all clients have gone."""
        return not (self.server_state.connections or self.server_state.tasks)

    def _make_protocol(self) -> asyncio.Protocol:
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accepts the connections waiting in the listener's backlog, which closing it would reset."""
    accepted = []
    while True:
        try:
            accepted.append(listener.accept()[0])
        except BlockingIOError:
            # `accept` lets other threads run, for milliseconds if they are busy, and more clients may have connected
            if not _num_waiting(listener):
                return accepted
        except OSError:  # too many open files
            return accepted


def _num_waiting(listener: socket.socket) -> int:
    """Connections waiting to be accepted; 0 if the system does not say. Lets no other thread run."""
    if sys.platform != "linux":
        return 0
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    return int.from_bytes(info[24:], sys.byteorder)  # tcpi_unacked, which is this number for a listener
