"""Outcomes of an experiment, summarised over the seeds at each level, for each way of retraining."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from resnet_tpu.pruning.levels import NUMBERED
from resnet_tpu.pruning.outcome import UNPRUNED, Outcome


@dataclass(frozen=True)
class Row:
    """The outcomes of all seeds at one level, for one way of retraining; accuracies from 0 to 1.

    Density, parameters, multiply-adds and bytes are means. unpruned: the median accuracy of the unpruned networks of
    the row's seeds, which may be only some of the experiment's.
    """

    retrain: str
    method: str
    density: float
    median: float
    lowest: float
    highest: float
    seeds: int
    parameters: int
    multiply_adds: int
    checkpoint_bytes: int
    unpruned: float


def summarize(outcomes: Iterable[Outcome]) -> list[Row]:
    """A row for each way of retraining, in the order of the outcomes, and each level, the densest first."""
    groups = by_level(outcomes)
    unpruned = {outcome.seed: outcome.top_1_accuracy for group in groups for outcome in group if is_unpruned(outcome)}
    rows = [_row(group, [unpruned[outcome.seed] for outcome in group]) for group in groups]
    order = list(dict.fromkeys(row.retrain for row in rows))
    return sorted(rows, key=lambda row: (order.index(row.retrain), -row.density))


def by_level(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """The outcomes of all seeds at each level, for each way of retraining; a seed's unpruned network counts once."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        # iterative levels may all have the same method name; other levels may have any folder name
        level = outcome.level if outcome.level.startswith(NUMBERED) else ""
        group = groups.setdefault((outcome.retrain, outcome.method, level), [])
        is_again = is_unpruned(outcome) and any(other.seed == outcome.seed for other in group)
        if not is_again:  # each part of an experiment may have trained it
            group.append(outcome)
    return list(groups.values())


def is_unpruned(outcome: Outcome) -> bool:
    """Whether the network was not pruned."""
    return outcome.retrain == UNPRUNED


def _row(group: Sequence[Outcome], unpruned: Sequence[float]) -> Row:
    reached = [outcome.top_1_accuracy for outcome in group]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(outcome, name) for outcome in group)

    return Row(
        group[0].retrain,
        group[0].method,
        mean("density"),
        statistics.median(reached),
        min(reached),
        max(reached),
        len(group),
        *(round(mean(name)) for name in ("parameters", "multiply_adds", "checkpoint_bytes")),
        unpruned=statistics.median(unpruned),
    )


def layer_rows(outcomes: Iterable[Outcome]) -> list[tuple[Any, ...]]:
    """(way of retraining, level, method, seed, and the fields of LayerSize) of each layer of each network."""
    return [
        (outcome.retrain, outcome.level, outcome.method, outcome.seed, *astuple(layer))
        for outcome in outcomes
        for layer in outcome.layers
    ]


def layer_densities(outcomes: Iterable[Outcome]) -> dict[str, list[list[float]]]:
    """For each way of retraining, the density of each layer at each level, averaged over the seeds, densest first."""
    found: dict[str, list[list[float]]] = {}
    for group in by_level(outcomes):
        if group[0].retrain != UNPRUNED:
            columns = zip(*([layer.density for layer in outcome.layers] for outcome in group), strict=True)
            found.setdefault(group[0].retrain, []).append([statistics.fmean(column) for column in columns])
    return {retrain: sorted(levels, key=sum, reverse=True) for retrain, levels in found.items()}
