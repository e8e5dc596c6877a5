"""The life cycle of a server: start, newer bundles, stop."""

import base64
import concurrent.futures
import dataclasses
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import uvicorn

from resnet_tpu import cli
from resnet_tpu.errors import UserError
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.server.models import LoadedBundle, Loader, Model
from resnet_tpu.serving.server.options import ServeOptions
from resnet_tpu.serving.server.server import accept_waiting, serve

if TYPE_CHECKING:
    from tests.serving.server.conftest import StartServer

PREDICT = "/v1/models/flowers:predict"


def add_version(export_dir: Path, version: int, *, damage: bool = False) -> None:
    """Adds a copy of the oldest bundle under another number, atomically."""
    oldest = min(path for path in export_dir.iterdir() if path.name.isdigit())
    aside = export_dir / f".{version}"
    shutil.copytree(oldest, aside)
    if damage:
        content = bytearray((aside / "model.onnx").read_bytes())
        content[1000:2000] = bytes(1000)
        (aside / "model.onnx").write_bytes(content)
    aside.rename(export_dir / str(version))


@dataclasses.dataclass
class Load:
    """Clients that send one request after another until told to stop, and the outcome."""

    url: str
    body: bytes
    answers: list[httpx.Response] = dataclasses.field(default_factory=list)
    refused: int = 0
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def ask(self) -> None:
        """Runs one client. Any error except a refused connection is raised."""
        with httpx.Client(base_url=self.url, timeout=60, verify=False) as client:  # reading certificates takes long
            while not self.stop.is_set():
                try:
                    self.answers.append(client.post(PREDICT, content=self.body))
                except httpx.ConnectError:
                    self.refused += 1
                    return


def under_load(url: str, body: bytes, work: Callable[[Load], None], clients: int = 12) -> Load:
    """Does `work` while clients send requests, and returns the load with their results."""
    load = Load(url, body)
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(load.ask) for _ in range(clients)]
        try:
            while len(load.answers) < 4 * clients and not any(future.done() for future in asking):
                time.sleep(0.01)  # until all clients are under way: one that stalls may find its connection closed
            work(load)
        finally:
            load.stop.set()
        for future in asking:
            future.result()
    return load


@pytest.fixture
def body(images: list[bytes]) -> bytes:
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in images[:4]]}).encode()


def test_newer_bundles_take_over_under_load_and_broken_ones_do_not(
    export_dir: Path, start_server: "StartServer", body: bytes, expected: np.ndarray, tmp_path: Path
) -> None:
    folder = tmp_path / "exports"
    shutil.copytree(export_dir, folder)
    (first,) = [int(path.name) for path in folder.iterdir()]
    with start_server(f"flowers={folder}", f"pinned={folder / str(first)}", "--reload_seconds=0.1") as server:

        def work(load: Load) -> None:
            add_version(folder, first + 1)
            server.wait_for(f"Serving flowers version {first + 1}")
            add_version(folder, first + 2, damage=True)
            server.wait_for(f"flowers: version {first + 1} is kept. Bundle, ")
            add_version(folder, first + 3)
            server.wait_for(f"Serving flowers version {first + 3}")
            count = len(load.answers)
            while len(load.answers) < count + 5:
                time.sleep(0.01)

        load = under_load(server.url, body, work, clients=4)
        assert {answer.status_code for answer in load.answers} == {200}
        for answer in (load.answers[0], load.answers[-1]):
            found = [row["probabilities"] for row in answer.json()["predictions"]]
            np.testing.assert_allclose(found, expected[:4], rtol=0, atol=1e-6)
        models = httpx.get(f"{server.url}/v1/models").json()["models"]
        assert models == [{"name": "flowers", "version": first + 3}, {"name": "pinned", "version": first}]
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'resnet_tpu_reloads_total{model="flowers",result="loaded"} 2.0' in metrics
        assert 'resnet_tpu_reloads_total{model="flowers",result="refused"} 1.0' in metrics
        assert server.log.read_text().count("is kept") == 1

        half = folder / str(first + 4)  # as while it is being copied, file by file
        half.mkdir()
        shutil.copy(folder / str(first) / "bundle.json", half)
        server.wait_for(f"flowers: version {first + 3} is kept. Bundle, ")
        shutil.copytree(folder / str(first), half, dirs_exist_ok=True)
        server.wait_for(f"Serving flowers version {first + 4}")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_under_load_every_request_is_answered(
    export_dir: Path, start_server: "StartServer", body: bytes, number: signal.Signals
) -> None:
    with start_server(export_dir) as server:

        def work(_: Load) -> None:
            assert server.stop(number) == 0

        load = under_load(server.url, body, work)
        assert {answer.status_code for answer in load.answers} == {200}
        assert load.refused == 12
        assert server.log.read_text().endswith("Stopping: answering requests in progress\nStopped.\n")


