"""What an experiment reached: a table, CSV files, and accuracy against density as a picture."""

import csv
import io
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

from rich.console import Console
from rich.table import Table

from resnet_tpu import storage
from resnet_tpu.prune.experiment import UNPRUNED, Outcome
from resnet_tpu.prune.levels import ITERATIVE
from resnet_tpu.prune.paper import paper_network
from resnet_tpu.prune.phase import config_at


@dataclass(frozen=True)
class Row:
    """The outcomes of all seeds at one level of one re-training; accuracies from 0 to 1, density the mean."""

    retrain: str
    method: str
    density: float
    median: float
    lowest: float
    highest: float
    seeds: int


def summarise(outcomes: Iterable[Outcome]) -> list[Row]:
    """A row for each re-training and level, in the order of the outcomes."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.retrain, outcome.level), []).append(outcome)
    return [_row(group) for group in groups.values()]


def _row(group: Sequence[Outcome]) -> Row:
    reached = [outcome.top_1_accuracy for outcome in group]
    return Row(
        group[0].retrain,
        group[0].method,
        statistics.fmean(outcome.density for outcome in group),
        statistics.median(reached),
        min(reached),
        max(reached),
        len(group),
    )


def report_experiment(outcomes: Sequence[Outcome], output_dir: str) -> None:
    """Prints the table and writes `phases.csv`, `results.csv` and `curve.png` into `output_dir`."""
    from resnet_tpu.prune.picture import draw_curve  # matplotlib takes a while to load
    from resnet_tpu.train.style import write_png

    rows = summarise(outcomes)
    Console().print(_table(rows))
    storage.make_dir(output_dir)
    _write_csv(storage.join(output_dir, "phases.csv"), Outcome, outcomes)
    _write_csv(storage.join(output_dir, "results.csv"), Row, rows)
    network = paper_network(config_at(outcomes[0].model_dir))
    write_png(draw_curve(rows, network=network, pruning=_kind(outcomes)), storage.join(output_dir, "curve.png"))


def _kind(outcomes: Sequence[Outcome]) -> str:
    """What `paper_curve` calls this way of pruning."""
    pruned = next(outcome for outcome in outcomes if outcome.method != UNPRUNED)
    if found := re.fullmatch(r"prune_\w+_([AB])_\d", pruned.method):
        return f"structured_{found[1].lower()}"
    return "iterative" if pruned.level.startswith(ITERATIVE) else "one_shot"


def _table(rows: Sequence[Row]) -> Table:
    table = Table(
        "re-training", "density", "top-1", "lowest", "highest", "change", "seeds", title="Validation, median of seeds"
    )
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    unpruned = next(row for row in rows if row.retrain == UNPRUNED)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.retrain != row.retrain:
            table.add_section()
        table.add_row(
            "unpruned" if row is unpruned else row.retrain,
            f"{100 * row.density:.2f} %",
            *(f"{100 * value:.2f} %" for value in (row.median, row.lowest, row.highest)),
            "" if row is unpruned else f"{100 * (row.median - unpruned.median):+.2f}",
            str(row.seeds),
        )
    return table


def _write_csv(path: str, kind: type, items: Iterable[Outcome | Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(kind)])
    writer.writerows(astuple(item) for item in items)
    storage.write_text(path, text.getvalue())
