"""What all tests share: 8 virtual CPU devices, one compilation cache, and where reference data lies."""

import os
import signal
import tempfile
from pathlib import Path

# Before jax is imported. XLA sizes its thread pool by NPROC; with fewer threads than devices, steps that hold a
# collective can wait for each other for ever.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Many trainings in a process, and a process for each core: they are not to keep the memory of the largest.
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"
os.environ.setdefault("XDG_CACHE_HOME", str(Path(tempfile.gettempdir()) / f"resnet_tpu_tests_{os.getuid()}"))

import pytest

# Started in the background, a shell's child ignores Ctrl-C, and so would the programs that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared"


def _reference(name: str) -> Path:
    if not (SHARED / name).is_dir():
        pytest.skip(f"reference data '{name}' is not beside this checkout")
    return SHARED / name


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of outputs of the original program's own code."""
    return _reference("golden")


@pytest.fixture(scope="session")
def photos() -> Path:
    """Folder of real photos: flowers, ImageNet samples."""
    return _reference("data")


@pytest.fixture(scope="session")
def spec() -> Path:
    """Folder of facts about the original, such as the names of its variables."""
    return _reference("spec")
