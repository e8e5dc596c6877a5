"""Code that these scripts share, besides `resnet_tpu.performance.bench`: command line, comparisons and reports."""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resnet_tpu.performance.bench import compare, record
from resnet_tpu.performance.bench.compare import Outputs
from resnet_tpu.performance.bench.figures import markdown
from resnet_tpu.system.program import run_program

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks") / "results"


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
        "--output", type=Path,
        help="JSON file for the figures. Default: benchmarks/results/<date>-<name>.json, and none with --quick.",
    )  # fmt: skip
    return parser


def worker(module: str, *arguments: object) -> list[str]:
    """The command that runs a module of this folder in a separate process."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


def alternate(
    commands: Mapping[str, Sequence[str]], options: argparse.Namespace, *, round_option: str = ""
) -> dict[str, list[dict[str, Any]]]:
    """Runs `compare.alternate` with the given options; the commands can import this folder's modules."""
    return compare.alternate(commands, rounds=options.rounds, environment=within_reach(), round_option=round_option)


def within_reach() -> dict[str, str]:
    """The environment variables with which a `worker` finds the modules of this folder."""
    return {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def report(name: str, text: str, figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Prints the text and writes the figures as JSON."""
    print(text)
    path = options.output
    if path is None and not options.quick:
        path = CHECKOUT / RESULTS / f"{datetime.now(UTC).date().isoformat()}-{name}.json"
    if path is not None:
        record.write(str(path), ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]], figures)


def compared(what: str, metric: str, ours: str, peer: str, outputs: Outputs) -> Comparison:
    """The comparison of two programs by the figures called `metric` in their output."""
    return Comparison(what, metric, ours, peer, {name: [run[metric] for run in outputs[name]] for name in (ours, peer)})


def report_ratios(name: str, comparisons: Sequence[Comparison], options: argparse.Namespace) -> None:
    """Calls `report` for comparisons."""
    rows = [asdict(row) | {"ratios": row.ratios()} for row in comparisons]
    report(name, table(comparisons), {"comparisons": rows}, options)


def table(comparisons: Sequence[Comparison]) -> str:
    """Markdown: the medians of both, the median of the rounds' ratios and their range."""
    rows = []
    for row in comparisons:
        ours, peer = row.medians()
        what = f"{row.what}, {row.metric.replace('_', ' ')}"
        rows.append((what, f"{ours:.4g}", f"{row.peer}: {peer:.4g}", *compare.ratio_cells(row.ratios())))
    return markdown(("what", "ours", "peer", "ours / peer", "range over rounds"), rows)


def main(program: Callable[[], None]) -> None:
    """Runs a benchmark's program; a UserError becomes one message and exit code 2."""
    sys.exit(run_program(lambda _: program()))
