"""Photos to prepare, drawn on the spot."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image
from rich.console import Console

from resnet_tpu.data.manifest import Manifest
from resnet_tpu.data.prepare import PrepareOptions, prepare

settings.register_profile("files", deadline=None)  # a busy disk is no failure
settings.load_profile("files")

Draw = Callable[..., Path]


def draw_image(path: Path, seed: int = 0, size: tuple[int, int] = (24, 18), mode: str = "RGB", **save: Any) -> Path:
    """Draws a smooth picture of its own for each seed, of `size` (width, height); the format by the name's end."""
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
    """A folder of three classes with 20, 10 and 10 JPEG photos of their own."""
    raw = tmp_path / "raw"
    for k, (name, count) in enumerate((("cat", 20), ("dog", 10), ("emu", 10))):
        for i in range(count):
            draw_image(raw / name / f"{i:03d}.jpg", 100 * k + i, size=(20 + i, 16 + k))
    return raw


@pytest.fixture(scope="session")
def run() -> Callable[..., Manifest]:
    """`prepare` with options as keywords, in this process unless told otherwise, and silent."""

    def run(raw: Path | str, out: Path | str, **options: Any) -> Manifest:
        return prepare(str(raw), str(out), PrepareOptions(**{"workers": 1, **options}), console=Console(quiet=True))

    return run


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, str]]:
    """Digests of the files of a prepared folder that must not depend on how the work was done, by name."""

    def contents(out: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir() if path.is_file()}

    return contents
