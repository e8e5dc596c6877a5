"""Reports an experiment: a table, CSV files, and pictures of the accuracies and of the density of each layer."""

import logging
from collections.abc import Sequence
from dataclasses import astuple, fields, replace

from rich.table import Table

from resnet_tpu import storage
from resnet_tpu.errors import listed
from resnet_tpu.pruning.one_curve import common_pruning
from resnet_tpu.pruning.outcome import PHASES, UNPRUNED, Outcome, earlier_phases
from resnet_tpu.pruning.paper import paper_network
from resnet_tpu.pruning.phase import config_at
from resnet_tpu.pruning.sizes import LayerSize
from resnet_tpu.pruning.summary import Row, layer_densities, layer_rows, summarize
from resnet_tpu.reports.console import make_console
from resnet_tpu.reports.csv_text import to_csv

log = logging.getLogger(__name__)

_MOST_NAMED = 5  # runs, in a message


def report_experiment(outcomes: Sequence[Outcome], output_dir: str, network: str = "same") -> None:
    """Prints the table, and writes it with details and pictures into `output_dir`.

    `results.csv` is the table, `phases.csv` has a row for each outcome and `layers.csv` for each of its layers;
    `curve.png` shows the accuracies, `layers.png` the densities. network: the paper's network whose curves are
    drawn for comparison; `same`: the one that was pruned, if the paper has it. Raises UserError for outcomes that do
    not form a single curve.
    """
    from resnet_tpu.pruning.picture import draw_curve, draw_layers  # matplotlib takes a while to load
    from resnet_tpu.reports.style import write_png

    pruning, rows = common_pruning(outcomes), summarize(outcomes)
    if left_out := earlier_phases(output_dir, outcomes):
        names = listed(left_out, _MOST_NAMED)
        do = "Name all levels in one call, or give each call an --output_dir of its own and --combine them."
        log.warning(
            "The new table and pictures of %s leave out the results of earlier calls: %s. %s", output_dir, names, do
        )
    make_console().print(_accuracies(rows), _sizes(rows))
    storage.make_dir(output_dir)
    _write_tables(output_dir, outcomes, rows)
    beside = paper_network(config_at(outcomes[0].model_dir)) if network == "same" else network
    write_png(draw_curve(rows, network=beside, pruning=pruning), storage.join(output_dir, "curve.png"))
    names = [layer.layer for layer in outcomes[0].layers]
    write_png(draw_layers(layer_densities(outcomes), names), storage.join(output_dir, "layers.png"))


def _write_tables(output_dir: str, outcomes: Sequence[Outcome], rows: Sequence[Row]) -> None:
    of_phases = [field.name for field in fields(Outcome) if field.name != "layers"]
    of_layers = ["retrain", "level", "method", "seed", *(field.name for field in fields(LayerSize))]
    # absolute, because --combine may be called in another folder, where a relative path may lead to another run
    found = [replace(outcome, model_dir=storage.absolute(outcome.model_dir)) for outcome in outcomes]
    phases = [[getattr(outcome, name) for name in of_phases] for outcome in found]
    for name, header, table in (
        (PHASES, of_phases, phases),
        ("results.csv", [field.name for field in fields(Row)], [astuple(row) for row in rows]),
        ("layers.csv", of_layers, layer_rows(outcomes)),
    ):
        storage.write_text(storage.join(output_dir, name), to_csv(header, table))


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
    """A table with a line for each row: its way of retraining, its density, and its cells."""
    table = Table("retraining", "density", *columns, title=title)
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
