"""`bench serve` as typed, with a tiny bundle, and its clients against fake servers."""

import contextlib
import csv
import dataclasses
import importlib
import itertools
import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import options_of
from resnet_tpu.performance.bench import compare, load, runtimes, server
from resnet_tpu.performance.bench.bundle import make_bundle
from resnet_tpu.performance.bench.load import Load
from resnet_tpu.performance.bench.photos import draw_photos
from resnet_tpu.performance.bench.serve import ServeBenchOptions, bench_serve
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import load_classifier

pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bundle of a ResNet-8 of width 4 at 32 px."""
    config = Config().replace(resnet_depth=8, resnet_width=4, image_size=32, export_forms="onnx,stablehlo")
    return make_bundle(config, tmp_path_factory.mktemp("bundle"), ["a", "b", "c"])


@pytest.mark.long
def test_a_bundle_alone_and_over_http(bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, picture = tmp_path / "serve.json", tmp_path / "serve.png"
    files = [f"--output={output}", f"--picture={picture}"]
    arguments = [bundle, "--quick", "--peers=onnxruntime", "--clients=3", "--format=csv", *files]
    assert cli.main(["bench", "serve", *arguments]) == 0
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert [row[0] for row in rows] == [
        "runtime", "resnet-tpu, onnx", "resnet-tpu, stablehlo", "ONNX Runtime",
        "clients", "multipart, 3", "json, 3",
    ]  # fmt: skip
    assert rows[3][5] == "1.00"
    assert picture.read_bytes().startswith(b"\x89PNG")
    record = json.loads(output.read_text())
    assert record["figures"]["bundle"]["network"] == "ResNet-8"
    (run,) = record["figures"]["runs"]["HTTP"]
    assert run["json_3_refused"] == {}
    assert min(run["multipart_3_images_per_sec"], run["http_ms"], run["decode_ms"], run["run_ms"]) > 0
    assert run["multipart_3_requests"] >= 3


@pytest.mark.slow
def test_without_a_bundle_one_is_made_with_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--resnet_depth=8", "--image_size=32", "--clients=2", "--rounds=2"]
    assert cli.main(["bench", "serve", "--quick", "--peers=none", "--format=markdown", *given]) == 0
    shown = capsys.readouterr().out
    assert all(f"| resnet-tpu, {form} |" in shown for form in ("onnx", "int8", "stablehlo"))
    assert "ResNet-8, 32 px" in shown or "One photo at a time: " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients=1,none"], "clients: got 1,none, expected positive numbers separated by commas"),
        (["--clients=0"], "clients: got 0, expected positive numbers"),
        (["nowhere"], "Bundle: got nowhere, expected a folder with bundle.json"),
        ([".", "--peers=tensorflow"], "peers: got tensorflow, expected some of onnxruntime, torch"),
        (["--rounds=0"], "rounds: got 0, expected at least 1."),
        (["exported", "--resnet_depth=18"], "BUNDLE: got one, and resnet_depth, expected one of them."),
    ],
)
def test_mistakes(arguments: list[str], message: str, refusal: Callable[..., str]) -> None:
    assert message in refusal("bench", "serve", *arguments)


def test_bare_onnx_runtime_computes_what_the_bundle_computes(bundle: str) -> None:
    opened = open_bundle(bundle)
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    (bare,) = runtimes.RUNTIMES[runtimes.BARE].open(opened)(images)
    np.testing.assert_array_equal(bare, load_classifier(opened, "onnx")(images))


@pytest.mark.long
def test_peers_run_only_what_is_the_same_network(bundle: str, tmp_path: Path) -> None:
    chosen, notes = runtimes.choose(open_bundle(bundle), runtimes.RUNTIMES)
    assert chosen == ["onnx", "stablehlo", "onnxruntime"]
    assert notes == [
        "Left out: resnet-tpu, int8, the bundle has no int8.",
        *(f"Left out: {title}, which has no such network." for title in ("PyTorch", "torch.compile", "Keras")),
    ]
    config = Config().replace(resnet_depth=18, image_size=64, export_forms="stablehlo")
    notes = runtimes.choose(open_bundle(make_bundle(config, tmp_path, ["a", "b"])), runtimes.RUNTIMES)[1]
    assert "Left out: PyTorch, which has no such network." not in notes
    assert "Left out: Keras, which has no such network." in notes  # its ResNets begin at 50 layers


def test_no_note_on_peers_that_were_not_requested(bundle: str) -> None:
    asked = [*runtimes.OURS, *compare.requested_peers("none", runtimes.RUNTIMES)]
    chosen, notes = runtimes.choose(open_bundle(bundle), asked)
    assert chosen == ["onnx", "stablehlo"]
    assert notes == ["Left out: resnet-tpu, int8, the bundle has no int8."]


def test_a_runtime_is_measured_without_jax() -> None:
    code = "import sys, resnet_tpu.performance.bench.runtimes; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pytorch_takes_the_same_images(tmp_path: Path) -> None:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision built for another torch
        pytest.skip(f"no usable torchvision: {error}")
    config = Config().replace(resnet_depth=18, image_size=64, export_forms="stablehlo")
    bundle = open_bundle(make_bundle(config, tmp_path, ["a", "b"]))
    assert runtimes.RUNTIMES["torch"].open(bundle)(np.zeros((2, 64, 64, 3), np.uint8)).shape == (2, 2)


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The URL of a fake server that answers the requests of a client with these in turn; an empty one hangs up."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            received, rest = b"", itertools.cycle(answers)
            while data := self.request.recv(65536):
                received += data
                while b"--a-boundary-between-photos--\r\n" in received:
                    received = received.partition(b"--a-boundary-between-photos--\r\n")[2]
                    answer = next(rest)
                    if not answer:
                        return
                    for part in (answer[:20], answer[20:]):
                        self.request.sendall(part)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A load of three clients with two photos for a fifth of a second."""
    folder = tmp_path_factory.mktemp("photos")
    draw_photos(folder, 2, height=40, width=50)
    return Load("", "m", "multipart", sorted(map(str, folder.glob("*/*"))), 3, 0.2, 0.05)


def test_clients_count_whole_answers_and_tell_refusals_apart(asked: Load) -> None:
    with answering(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\n{}") as url:
        figures = load.measure(dataclasses.replace(asked, url=url))
        assert figures["images_per_sec"] > 0
        assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"]
        assert figures["refused"] == {}
    for answer, message in (
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "answers of status {'503': "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "an answer without Content-Length"),
        (b"", "a connection that broke off"),
    ):
        with answering(answer) as url, pytest.raises(UserError, match=message):
            load.measure(dataclasses.replace(asked, url=url))


def test_what_a_server_refuses_is_no_image(asked: Load) -> None:
    good, busy = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    with answering(good, busy, busy) as url:
        figures = load.measure(dataclasses.replace(asked, url=url))
    # of each of the three clients, two in three answers are refusals
    assert abs(figures["refused"]["503"] - 2 * figures["requests"]) <= 2 * 3
    assert figures["images_per_sec"] > 0


@pytest.mark.long
def test_a_server_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    message = r"(?s)resnet-tpu serve: got no start.*expected a folder with bundle\.json"
    with pytest.raises(UserError, match=message), server.running([str(tmp_path)]):
        pass


def test_no_option_has_two_meanings() -> None:
    assert not set(options_of(ServeBenchOptions)) & set(Config().flat())
    assert bench_serve.__doc__