@pytest.mark.parametrize(
    ("seconds", "numbers"),
    [
        pytest.param(0.1, [signal.SIGTERM], marks=pytest.mark.long, id="late"),
        pytest.param(60, [signal.SIGTERM, signal.SIGINT], id="hurried"),
    ],
)
def test_unfinished_request_gets_an_answer_when_the_server_stops(
    export_dir: Path, start_server: "StartServer", seconds: float, numbers: list[signal.Signals]
) -> None:
    with start_server(export_dir, f"--drain_seconds={seconds}", f"--stop_seconds={seconds}") as server:
        with server.connect() as connection:
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")  # the body is awaited
            for number in numbers:
                server.process.send_signal(number)
                server.wait_for("Stopping")
            answer, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert {b"connection: close", b"retry-after: 1"} <= {*answer.split(b"\r\n")}
        assert json.loads(body)["error"].startswith("Server: got a request that it has no time to answer")
        assert server.process.wait(60) == 0
        assert server.log.read_text().endswith("Stopping: requests in progress answered with 503: 1\nStopped.\n")
        assert "Traceback" not in server.log.read_text()


def test_a_signal_that_comes_before_the_server_listens_is_not_lost(
    export_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_loop = uvicorn.Config.get_loop_factory

    def signalled(config: uvicorn.Config) -> object:
        signal.raise_signal(signal.SIGTERM)
        return make_loop(config)

    monkeypatch.setattr(uvicorn.Config, "get_loop_factory", signalled)
    serve([str(export_dir)], ServeOptions(port=0))  # returns


def test_a_server_in_the_background_of_a_script_ignores_its_ctrl_c(
    export_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, found = uvicorn.Server.startup, []

    async def started(server: uvicorn.Server, **options: Any) -> None:
        await start(server, **options)
        found.append(signal.getsignal(signal.SIGINT))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(uvicorn.Server, "startup", started)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell's `&` does, and processes inherit it
    try:
        serve([str(export_dir)], ServeOptions(port=0))
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [signal.SIG_IGN]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many wait")
def test_clients_that_come_while_the_last_ones_are_accepted_are_accepted_too() -> None:
    late: list[socket.socket] = []

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            try:
                return super().accept()
            except BlockingIOError:
                if len(late) < 3:  # as if from another thread, before the error is noticed
                    late.append(socket.create_connection(self.getsockname()))
                raise

    with Listener() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        with socket.create_connection(listener.getsockname()):
            accepted = accept_waiting(listener)
        assert len(accepted) == 1 + 3
        for connection in (*accepted, *late):
            connection.close()


def test_while_it_stops_it_is_not_ready_and_asks_clients_to_leave(
    export_dir: Path, start_server: "StartServer", body: bytes
) -> None:
    with start_server(export_dir, "--drain_seconds=30", "--access_log") as server:
        with httpx.Client(base_url=server.url) as first, httpx.Client(base_url=server.url, timeout=60) as second:
            for client in (first, second):
                assert client.get("/health/ready").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("Stopping")
            ready = first.get("/health/ready")
            assert (ready.status_code, ready.headers["connection"]) == (503, "close")
            assert second.post(PREDICT, content=body).status_code == 200
        assert httpx.get(f"{server.url}/health/ready").status_code == 503  # who comes when all have left is told too
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        entries = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    assert [entry["status"] for entry in entries] == [200, 200, 503, 200, 503]
    assert entries[-2] | {"time": "", "ms": 0} == {
        "time": "", "client": "127.0.0.1", "method": "POST", "path": PREDICT, "status": 200, "ms": 0, "images": 4
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.3, 0.6, 0.9])
def test_stopped_while_it_loads_a_newer_bundle_it_ends_in_order(
    export_dir: Path, start_server: "StartServer", tmp_path: Path, seconds: float
) -> None:
    """XLA compiles for about a second, in which Python cannot end."""
    folder = tmp_path / "exports"
    shutil.copytree(export_dir, folder)
    (first,) = [int(path.name) for path in folder.iterdir()]
    options = ("--form=stablehlo", "--reload_seconds=0.1", "--drain_seconds=0", "--stop_seconds=0")
    with start_server(f"flowers={folder}", *options) as server:
        add_version(folder, first + 1)
        time.sleep(seconds)
        assert server.stop() == 0


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")
def test_storage_that_does_not_answer_does_not_keep_it_from_stopping(
    export_dir: Path, start_server: "StartServer", tmp_path: Path
) -> None:
    """Who opens a file on which another process holds a lease waits until that gives it back, at most 45 s."""
    folder, asked = tmp_path / "exports", threading.Event()
    shutil.copytree(export_dir, folder)
    before = signal.signal(signal.SIGIO, lambda *_: asked.set())
    try:
        with (
            start_server(f"flowers={folder}", "--reload_seconds=0.1", "--stop_seconds=0") as server,
            (tmp_path / "bundle.json").open("w") as held,
        ):
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            newest = folder / "9999999999"
            newest.mkdir()
            (tmp_path / "bundle.json").rename(newest / "bundle.json")
            assert asked.wait(30)
            assert httpx.get(f"{server.url}/health").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
    finally:
        signal.signal(signal.SIGIO, before)


def test_a_pipe_in_place_of_a_bundle_does_not_end_the_search_for_newer_ones(export_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(export_dir, tmp_path, dirs_exist_ok=True)
    served = open_bundle(tmp_path)
    model, loader = Model("m", str(tmp_path), LoadedBundle(served, "onnx", Mock(), 1)), Mock()
    pipe = tmp_path / str(served.version + 1)
    pipe.mkdir()
    os.mkfifo(pipe / "bundle.json")
    model.reload(loader)
    assert model.current.bundle is served
    add_version(tmp_path, served.version + 2)
    model.reload(loader)
    assert loader.load.call_args.args[1].version == served.version + 2


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one message with which the command fails."""
    assert cli.main(["serve", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_unservable_bundles_and_options_are_refused_before_start(
    export_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(capsys, tmp_path, "--port=0").startswith(f"Bundle: got {tmp_path}, expected a folder with bundle.json")
    assert "'flowers' for both" in fails(capsys, export_dir, export_dir, "--port=0")
    assert "Bundle: got a/b=" in fails(capsys, f"a/b={export_dir}", "--port=0")
    assert "Name of a model: got 'my flowers', expected English letters" in fails(capsys, f"my flowers={export_dir}")
    assert "int8" in fails(capsys, export_dir, "--form=int8", "--port=0")
    assert "inference_batch_sizes: got 0,32" in fails(capsys, export_dir, "--inference_batch_sizes=0,32", "--port=0")
    assert "max_body_mb: got 32.0, expected at most max_pending_mb, 1.0" in fails(
        capsys, export_dir, "--max_pending_mb=1"
    )
    assert "max_image_megapixels: got 400" in fails(capsys, export_dir, "--max_image_megapixels=400")
    assert "max_images_per_request" in fails(capsys, export_dir, "--max_queue=1", "--port=0")
    assert "port: got 70000" in fails(capsys, export_dir, "--port=70000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Address: got 127.0.0.1:{port} (Address already in use)" in fails(capsys, export_dir, f"--port={port}")
    for host in ("127.0.0.1:80", "192.0.2.1", "a..é"):  # the second is nobody's address
        assert "Give --host an address of this machine" in fails(capsys, export_dir, f"--host={host}", "--port=0")


def test_a_server_starts_with_the_newest_bundle_that_it_can_load(
    export_dir: Path, start_server: "StartServer", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(export_dir, tmp_path, dirs_exist_ok=True)
    (first,) = [int(path.name) for path in tmp_path.iterdir()]
    add_version(tmp_path, first + 1)
    add_version(tmp_path, first + 2, damage=True)
    add_version(tmp_path, first + 3)
    (tmp_path / str(first + 3) / "model.onnx").write_bytes(b"")
    with start_server(tmp_path, "--reload_seconds=0.1") as server:
        assert httpx.get(f"{server.url}/v1/models").json()["models"] == [{"name": "flowers", "version": first + 1}]
        instead = f"flowers: version {first + 1} is served instead of a newer one. Bundle, {tmp_path}"
        lines = [line for line in server.log.read_text().splitlines() if line.startswith("flowers: ")]
        assert lines[0].startswith(f"{instead}/{first + 3}/model.onnx: got 0 bytes")
        assert lines[1].startswith(f"{instead}/{first + 2}/model.onnx: got a different checksum")
        server.wait_for(f"flowers: version {first + 1} is kept. Bundle, {tmp_path}/{first + 3}")
        refused = 'resnet_tpu_reloads_total{model="flowers",result="refused"} 1.0'
        assert refused in httpx.get(f"{server.url}/metrics").text
        add_version(tmp_path, first + 4)
        server.wait_for(f"Serving flowers version {first + 4}")
    for whole in (first, first + 1, first + 4):
        shutil.rmtree(tmp_path / str(whole))
    message = fails(capsys, tmp_path, "--port=0")  # that of the newest
    assert message.startswith(f"Bundle, {tmp_path}/{first + 3}/model.onnx: got 0 bytes")


def test_a_network_with_other_classes_than_its_bundle_names_is_not_served(
    export_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, network = open_bundle(str(export_dir)), Mock(return_value=np.zeros((32, 99), np.float32))
    monkeypatch.setattr("resnet_tpu.serving.server.models.load_classifier", Mock(return_value=network))
    expected = rf"got an output of shape \(32, 99\), expected 32 rows of {len(bundle.class_names)} logits"
    with pytest.raises(UserError, match=expected):
        Loader(ServeOptions(form="onnx"), Mock(), Mock()).load("m", bundle)


@pytest.mark.parametrize(
    ("number", "failing", "do"),
    [
        (errno.EAFNOSUPPORT, "socket", "Give --host an address of this machine"),
        (errno.EINVAL, "bind", "Give --host an address of this machine"),
        (errno.EACCES, "bind", "Choose a port of at least 1024 with --port"),
    ],
)
def test_an_address_that_the_system_refuses(
    number: int, failing: str, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without IPv6 there is no socket for `::`; `fe80::1` lacks its link; a port below 1024 may be for root alone."""
    opened = Mock()
    (opened if failing == "socket" else opened.return_value.bind).side_effect = OSError(number, "refused")
    monkeypatch.setattr(socket, "socket", opened)
    with pytest.raises(UserError, match=rf"Address: got :::80 \(refused\), expected .*\. {do}"):
        serve(["nowhere"], ServeOptions(host="::", port=80))


@pytest.mark.parametrize(("allowed", "refused"), [(0, "decode"), (1, "decode"), (2, "run")])
def test_a_server_that_may_not_start_its_threads_does_not_say_that_it_is_ready(
    allowed: int, refused: str, export_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a container's limit of processes is reached. Started for the first request, they would fail that one."""
    start, started = threading.Thread.start, []

    def start_within_limit(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_within_limit)
    message = fails(capsys, export_dir, "--num_parallel_calls=2", "--port=0")
    count = {"decode": 2, "run": 1}[refused]
    assert message.startswith(f"Threads to {refused}: got can't start new thread, expected {count} of them. Raise the")


def test_an_empty_host_is_not_every_address() -> None:
    with pytest.raises(UserError, match="host: got nothing, expected an address of this machine"):
        ServeOptions(host="")


@pytest.mark.parametrize("name", ["max_wait_ms", "request_timeout", "reload_seconds"])
def test_no_time_is_longer_than_timers_can_wait(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: got 10000000000.0, expected at most 1e\+06"):
        dataclasses.replace(ServeOptions(), **{name: 1e10})


def test_a_missing_extra_is_named(
    export_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith("resnet_tpu.serving.server.") and "options" not in name
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    expected = "serve: got no package 'uvicorn', expected it to be installed. pip install 'resnet-tpu[serve]'.\n"
    assert fails(capsys, export_dir) == expected


def test_a_bundle_that_is_named_with_a_slash_is_not_read_again(
    export_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(export_dir)
    model = Model("m", f"{bundle.path}/", LoadedBundle(bundle, "onnx", Mock(), 1))
    loader = Mock()
    monkeypatch.setattr("resnet_tpu.storage.files_below", Mock(side_effect=AssertionError))
    model.reload(loader)
    assert not loader.mock_calls  # nothing loaded, nothing refused


def test_where_the_newest_bundle_is_deleted_the_one_before_it_serves(
    export_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = open_bundle(str(export_dir))
    deleted = dataclasses.replace(older, path=f"{older.path}9", version=older.version + 1)
    model, loader, before = Model("m", str(export_dir), LoadedBundle(deleted, "onnx", Mock(), 1)), Mock(), Mock()
    before.bundle = older
    loader.load.return_value = before
    for _ in range(2):
        model.reload(loader)
    assert model.current is before
    assert loader.load.call_count == 1
    assert not caplog.messages  # no warning: a line of the log says which it serves


def test_where_the_newest_bundle_is_out_of_reach_it_is_kept(
    export_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older = open_bundle(str(export_dir))
    lost = dataclasses.replace(older, path=f"{older.path}9", version=older.version + 1)
    model, loader, stat = Model("m", str(export_dir), LoadedBundle(lost, "onnx", Mock(), 1)), Mock(), os.stat

    def refuse(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if str(path).startswith(lost.path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", refuse)
    model.reload(loader)
    assert not loader.load.mock_calls
    assert f"m: version {lost.version} is kept. Path {lost.path}/bundle.json: got permission denied" in caplog.text


def test_missing_folder_is_logged_once_each_time(
    export_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, bundle = tmp_path / "place", open_bundle(export_dir)
    model = Model("m", str(place), LoadedBundle(dataclasses.replace(bundle, path=str(place)), "onnx", Mock(), 1))
    for _ in range(2):
        for _ in range(2):
            model.reload(Mock())
        (place / "bundle.json").parent.mkdir()
        (place / "bundle.json").touch()
        model.reload(Mock())
        shutil.rmtree(place)
    told = f"Folder {place}: got no bundle, expected the one that is served, or a newer one."
    assert [told in line.getMessage() for line in caplog.records] == [True, True]


def test_a_bundle_that_may_be_read_now_is_tried_again(export_dir: Path) -> None:
    newest = open_bundle(str(export_dir))
    older = dataclasses.replace(newest, path="older", version=1)
    model, loader = Model("m", str(export_dir), LoadedBundle(older, "onnx", Mock(), 1)), Mock()
    loader.load.side_effect = PermissionError("no")
    for _ in range(2):
        model.reload(loader)
    assert loader.load.call_count == 1
    (Path(newest.path) / "bundle.json").chmod(0o644)
    model.reload(loader)
    assert loader.load.call_count == 2


def test_a_bundle_that_failed_for_a_passing_reason_is_tried_again(
    export_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older = dataclasses.replace(open_bundle(str(export_dir)), path="older", version=1)
    model, loader, newer = Model("m", str(export_dir), LoadedBundle(older, "onnx", Mock(), 1)), Mock(), Mock()
    loader.load.side_effect = [TimeoutError("the bucket"), TimeoutError("the bucket"), newer]
    now = Mock(return_value=1000.0)
    monkeypatch.setattr("resnet_tpu.serving.server.models.time.monotonic", now)
    model.reload(loader)
    model.reload(loader)  # not yet
    assert loader.load.call_count == loader.metrics.reloads.labels.return_value.inc.call_count == 1
    assert [message.split(":")[0] for message in caplog.messages] == ["m"]
    now.return_value += 1000
    model.reload(loader)  # in vain, which is counted but not logged again
    assert loader.load.call_count == loader.metrics.reloads.labels.return_value.inc.call_count == 2
    assert len(caplog.messages) == 1
    now.return_value += 1000
    model.reload(loader)
    assert model.current is newer
