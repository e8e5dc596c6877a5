"""Generated photos to prepare."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from resnet_tpu.data.manifest import Manifest
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordWriter

Draw = Callable[..., Path]


def draw_image(path: Path, seed: int = 0, size: tuple[int, int] = (24, 18), mode: str = "RGB", **save: Any) -> Path:
    """Draws a smooth picture that depends on the seed, of `size` (width, height); the suffix sets the format."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse.convert(mode).save(path, **save)
    return path


@pytest.fixture(scope="session")
def draw() -> Draw:
    """`draw_image`."""
    return draw_image


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """A folder of three classes with 20, 10 and 10 distinct JPEG photos."""
    raw = tmp_path / "raw"
    for k, (name, count) in enumerate((("cat", 20), ("dog", 10), ("emu", 10))):
        for i in range(count):
            draw_image(raw / name / f"{i:03d}.jpg", 100 * k + i, size=(20 + i, 16 + k))
    return raw


@pytest.fixture(scope="session")
def run() -> Callable[..., Manifest]:
    """Runs `prepare` silently with options as keywords, by default in this process."""

    def run(raw: Path | str, out: Path | str, **options: Any) -> Manifest:
        return prepare(str(raw), str(out), PrepareOptions(**{"workers": 1, **options}), console=Console(quiet=True))

    return run


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, str]]:
    """Digests, by name, of those files in a prepared folder that must not depend on how the work was done."""

    def contents(out: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir() if path.is_file()}

    return contents


@pytest.fixture(scope="session")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """37 JPEG photos."""
    folder = tmp_path_factory.mktemp("photos")
    return [draw_image(folder / f"{i}.jpg", i, size=(24 + i, 50 - i)).read_bytes() for i in range(37)]


@pytest.fixture(scope="session")
def write_shards() -> Callable[[Path | str, list[bytes]], None]:
    """Writes up to 39 images as records with labels 1 ... n, in three shards each for training and validation."""

    def write_shards(folder: Path | str, encoded: list[bytes]) -> None:
        for shard in range(3):
            for split in ("train", "validation"):
                with RecordWriter(f"{folder}/{split}-{shard:05}-of-00003") as writer:
                    for i in range(13 * shard, min(13 * (shard + 1), len(encoded))):
                        features = {
                            "image/encoded": encoded[i],
                            "image/class/label": i + 1,
                            "image/filename": f"{i}.jpg",
                        }
                        writer.write(encode_example(features))

    return write_shards


@pytest.fixture
def records(tmp_path: Path, encoded: list[bytes], write_shards: Callable[[Path | str, list[bytes]], None]) -> Path:
    """The photos as records."""
    write_shards(tmp_path, encoded)
    return tmp_path


@pytest.fixture
def damaged(tmp_path: Path, encoded: list[bytes], write_shards: Callable[[Path | str, list[bytes]], None]) -> Path:
    """Like `records`, but record 5 fails its checksum, and images 20 and 21 cannot be decoded."""
    write_shards(tmp_path, [image[:-60] if i in (20, 21) else image for i, image in enumerate(encoded)])
    for split in ("train", "validation"):
        path = tmp_path / f"{split}-00000-of-00003"
        data = bytearray(path.read_bytes())
        data[data.index(b"5.jpg")] ^= 1
        path.write_bytes(data)
    return tmp_path


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Waits until a condition holds; fails after a minute."""

    def wait_until(condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    return wait_until


@pytest.fixture(scope="session")
def is_running() -> Callable[[int], bool]:
    """Whether a process exists and is not just a zombie."""

    def is_running(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return is_running
