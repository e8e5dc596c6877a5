"""A small bundle, images for it, and servers in separate processes."""

import contextlib
import dataclasses
import io
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pytest
from PIL import Image

from resnet_tpu.data.pixels.preprocess import eval_image
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes
from resnet_tpu.serving.export.bundle import Form, open_bundle, write_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.export.fold import fold
from resnet_tpu.serving.export.onnx import write_onnx
from resnet_tpu.serving.export.stablehlo import write_stablehlo
from resnet_tpu.training.inference.trained import Trained

SIZE, CLASSES = 32, ["daisy", "dandelion", "roses", "sunflowers", "tulips"]


def make_images() -> list[bytes]:
    """Image files of several sizes and formats."""
    rng = np.random.default_rng(1)
    files = []
    for index in range(16):
        height, width = rng.integers(20, 90, 2)
        low = rng.integers(0, 256, (4, 4, 3), np.uint8)
        picture = Image.fromarray(low).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6 if index % 5 == 1 else 1  # some are stored rotated
        picture.save(buffer, ("JPEG", "PNG", "JPEG", "WEBP")[index % 4], exif=exif)
        files.append(buffer.getvalue())
    return files


def decode(images: list[bytes]) -> np.ndarray:
    """The network's input for these images, uint8 [images, SIZE, SIZE, 3]."""
    out = np.empty((len(images), SIZE, SIZE, 3), np.uint8)
    for index, image in enumerate(images):
        eval_image(image, SIZE, out[index], honour_exif=True)
    return out


def write_small_bundle(folder: Path, pixels: np.ndarray) -> None:
    """Writes a bundle of a small network with random weights that tells these images apart into this folder."""
    config = Config().replace(
        resnet_depth=8, resnet_width=4, precision="float32", image_size=SIZE, num_label_classes=len(CLASSES)
    )
    network = create_network(config.model, num_classes=len(CLASSES), image_size=SIZE)
    params, batch_stats = network.init(0)
    mesh = meshes.make_mesh(1)
    folded = fold(Trained("", 3, config, CLASSES, network, params, batch_stats, mesh))
    session = onnxruntime.InferenceSession(write_onnx(folded)["model.onnx"])
    logits = np.asarray(session.run(["logits"], {"images": pixels})[0])
    scale, dense = 2 / logits.std(0), params["dense"]
    params["dense"] = {"kernel": dense["kernel"] * scale, "bias": (dense["bias"] - logits.mean(0)) * scale}
    folded = fold(Trained("", 3, config, CLASSES, network, params, batch_stats, mesh))
    card = {
        "name": "flowers", "network": "ResNet-8", "class_names": CLASSES, "image_size": SIZE,
        "resize_method": "bicubic", "step": 3, "metrics": {"split": "test", "top_1_accuracy": 0.91},
    }  # fmt: skip
    forms: list[tuple[Form, Callable[[], Mapping[str, bytes]]]] = [
        ("onnx", lambda: write_onnx(folded)),
        ("stablehlo", lambda: write_stablehlo(folded)),
    ]
    write_bundle(str(folder), card, config, forms)


@dataclasses.dataclass
class Server:
    """A running `resnet-tpu serve`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def wait_for(self, text: str) -> None:
        """Waits until the log contains this text."""
        for _ in range(1200):
            if text in self.log.read_text():
                return
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} in {self.log.read_text()}")

    def connect(self) -> socket.socket:
        """Opens a connection to the server."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def ask(self, *parts: bytes) -> bytes:
        """Sends these bytes and returns what the server sends until it closes the connection."""
        received = b""
        with self.connect() as connection:
            with contextlib.suppress(
                ConnectionError
            ):  # it may close before we finish; what it sent is there all the same
                for part in parts:
                    connection.sendall(part)
            with contextlib.suppress(ConnectionError):
                while chunk := connection.recv(65536):
                    received += chunk
        return received

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Resident memory of its process in MB; VmHWM: the peak since the last `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)[0]) / 1000

    def forget_peak(self) -> None:
        """Resets VmHWM to the memory resident now, so that a test is not blamed for the peak of an earlier one."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def run_server(folder: Path, *arguments: object) -> Iterator[Server]:
    """Runs `resnet-tpu serve` with these arguments on a free port until the block ends; its log is in this folder."""
    log = folder / "log.txt"
    command = [sys.executable, "-m", "resnet_tpu", "serve", *map(str, arguments), "--port=0"]
    with log.open("w") as file, subprocess.Popen(command, stderr=file, text=True) as process:
        server = Server(process, "", log)
        try:
            for _ in range(1200):
                if found := re.search(r"Serving at (http://\S+)", log.read_text()):
                    server.url = found[1]
                    break
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            yield server
        finally:
            process.kill()


@pytest.fixture(scope="module", autouse=True)
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients read no certificates, which takes most of the time of a short request: nothing is encrypted here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


@pytest.fixture(scope="session")
def images() -> list[bytes]:
    """Image files of several sizes and formats."""
    return make_images()


@pytest.fixture(scope="session")
def pixels(images: list[bytes]) -> np.ndarray:
    """The network's input for these images, uint8 [images, SIZE, SIZE, 3]."""
    return decode(images)


@pytest.fixture(scope="session")
def export_dir(tmp_path_factory: pytest.TempPathFactory, pixels: np.ndarray) -> Path:
    """A folder with a bundle of a small network that tells these images apart."""
    folder = tmp_path_factory.mktemp("exports")
    write_small_bundle(folder, pixels)
    return folder


@pytest.fixture(scope="session")
def expected(export_dir: Path, pixels: np.ndarray) -> np.ndarray:
    """The probabilities [images, classes] of the images, each classified by itself."""
    classify = load_classifier(open_bundle(str(export_dir)), "onnx")
    found = np.concatenate([classify(pixels[index : index + 1]) for index in range(len(pixels))])
    assert len(set(found.argmax(1))) > 2
    return found


StartServer = Callable[..., contextlib.AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> StartServer:
    """Starts `resnet-tpu serve` with these arguments on a free port; it ends with the `with` block."""
    return lambda *arguments: run_server(tmp_path_factory.mktemp("server"), *arguments)


@pytest.fixture(scope="session")
def server(export_dir: Path, start_server: StartServer) -> Iterator[Server]:
    """A server of the bundle with the usual options."""
    with start_server(export_dir) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client of that server."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
