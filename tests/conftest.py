"""Set-up for all tests: 8 virtual CPU devices, one compilation cache, the location of the reference data, fixtures."""

import functools
import gc
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

# Must come before jax is imported. XLA sizes its thread pool by NPROC; with fewer threads than devices, steps with a
# collective can deadlock.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Each process, one per core, trains many times: none must keep the memory of its largest training run.
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"
os.environ.setdefault("XDG_CACHE_HOME", str(Path(tempfile.gettempdir()) / f"resnet_tpu_tests_{os.getuid()}"))

# By default, training caches only programs that take half a second or more to compile. Tiny networks take less.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(os.environ["XDG_CACHE_HOME"]) / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a slow disk must not fail a test
settings.load_profile("patient")

# A process that a shell starts in the background ignores Ctrl-C, and under nohup SIGHUP; the programs that the tests
# interrupt would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLDEN = "RESNET_TPU_GOLDEN"


SMALL_GOLDEN = Path(__file__).parent / "golden"


def _golden_folder() -> Path:
    """The folder of the original program's outputs: the one configured, else the full set, else the small one."""
    if named := os.environ.get(GOLDEN):
        if not (Path(named) / "model").is_dir():
            raise pytest.UsageError(f"{GOLDEN}: got {named}, expected a folder laid out like tests/golden.")
        return Path(named).resolve()
    whole = SHARED / "golden"
    return whole if whole.is_dir() else SMALL_GOLDEN


@functools.cache
def _networks(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("model/*/meta.json"))


def _reference(name: str) -> Path:
    if not (SHARED / name).is_dir():
        pytest.skip(f"reference data '{name}' is not beside this checkout")
    return SHARED / name


def pytest_report_header() -> str:
    return f"outputs of the original: {_golden_folder()}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Records the version of each program that a test compares with, or skips the test."""
    for marker in item.iter_markers("peer"):
        for name in marker.args:
            try:
                item.user_properties.append(("peer", f"{name} {metadata.version(name)}"))
            except metadata.PackageNotFoundError:
                pytest.skip(f"{name} is not installed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for report in terminalreporter.getreports("passed") if report.when == "call"]
    peers = Counter(value for report in reports for name, value in report.user_properties if name == "peer")
    if peers:
        checked = ", ".join(f"{peer} ({count} tests)" for peer, count in sorted(peers.items()))
        terminalreporter.write_line(f"Held against: {checked}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests with a `golden_case` for each network whose outputs are at hand; only the small set is not `long`.

    For a `golden_step`, whose network takes seconds to compile for training, only the first is not `long`.
    """
    names = _networks(_golden_folder())
    small = [name for name in names if name in _networks(SMALL_GOLDEN)] or names[:2]
    for fixture, short in (("golden_case", small), ("golden_step", small[:1])):
        if fixture in metafunc.fixturenames:
            cases = [pytest.param(name, marks=[] if name in short else pytest.mark.long) for name in names]
            metafunc.parametrize(fixture, cases, scope="module")


def pytest_collection_finish() -> None:
    """Exempts long-lived objects from garbage collection: walking them took a fifth of the tracing time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Path]:
    """Finds the path of an output of the original program's own code; skips the test if it is not at hand."""
    folder = _golden_folder()

    def find(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"{name} is not among the outputs of the original in {folder}; {GOLDEN} names a larger set")
        return folder / name

    return find


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `resnet-tpu` with invalid arguments in an empty folder. Returns its only output, a one-line message."""
    from resnet_tpu import cli

    monkeypatch.chdir(tmp_path)

    def refuse(*words: str) -> str:
        assert cli.main(words) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1), shown.err
        assert not list(tmp_path.iterdir())
        return shown.err

    return refuse


@pytest.fixture(scope="module")
def blank_curves() -> Iterator[None]:
    """Leaves the pictures of curves empty: drawing one takes longer than training a small network."""
    from resnet_tpu.reports.run_curves import curves_path
    from resnet_tpu.training import loop

    def leave_empty(model_dir: str) -> None:
        picture = Path(curves_path(model_dir))
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", leave_empty)
        yield


@pytest.fixture
def growth_mb() -> Callable[[], float]:
    """Returns by how many MB the peak of this process's memory exceeds that at the beginning of the test."""

    def peak() -> int:
        status = Path("/proc/self/status").read_text()
        return int(re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[0])

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which may come from an earlier test
    before = peak()
    return lambda: (peak() - before) / 1000


@pytest.fixture(scope="session")
def photos() -> Path:
    """Folder of real photos: flowers, ImageNet samples."""
    return _reference("data")


@pytest.fixture(scope="session")
def spec() -> Path:
    """Folder of facts about the original, such as the names of its variables."""
    return _reference("spec")
