"""Draws plans as bars: speed, memory and cost of slices side by side."""

import dataclasses
from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resnet_tpu.performance.plan.generations import GIB
from resnet_tpu.performance.plan.memory import Memory
from resnet_tpu.performance.plan.plan import Plan, Step
from resnet_tpu.performance.plan.table import label_of
from resnet_tpu.reports.style import COLORS, GRAY, STYLE, add_title

_NO_FIT = "does not fit"
_KINDS = [field.name for field in dataclasses.fields(Memory)]


@mpl.rc_context(STYLE)
def draw_plans(plans: Sequence[Plan]) -> Figure:
    """One bar per slice: images/s, the memory of a device by kind, hours, and the cost if prices are known.

    The steps are those of training, or of evaluation if only that was planned.
    """
    hours, costs = [plan.hours for plan in plans], [plan.cost for plan in plans]
    missing = ["no price" if plan.fits else _NO_FIT for plan in plans]
    panels: list[tuple[str, Callable[[Axes], None]]] = [
        ("images/s", lambda axes: _bars(axes, [_step(plan).images_per_second for plan in plans], "{:,.0f}")),
        ("memory per device, GiB", lambda axes: _draw_memory(axes, plans)),
        ("matrix units used", lambda axes: _bars(axes, [_step(plan).utilisation for plan in plans], "{:.0%}")),
    ]
    if any(number is not None for number in hours):
        panels.append(("hours", lambda axes: _bars(axes, hours, "{:,.2f}")))
    if any(number is not None for number in costs):
        panels.append(("cost of the run", lambda axes: _bars(axes, costs, "{:,.2f}", missing)))
    height = 0.9 + 0.32 * len(plans)
    figure = Figure(figsize=(9, 0.8 + height * len(panels)), layout="constrained")
    for axes, (title, draw) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        draw(axes)
        axes.set_yticks(range(len(plans)), [plan.topology.name for plan in plans])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title(title)
    what = "Training" if plans[0].train else "Evaluation"
    add_title(figure, f"{what} ({', '.join(dict.fromkeys(map(label_of, plans)))})")
    return figure


def _step(plan: Plan) -> Step:
    step = plan.train or plan.eval
    assert step  # each plan has one of them
    return step


def _bars(axes: Axes, values: Sequence[float | None], form: str, missing: Sequence[str] | None = None) -> None:
    """A bar per value, labelled with it, or with the word in `missing` (default: that it does not fit) if None."""
    missing = missing or [_NO_FIT] * len(values)
    bars = axes.barh(range(len(values)), [number or 0 for number in values], color=COLORS[0], height=0.62)
    labels = [word if number is None else form.format(number) for number, word in zip(values, missing, strict=True)]
    axes.bar_label(bars, labels, padding=4)
    axes.set_xticks([])  # the bars show their values
    axes.set_xlim(0, 1.15 * max((number or 0 for number in values), default=0) or 1)


def _draw_memory(axes: Axes, plans: Sequence[Plan]) -> None:
    """Stacks the kinds of memory in one bar per plan, with a line at the memory of the device."""
    left = [0.0] * len(plans)
    for kind, color in zip(_KINDS, COLORS, strict=False):
        found = [_step(plan).memory for plan in plans]
        sizes = [getattr(memory, kind) / GIB if memory else 0.0 for memory in found]
        axes.barh(range(len(plans)), sizes, left=left, color=color, height=0.62, label=kind)
        left = [begin + size for begin, size in zip(left, sizes, strict=True)]
    for row, plan in enumerate(plans):
        limit = plan.topology.device_memory / GIB
        axes.plot([limit, limit], [row - 0.4, row + 0.4], color=GRAY, linewidth=2)
        if not _step(plan).fits:
            axes.text(0, row, f" {_NO_FIT}", va="center")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
