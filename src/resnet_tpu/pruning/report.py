"""Reports an experiment: a table, CSV files, and pictures of the accuracies and of the density of each layer."""

import logging
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from rich.table import Table

from resnet_tpu import storage
from resnet_tpu.errors import UserError, listed
from resnet_tpu.pruning.levels import NUMBERED
from resnet_tpu.pruning.methods import family_of, table_of
from resnet_tpu.pruning.outcome import PHASES, UNPRUNED, Outcome, earlier_phases
from resnet_tpu.pruning.paper import paper_network
from resnet_tpu.pruning.phase import config_at, read_description
from resnet_tpu.pruning.sizes import LayerSize
from resnet_tpu.reports.console import make_console
from resnet_tpu.reports.csv_text import to_csv

log = logging.getLogger(__name__)

_MOST_NAMED = 5  # runs, in a message


@dataclass(frozen=True)
class Row:
    """The outcomes of all seeds at one level of one re-training; accuracies from 0 to 1.

    Density, parameters, multiply-adds and bytes are means. unpruned: the median accuracy of the unpruned networks of
    the row's seeds, which may not be all.
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
    """A row for each level of each re-training: re-trainings in the order of the outcomes, the densest level first."""
    groups = _groups(outcomes)
    unpruned = {outcome.seed: outcome.top_1_accuracy for group in groups for outcome in group if _is_unpruned(outcome)}
    rows = [_row(group, [unpruned[outcome.seed] for outcome in group]) for group in groups]
    order = list(dict.fromkeys(row.retrain for row in rows))
    return sorted(rows, key=lambda row: (order.index(row.retrain), -row.density))


def _groups(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """The outcomes of all seeds at each level of each re-training; a seed's unpruned network counts once."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        # iterative levels may all have the same method name; other levels may have any folder name
        level = outcome.level if outcome.level.startswith(NUMBERED) else ""
        group = groups.setdefault((outcome.retrain, outcome.method, level), [])
        is_again = _is_unpruned(outcome) and any(other.seed == outcome.seed for other in group)
        if not is_again:  # each part of an experiment may train it
            group.append(outcome)
    return list(groups.values())


def _is_unpruned(outcome: Outcome) -> bool:
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
    """(re-training, level, method, seed, and the fields of LayerSize) of each layer of each network."""
    return [
        (outcome.retrain, outcome.level, outcome.method, outcome.seed, *astuple(layer))
        for outcome in outcomes
        for layer in outcome.layers
    ]


def layer_densities(outcomes: Iterable[Outcome]) -> dict[str, list[list[float]]]:
    """By re-training: the density of each layer for each level, averaged over the seeds, the densest level first."""
    found: dict[str, list[list[float]]] = {}
    for group in _groups(outcomes):
        if group[0].retrain != UNPRUNED:
            columns = zip(*([layer.density for layer in outcome.layers] for outcome in group), strict=True)
            found.setdefault(group[0].retrain, []).append([statistics.fmean(column) for column in columns])
    return {retrain: sorted(levels, key=sum, reverse=True) for retrain, levels in found.items()}


def report_experiment(outcomes: Sequence[Outcome], output_dir: str, network: str = "same") -> None:
    """Prints the table, and writes it with details and pictures into `output_dir`.

    `results.csv` is the table, `phases.csv` has a row for each outcome and `layers.csv` for each of its layers;
    `curve.png` shows the accuracies, `layers.png` the densities. network: the paper's network whose curves are
    drawn for comparison; `same`: the one that was pruned, if the paper has it. Raises UserError for outcomes that do
    not form a single curve.
    """
    from resnet_tpu.pruning.picture import draw_curve, draw_layers  # matplotlib takes a while to load
    from resnet_tpu.reports.style import write_png

    pruning, rows = _check_one_curve(outcomes), summarize(outcomes)
    if left_out := earlier_phases(output_dir, outcomes):
        names = listed(left_out, _MOST_NAMED)
        do = "Name all levels in one call, or give each call an --output_dir of its own and --combine them."
        log.warning(
            "The new table and pictures of %s leave out the results of earlier calls: %s. %s", output_dir, names, do
        )
    make_console().print(_accuracies(rows), _sizes(rows))
    storage.make_dir(output_dir)
    columns = [field.name for field in fields(Outcome) if field.name != "layers"]
    phases = [tuple(getattr(outcome, name) for name in columns) for outcome in outcomes]
    sizes = ["retrain", "level", "method", "seed", *(field.name for field in fields(LayerSize))]
    storage.write_text(storage.join(output_dir, PHASES), to_csv(columns, phases))
    table = to_csv([field.name for field in fields(Row)], [astuple(row) for row in rows])
    storage.write_text(storage.join(output_dir, "results.csv"), table)
    storage.write_text(storage.join(output_dir, "layers.csv"), to_csv(sizes, layer_rows(outcomes)))
    beside = paper_network(config_at(outcomes[0].model_dir)) if network == "same" else network
    write_png(draw_curve(rows, network=beside, pruning=pruning), storage.join(output_dir, "curve.png"))
    names = [layer.layer for layer in outcomes[0].layers]
    write_png(draw_layers(layer_densities(outcomes), names), storage.join(output_dir, "layers.png"))


