"""The profile of an input pipeline as bars."""

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resnet_tpu.performance.profiling.input import InputProfile
from resnet_tpu.performance.profiling.report import speeds
from resnet_tpu.reports.style import COLOURS, STYLE, add_title


@mpl.rc_context(STYLE)
def draw_input(profile: InputProfile) -> Figure:
    """Above images per second, given and taken; below the CPU time of each stage."""
    rates = speeds(profile)
    times = {stage.name: stage.cpu_us for stage in profile.figures.stages}
    heights = [0.45 * len(rates) + 0.8, 0.45 * len(times) + 0.8]
    figure = Figure(figsize=(9, sum(heights) + 0.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    _draw_bars(above, rates, "images per second", COLOURS[0])
    _draw_bars(below, times, "microseconds of CPU time per image", COLOURS[1])
    add_title(figure, "Input pipeline")
    return figure


def _draw_bars(axes: Axes, values: dict[str, float], unit: str, colour: str) -> None:
    bars = axes.barh(list(values), list(values.values()), color=colour, height=0.65)
    axes.bar_label(bars, [f"{value:,.0f}" for value in values.values()], padding=4)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
