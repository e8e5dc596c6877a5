"""Shows profiles on a terminal, and writes them as JSON."""

import dataclasses
import json

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from resnet_tpu.performance.profiling.advice import InputFigures
from resnet_tpu.performance.profiling.input import InputProfile
from resnet_tpu.performance.profiling.summary import StepSummary
from resnet_tpu.performance.profiling.training import Throughput, TrainProfile

_MOST_OPERATIONS = 12


def input_json(profile: InputProfile) -> str:
    """All figures and the advice."""
    return json.dumps(dataclasses.asdict(profile), indent=2)


def train_json(profile: TrainProfile) -> str:
    """All figures, with every operation."""
    content = dataclasses.asdict(profile)
    content["steps"] |= {"input_wait_share": profile.steps.input_wait_share, "kinds": profile.steps.kinds()}
    for row, item in zip(content["steps"]["operations"], profile.steps.operations, strict=True):
        row["label"] = item.label._asdict()
    if profile.throughput:
        content["throughput"]["utilisation"] = profile.throughput.utilisation
    return json.dumps(content, indent=2)


def show_input(profile: InputProfile) -> RenderableType:
    """Speeds, stages and advice."""
    figures = profile.figures
    usage = (
        f"{figures.workers} {figures.data.input_workers} on {figures.cores} cores: the loader keeps "
        f"{figures.busy_share:.0%} of them busy, other programs {figures.others_share:.0%}."
    )
    lines = [f"- {one.text}{f' {one.option}' if one.option else ''}" for one in profile.advice]
    return Group(_speeds(profile), Text(usage), _stages(figures), *map(Text, lines))


def show_train(profile: TrainProfile) -> RenderableType:
    """The parts of a step, the operations by kind and the longest ones, the throughput."""
    steps = profile.steps
    lines = [*(_throughput_lines(profile.throughput) if profile.throughput else []), f"Trace: {profile.trace}"]
    return Group(_parts(steps), *map(Text, _step_lines(steps)), _kinds(steps), _operations(steps), *map(Text, lines))


def _speeds(profile: InputProfile) -> Table:
    """Images per second of everything that supplies or takes them, where known."""
    figures = profile.figures
    table = _table("Speed", "", "images/s")
    for name, speed in (
        ("the loader gives", figures.speed),
        (f"decoding alone, {figures.workers} threads", figures.decoder_speed),
        (f"the step takes ({profile.needed_by})", figures.needed_speed),
    ):
        if speed is not None:
            table.add_row(name, f"{speed:,.0f}")
    if profile.speed_of_run is not None and profile.speed_of_run != figures.needed_speed:
        table.add_row("the step of the run in model_dir took, on all its hosts", f"{profile.speed_of_run:,.0f}")
    return table


def _stages(figures: InputFigures) -> Table:
    table = _table("CPU time per image", "stage", "µs", "share")
    total = sum(stage.cpu_us for stage in figures.stages)
    for stage in figures.stages:
        table.add_row(stage.name, f"{stage.cpu_us:,.0f}", f"{stage.cpu_us / total:.1%}")
    table.add_section()
    table.add_row("all", f"{total:,.0f}", "")
    return table


def _parts(steps: StepSummary) -> Table:
    table = _table(f"A step, mean of {steps.num_steps}", "", "ms", "share")
    for name, ms in (
        ("devices compute", steps.compute_ms),
        ("devices wait for input", steps.input_wait_ms),
        ("devices idle otherwise", steps.other_idle_ms),
    ):
        table.add_row(name, f"{ms:,.2f}", f"{ms / steps.mean_ms:.1%}")
    table.add_section()
    table.add_row("all", f"{steps.mean_ms:,.2f}", "")
    return table


def _step_lines(steps: StepSummary) -> list[str]:
    return [
        f"Median step {steps.median_ms:,.2f} ms, from {steps.fastest_ms:,.2f} to {steps.slowest_ms:,.2f} ms.",
        f"The host, per step: waiting for input {steps.host_wait_ms:,.2f} ms, at work {steps.host_work_ms:,.2f} ms.",
    ]


def _kinds(steps: StepSummary) -> Table:
    table = _table("Operations by kind", "kind", "share")
    for kind, share in steps.kinds().items():
        table.add_row(kind, f"{share:.1%}")
    return table


def _operations(steps: StepSummary) -> Table:
    shown = steps.operations[:_MOST_OPERATIONS]
    table = Table(title=f"The longest of {len(steps.operations)} operations", title_justify="left")
    for name in ("ms per step", "share"):
        table.add_column(name, justify="right")
    for name in ("kind", "pass", "layer", "name"):
        table.add_column(name, overflow="fold")
    for item in shown:
        label = item.label
        cells = (f"{item.ms:,.3f}", f"{item.share:.1%}", label.kind, label.direction, label.layer, item.name)
        table.add_row(*map(escape, cells))
    return table


def _throughput_lines(found: Throughput) -> list[str]:
    share = "unknown, as is the peak of this device"
    if found.utilisation is not None and found.peak_flops is not None:
        share = f"{found.utilisation:.1%} of {found.peak_flops / 1e12:,.0f} TFLOP/s in bfloat16"
    work = f"{found.flops_per_image / 1e9:.2f} GFLOP per image: three forward passes, 2 for each multiply-add"
    return [f"{found.images_per_sec:,.1f} images/s on {found.device}", f"Model FLOP utilisation: {share}; {work}."]


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
