"""Compares programs: alternating runs, medians and ratios.

Every run is a separate process. In one process, the thread pools of two frameworks would disturb each other, and the
one that allocates first would affect the other's memory. Every second round runs in reverse order (A B, B A, A B ...),
so that a machine that becomes slower or faster affects all programs alike.
"""

import contextlib
import importlib.util
import logging
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.performance.bench import child

log = logging.getLogger(__name__)

Outputs = Mapping[str, Sequence[Mapping[str, Any]]]
"""The figures that each program printed in each round, by its name."""


@dataclass(frozen=True)
class Peer:
    """A program to compare with: its readable name, and the Python module and package it needs, if any."""

    title: str
    module: str = ""
    package: str = ""


def choose_peers(asked: str, peers: Mapping[str, Peer]) -> tuple[list[str], list[str]]:
    """The `requested_peers` that are installed, and a line for each one left out because it is not."""
    names = requested_peers(asked, peers)
    missing = [name for name in names if peers[name].module and not is_installed(peers[name].module)]
    notes = [f"Left out: {peers[name].title}, not installed (pip install {peers[name].package})." for name in missing]
    return [name for name in names if name not in missing], notes


def requested_peers(asked: str, peers: Mapping[str, Peer]) -> list[str]:
    """The names of the peers to run if they are installed.

    asked: names separated by commas, `none`, or empty for all. Raises UserError for an unknown name, and for a named
    peer that is not installed.
    """
    names = [] if asked == "none" else list(dict.fromkeys(asked.split(",") if asked else peers))
    for name in names:
        if name not in peers:
            do = f"Name those to run.{nearest(name, peers)}"
            raise UserError("peers", name, f"some of {', '.join(peers)}, or none", do)
        if asked and peers[name].module:
            require(peers[name].title, peers[name].module, peers[name].package)
    return names


def require(peer: str, module: str, package: str) -> None:
    """Raises UserError when the peer's Python module is not installed."""
    if not is_installed(module):
        raise UserError(
            f"{peer}, the peer of this benchmark", f"no module {module!r}", "it to be installed",
            f"It is not a dependency of resnet-tpu: pip install {package}.",
        )  # fmt: skip


def is_installed(module: str) -> bool:
    """Whether the module is installed; its parent package may be missing too."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def alternate(
    commands: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    environment: Mapping[str, str] | None = None,
    optional: Collection[str] = (),
    round_option: str = "",
) -> dict[str, list[dict[str, Any]]]:
    """Runs the commands in alternating order. Returns what each printed in each round, by its name; logs each run.

    commands: the last line that each prints must be a JSON object of figures. environment: added to that of this
    process. round_option: an option such as --seed that passes the number of the round, from 0, to each command. Raises
    UserError with the error output of a command that fails; if it is in `optional`, it is left out, with a warning.
    """
    from resnet_tpu.reports.progress import track  # imports JAX, which not every user of this module needs

    outputs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    order = [(i, name) for i in range(rounds) for name in (commands if i % 2 == 0 else reversed([*commands]))]
    for number, name in track(order, "measure", len(order)):
        if name not in outputs:
            continue
        start = time.perf_counter()
        numbered = [f"{round_option}={number}"] if round_option else []
        try:
            figures = child.run(name, [*commands[name], *numbered], environment)
        except UserError as error:
            if name not in optional:
                raise
            log.warning("Left out: %s", error)
            del outputs[name]
            continue
        outputs[name].append(figures)
        shown = ", ".join(f"{metric} {_short(value)}" for metric, value in figures.items())
        log.info("Round %d of %d, %s, %.0f s: %s", number + 1, rounds, name, time.perf_counter() - start, shown)
    return outputs


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def median(runs: Sequence[Mapping[str, Any]], metric: str) -> float:
    """The median of the figure `metric` over the runs of a program."""
    return statistics.median(run[metric] for run in runs)


def ratios(outputs: Outputs, metric: str, one: str, other: str) -> list[float]:
    """The ratio of `metric` of one program to that of another, for each round."""
    return [mine[metric] / its[metric] for mine, its in zip(outputs[one], outputs[other], strict=True)]


def ratio_cells(of_rounds: Sequence[float]) -> tuple[str, str]:
    """Two cells of a table: the median and the range of the rounds' ratios."""
    return f"{statistics.median(of_rounds):.2f}", f"{min(of_rounds):.2f} to {max(of_rounds):.2f}"