def _check_one_curve(outcomes: Sequence[Outcome]) -> str:
    """Checks that the outcomes form one curve; returns their kind of pruning, as named by `paper_curve`.

    Raises UserError for several kinds, several networks, or several runs of one seed at a level.
    """
    pruned = [outcome for outcome in outcomes if outcome.method != UNPRUNED]
    kinds, methods = {_kind_of(outcome) for outcome in pruned}, {family_of(outcome.method) for outcome in pruned}
    networks = {tuple((layer.layer, layer.weights) for layer in outcome.layers) for outcome in outcomes}
    if len(kinds) > 1 or len(methods) > 1 or len(networks) > 1:
        several = kinds if len(kinds) > 1 else methods
        got = " and ".join(sorted(several)) if len(several) > 1 else f"{len(networks)} networks"
        raise UserError("Experiments", got, "one network, pruned in one way", "Combine those that belong together.")
    if not kinds:
        raise UserError("Experiments", "no pruned network", "at least one", "Let `prune` finish first.")
    _check_seeds(outcomes, pruned)
    _check_rewinding(pruned)
    return kinds.pop()


_SAME_BUT_SEEDS = "Combine those that differ only in their seeds."


def _check_seeds(outcomes: Sequence[Outcome], pruned: Sequence[Outcome]) -> None:
    """Raises UserError unless each seed has one unpruned network, and one re-training at each level."""
    unpruned: dict[int, Outcome] = {}
    for outcome in filter(_is_unpruned, outcomes):
        other = unpruned.setdefault(outcome.seed, outcome)
        runs = " and ".join(f"{run.model_dir} (step {run.step}, {run.top_1_accuracy:.2%})" for run in (other, outcome))
        got = f"two unpruned networks of seed {outcome.seed}: {runs}"
        if other.step != outcome.step:
            raise UserError("Experiments", got, "one training of each seed", _SAME_BUT_SEEDS)
        if other.top_1_accuracy != outcome.top_1_accuracy:  # for example, if another processor trained it again
            log.warning("There are %s. Changes are relative to the first.", got)
    if lacking := sorted({outcome.seed for outcome in pruned} - {*unpruned}):
        do = "Run the same `prune` again to rewrite it."
        raise UserError(PHASES, f"no unpruned network of seed {lacking[0]}", "one of each seed", do)
    for group in _groups(pruned):
        by_seed: dict[int, str] = {}
        for outcome in group:
            if (other := by_seed.setdefault(outcome.seed, outcome.model_dir)) != outcome.model_dir:
                got = f"two of seed {outcome.seed}: {other} and {outcome.model_dir}"
                raise UserError("Experiments", got, "one re-training of each seed at a level", _SAME_BUT_SEEDS)


def _check_rewinding(pruned: Sequence[Outcome]) -> None:
    """Raises UserError if runs of one re-training went back to different steps, or only some restored the momentum."""
    found: dict[tuple[str, str], tuple[Any, str]] = {}
    for outcome in pruned:
        description = read_description(outcome.model_dir)
        for name in ("rewind_step", "rewind_optimizer"):
            if (value := description.get(name)) is None:  # written by an earlier version
                continue
            other, where = found.setdefault((outcome.retrain, name), (value, outcome.model_dir))
            if other != value:
                got = f"{outcome.retrain} with {name} {other} in {where} and {value} in {outcome.model_dir}"
                raise UserError("Experiments", got, "one way of re-training", _SAME_BUT_SEEDS)


def _kind_of(outcome: Outcome) -> str:
    if applied := table_of(outcome.method):
        return f"structured_{applied[0][-1].lower()}"
    return "iterative" if outcome.level.startswith(NUMBERED) else "one_shot"


def _accuracies(rows: Sequence[Row]) -> Table:
    cells = [
        (
            *(f"{100 * value:.2f} %" for value in (row.median, row.lowest, row.highest)),
            "" if row.retrain == UNPRUNED else f"{100 * (row.median - row.unpruned):+.2f}",
            str(row.seeds),
        )
        for row in rows
    ]
    columns = ("top-1", "lowest", "highest", "change", "seeds")
    return _table("Validation, median of seeds", rows, columns, cells)


def _sizes(rows: Sequence[Row]) -> Table:
    cells = [(f"{row.parameters:,}", f"{row.multiply_adds:,}", f"{row.checkpoint_bytes:,}") for row in rows]
    columns = ("parameters", "multiply-adds", "bytes on disk")
    return _table("What is left, mean of seeds", rows, columns, cells)


def _table(title: str, rows: Sequence[Row], columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """A table with a line for each row: its re-training, its density, and its cells."""
    table = Table("re-training", "density", *columns, title=title)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for before, row, line in zip([None, *rows], rows, cells, strict=False):
        if before is not None and before.retrain != row.retrain:
            table.add_section()
        name = "unpruned" if row.retrain == UNPRUNED else row.retrain
        table.add_row(name, f"{100 * row.density:.2f} %", *line)
    return table
