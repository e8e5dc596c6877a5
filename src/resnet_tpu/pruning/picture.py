"""Draws accuracy against density, together with the paper's curve; and the density of each layer."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from resnet_tpu.pruning.outcome import UNPRUNED
from resnet_tpu.pruning.paper import paper_curve
from resnet_tpu.pruning.summary import Row
from resnet_tpu.reports.style import COLORS, GRAY, MARKERS, STYLE, add_title


@mpl.rc_context(STYLE)
def draw_curve(rows: Sequence[Row], *, network: str | None, pruning: str) -> Figure:
    """Top-1 accuracy by density, minus that of the unpruned network, in points; the range of the seeds is a band.

    network: one of the paper's, whose curves for the same ways of retraining are dashed; None: draws none.
    """
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    unpruned = next(row for row in rows if row.retrain == UNPRUNED)
    axes.axhline(0, color=GRAY, linewidth=1)
    axes.plot(unpruned.density, 0, "o", color=GRAY)
    retrains = dict.fromkeys(row.retrain for row in rows if row is not unpruned)
    for color, marker, retrain in zip(COLORS, MARKERS, retrains, strict=False):
        own = [row for row in rows if row.retrain == retrain]
        densities = [row.density for row in own]
        medians = [row.median - row.unpruned for row in own]
        axes.plot(densities, medians, "-", marker=marker, color=color, label=retrain)
        lowest = [row.lowest - row.unpruned for row in own]
        highest = [row.highest - row.unpruned for row in own]
        axes.fill_between(densities, lowest, highest, color=color, alpha=0.15, linewidth=0)
        if network:
            _draw_paper(axes, network, pruning, retrain, color, marker)
    axes.set(xscale="log", xlabel="weights kept (log scale)", ylabel="top-1 accuracy minus unpruned, points")
    ticks = sorted({float(f"{row.density:.3g}") for row in rows}, reverse=True)  # the same for all lines
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // 10)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda fraction, _: f"{100 * fraction:.3g}%")
    axes.yaxis.set_major_formatter(lambda difference, _: f"{100 * difference:.1f}")
    axes.invert_xaxis()
    axes.legend()
    add_title(figure, f"Accuracy after pruning (unpruned: {unpruned.median:.2%})")
    return figure


@mpl.rc_context(STYLE)
def draw_layers(densities: Mapping[str, Sequence[Sequence[float]]], layers: Sequence[str]) -> Figure:
    """The density of each layer: a panel for each way of retraining, a line for each level, the sparsest the darkest.

    A layer without remaining weights is a cross at the bottom.
    """
    figure = Figure(figsize=(9, 1 + 2.6 * len(densities)), layout="constrained")
    panels = figure.subplots(len(densities), sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (retrain, levels) in zip(panels, densities.items(), strict=True):
        for number, line in enumerate(levels, 1):
            shade = mpl.colormaps["viridis_r"](0.4 + 0.6 * number / len(levels))  # paler ones are hard to see on white
            label = f"level {number}" if number in (1, len(levels)) else None
            axes.plot(range(len(layers)), line, "o-", markersize=3, linewidth=1.2, color=shade, label=label)
            if empty := [i for i, density in enumerate(line) if density == 0]:
                bottom = axes.get_xaxis_transform()
                axes.plot(empty, [0] * len(empty), "x", color=shade, transform=bottom, clip_on=False, zorder=3)
        axes.set(title=retrain, ylabel="weights kept")
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda fraction, _: f"{100 * fraction:g}%")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    every = max(1, len(layers) // 30)
    panels[-1].set_xticks(range(0, len(layers), every), layers[::every], rotation=90, fontsize=8)
    add_title(figure, "What is left of each layer, level by level")
    return figure


def _draw_paper(axes: Axes, network: str, pruning: str, retrain: str, color: str, marker: str) -> None:
    points = paper_curve(network, pruning, retrain)
    if points:
        base = paper_curve(network, UNPRUNED, UNPRUNED)[0].median
        label = f"{retrain}: {network} of arXiv:2003.02389, {pruning.replace('_', '-')}"
        shown = [(point.density, point.median - base) for point in points]
        hollow = {"marker": marker, "markersize": 4, "markerfacecolor": "white"}
        axes.plot(*zip(*shown, strict=True), "--", color=color, linewidth=1.2, label=label, **hollow)
