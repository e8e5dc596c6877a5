"""One program beside another: alternating runs, medians, ratios, and a record of where and how they were measured.

Every run is a process of its own. Within one process the thread pools of two frameworks disturb each other, and the one
that allocates first decides how memory behaves for the other. Rounds alternate, and every second round runs backwards
(A B, B A, A B ...), so that a machine growing slower or faster meets all programs alike.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resnet_tpu.errors import UserError

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks") / "results"
PACKAGES = (
    "resnet-tpu", "jax", "jaxlib", "flax", "grain", "numpy", "scipy", "opencv-python-headless", "simplejpeg",
    "pillow", "torch", "torchvision", "tensorflow", "tensorflow-cpu",
)  # fmt: skip

KEEP_HEAP = (
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:"
    "glibc.malloc.mmap_threshold=17179869184:glibc.malloc.trim_threshold=17179869184"
)
"""Settings of the C library (Linux, glibc >= 2.35) that ask for huge pages and never give memory back."""


@dataclass(frozen=True)
class Contender:
    """One of the programs compared: round number -> command, whose last line of output is a JSON object of figures."""

    name: str
    command: Callable[[int], Sequence[str]]


@dataclass(frozen=True)
class Comparison:
    """One metric of a program and its peer: a figure per round, in the order of the rounds."""

    what: str
    metric: str
    ours: str
    peer: str
    figures: Mapping[str, Sequence[float]]

    def medians(self) -> tuple[float, float]:
        """The middle figures of the program and of its peer."""
        return statistics.median(self.figures[self.ours]), statistics.median(self.figures[self.peer])

    def ratios(self) -> list[float]:
        """The program's figure over its peer's, round by round."""
        return [ours / theirs for ours, theirs in zip(self.figures[self.ours], self.figures[self.peer], strict=True)]


def make_parser(name: str, text: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The command line of the benchmark `name`, with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="Alternating rounds. Default: %(default)s.")
    parser.add_argument(
        "--quick", action="store_true", help="One tiny round: shows that the script works; the figures mean nothing."
    )
    parser.add_argument(
        "--keep_heap", action="store_true",
        help="Run all programs with GLIBC_TUNABLES that keep freed memory and use huge pages. Both gain: a training "
        "step on a CPU otherwise spends much of its time on page faults.",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path,
        help="JSON file for the figures. Default: benchmarks/results/<date>-<name>.json, and none with --quick.",
    )  # fmt: skip
    return parser


def require(peer: str, module: str, package: str) -> None:
    """Raises UserError when the peer's Python module is not installed."""
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"{peer}, the peer of this benchmark", f"no module {module!r}", "it to be installed",
            f"It is no dependency of resnet-tpu: pip install {package}.",
        )  # fmt: skip


def worker(module: str, *arguments: object) -> list[str]:
    """The command that runs a module of this folder in a process of its own."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


def alternate(contenders: Sequence[Contender], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What each contender printed in each round. Raises UserError with its error output when one fails."""
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    if options.keep_heap:
        environment["GLIBC_TUNABLES"] = KEEP_HEAP
    outputs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for number in range(options.rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            start = time.perf_counter()
            figures = _run(contender.name, contender.command(number), environment)
            outputs[contender.name].append(figures)
            seconds = time.perf_counter() - start
            print(f"round {number + 1}/{options.rounds}, {contender.name}, {seconds:.0f} s: {figures}", file=sys.stderr)
    return outputs


def _run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    raise UserError(
        f"Benchmark of {name}",
        f"exit code {done.returncode}\n{done.stderr.strip()[-2000:]}\n",
        "exit code 0 and a line of JSON",
        f"Run it alone: {shlex.join(command)}",
    )


def compare(
    what: str, metric: str, ours: str, peer: str, outputs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Comparison:
    """The figures called `metric` out of what two contenders printed."""
    return Comparison(what, metric, ours, peer, {name: [run[metric] for run in outputs[name]] for name in (ours, peer)})


def table(comparisons: Sequence[Comparison]) -> str:
    """Markdown: the medians of both, the median of the rounds' ratios and their range."""
    lines = ["| what | ours | peer | ours / peer | range over rounds |", "|---|---|---|---|---|"]
    for row in comparisons:
        ours, peer = row.medians()
        ratios = row.ratios()
        lines.append(
            f"| {row.what}, {row.metric.replace('_', ' ')} | {ours:.4g} | {row.peer}: {peer:.4g} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    return "\n".join(lines)


def report(name: str, text: str, figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Prints the text and writes the figures, the machine, the versions and the command as JSON."""
    print(text)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = options.output
    if path is None and not options.quick:
        path = CHECKOUT / RESULTS / f"{today}-{name}.json"
    if path is None:
        return
    content = {
        "date": today,
        "command": shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
        "machine": machine(),
        "figures": figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"\nWritten: {path}")


def report_ratios(name: str, comparisons: Sequence[Comparison], options: argparse.Namespace) -> None:
    """`report` of comparisons."""
    rows = [asdict(row) | {"ratios": row.ratios()} for row in comparisons]
    report(name, table(comparisons), {"comparisons": rows}, options)


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and the version of everything that takes part."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def draw_photos(folder: Path) -> None:
    """Draws a few JPEGs of two classes, for trying a benchmark without data."""
    import numpy as np
    import simplejpeg

    rng = np.random.default_rng(0)
    for name in ("dark", "light"):
        (folder / name).mkdir()
        for number in range(30):
            pixels = rng.integers(0, 128, (240, 320, 3), np.uint8) + np.uint8(127 * (name == "light"))
            (folder / name / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))


def main(program: Callable[[], None]) -> None:
    """Runs a benchmark's program; an error of the user's is one message and exit code 2."""
    try:
        program()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
