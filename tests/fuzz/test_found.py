"""Every seed and every input that fuzzing found is handled quickly, in little memory, and without an error."""

import contextlib
import importlib.util
import resource
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent
TARGETS = sorted((FOLDER / "targets").glob("*.py"))
INPUTS = [
    path
    for target in TARGETS
    for kind in ("seeds", "found")
    for path in sorted((FOLDER / kind / target.stem).glob("*"))
]
MORE_BYTES = 2 << 30


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}/{path.name}")
def test_an_input_that_was_found(path: Path) -> None:
    target = load(FOLDER / "targets" / f"{path.parent.name}.py")
    with at_most(MORE_BYTES):
        target.one_input(path.read_bytes())


@pytest.mark.parametrize("target", TARGETS, ids=lambda path: path.stem)
def test_every_target_has_seeds_and_takes_nothing(target: Path) -> None:
    assert any(path.parent.name == target.stem for path in INPUTS)
    load(target).one_input(b"")


LOADED: dict[Path, ModuleType] = {}


def load(path: Path) -> ModuleType:
    """The module of a target."""
    if path not in LOADED:
        spec = importlib.util.spec_from_file_location(f"fuzz_{path.stem}", path)
        assert spec
        assert spec.loader
        LOADED[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(LOADED[path])
    return LOADED[path]


@contextlib.contextmanager
def at_most(num_bytes: int) -> Iterator[None]:
    """Limits the memory that the process may allocate in addition, if the system tells how much it has now."""
    statm = Path("/proc/self/statm")
    before = resource.getrlimit(resource.RLIMIT_AS)
    if statm.exists():
        has = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
