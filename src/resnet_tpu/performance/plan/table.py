"""Shows plans to people as tables, and to programs as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from resnet_tpu.performance.plan.advice import advise
from resnet_tpu.performance.plan.generations import GIB
from resnet_tpu.performance.plan.memory import Memory
from resnet_tpu.performance.plan.operations import Operation, by_kind, bytes_of
from resnet_tpu.performance.plan.plan import Plan, Step

LABEL = "compiler estimate"
BOUND = "estimated bound: no step is faster"
_NOT_COUNTED = "checkpoints, compiling and starting the slice"


def render(plans: Sequence[Plan], *, top: int) -> RenderableType:
    """Tables of what to rent, of the memory of a device, and of the `top` groups of operations of each step."""
    labels = dict.fromkeys(f"{label_of(plan)}, {plan.compiler}" for plan in plans)
    parts: list[RenderableType] = [f"Plan ({'; '.join(labels)})", _overview(plans), *_remarks(plans)]
    steps = [(plan, what, step) for plan in plans for what, step in _steps(plan) if step.memory]
    if steps:
        parts += ["", f"Memory of a device in MiB ({LABEL})", _memory(steps)]
    for plan, what, step in steps if top else ():
        parts += ["", f"Operations of a step of {what} on {plan.topology.name} ({label_of(plan)}), by kind"]
        parts += [_operations(by_kind(step.operations)), f"The {top} that take longest, by layer"]
        parts.append(_operations(step.operations, top))
    return Group(*parts)


def label_of(plan: Plan) -> str:
    """What the figures of a plan mean. For GPUs the compiler estimates bytes, but no time, so they are bounds."""
    return BOUND if plan.topology.is_gpu else LABEL


def _steps(plan: Plan) -> list[tuple[str, Step]]:
    return [(what, step) for what, step in (("training", plan.train), ("evaluation", plan.eval)) if step]


def _overview(plans: Sequence[Plan]) -> Table:
    """Plans side by side; a row that is empty for all of them is left out."""
    table = Table("", box=box.SIMPLE)
    for plan in plans:
        table.add_column(plan.topology.name, justify="right")
    columns = [_cells(plan) for plan in plans]
    for name in columns[0]:
        cells = [column[name] for column in columns]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _cells(plan: Plan) -> dict[str, str]:
    """What the overview says of a plan, by row."""
    train, hosts = plan.train, plan.topology.hosts
    time, eval_time = train and train.time, plan.eval and plan.eval.time
    speed = train and train.images_per_second
    return {
        "chips": f"{plan.topology.chips:,}",
        "devices used": f"{plan.devices:,}",
        "fits": "yes" if plan.fits else "NO",
        "train batch, whole and per device": (
            f"{train.batch_size:,} = {plan.devices:,} x {train.batch_per_device:,}" if train else ""
        ),
        "largest train batch that fits": _format(plan.largest_batch, "{:,}"),
        "memory per device, training": _used(plan, train) if train else "",
        "train step": _format(time and 1000 * time.total, "{:.1f} ms"),
        "  by the compiler": _format((time and 1000 * time.compiler) or None, "{:.1f} ms"),  # 0 on GPUs
        "  bytes at the memory's rate": _format(time and 1000 * time.memory, "{:.1f} ms"),
        "  bytes at the network's rate": _format(time and 1000 * time.network, "{:.1f} ms"),
        "  arithmetic at the peak": _format(time and 1000 * time.peak, "{:.1f} ms"),
        "bytes moved, training": f"{bytes_of(train.operations) / 1e9:.1f} GB" if train and time else "",
        "train images/s": _format(speed, "{:,.0f}"),
        "  from each host": f"{hosts:,} x {speed / hosts:,.0f}" if speed else "",
        "  a host gives": f"{plan.host.most_images_per_sec:,.0f}, by {plan.host.limit}" if plan.host else "",
        "input wait": _format(plan.input_wait, "{:.1%}"),
        "matrix units used": _format(train and train.utilisation, "{:.0%}"),
        "eval step": _format(eval_time and 1000 * eval_time.total, "{:.1f} ms"),
        "eval images/s": _format(plan.eval and plan.eval.images_per_second, "{:,.0f}"),
        "train images": f"{plan.train_images:,}" if train else "",
        "train steps": f"{plan.train_steps:,}" if train else "",
        "evaluations": f"{plan.evaluations:,}" if plan.evaluations else "",
        "hours": _format(plan.hours, "{:.2f}"),
        "cost": _format(plan.cost, "{:,.2f}"),
    }


def _format(number: float | None, form: str) -> str:
    return "" if number is None else form.format(number)


def _used(plan: Plan, step: Step) -> str:
    if step.needed is None:
        return ""
    return f"{step.needed / GIB:.2f} of {plan.topology.device_memory / GIB:.2f} GiB"


def _remarks(plans: Sequence[Plan]) -> list[str]:
    remarks = [f"{plan.topology.name}: {text}" for plan in plans for text in advise(plan)]
    if any(plan.hours is not None for plan in plans):
        counted = "are counted" if any(plan.eval and plan.train for plan in plans) else "are not counted"
        remarks.append(f"Hours: evaluations {counted}; {_not_counted(plans[0])} are not.")
    remarks += [
        f"{plan.topology.name}: compiled for {plan.compiled_for} and scaled up."
        for plan in plans
        if plan.compiled_for != plan.topology.name
    ]
    return remarks


def _not_counted(plan: Plan) -> str:
    return _NOT_COUNTED if plan.host else f"reading and decoding images, {_NOT_COUNTED}"


def _memory(steps: Sequence[tuple[Plan, str, Step]]) -> Table:
    """A row per kind of memory, a column per step; if a chip has two devices, also the sums per chip."""
    table = Table("", box=box.SIMPLE)
    for plan, what, _ in steps:
        table.add_column(f"{plan.topology.name} {what}", justify="right")
    memories = [(plan.topology, step.memory) for plan, _, step in steps if step.memory]
    for kind in (field.name for field in dataclasses.fields(Memory)):
        table.add_row(kind, *(_mib(getattr(memory, kind)) for _, memory in memories))
    table.add_section()
    table.add_row("all", *(_mib(memory.total) for _, memory in memories))
    table.add_row("available", *(_mib(topology.device_memory) for topology, _ in memories))
    if any(topology.generation.devices > 1 for topology, _ in memories):
        table.add_row("all on a chip", *(_mib(memory.total * slice_.generation.devices) for slice_, memory in memories))
        table.add_row("available on a chip", *(_mib(topology.generation.usable_memory) for topology, _ in memories))
    return table


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f}"


def _operations(operations: Sequence[Operation], top: int | None = None) -> Table:
    table = Table("kind", "layer", "direction", box=box.SIMPLE)
    total = sum(one.cycles or 0 for one in operations)
    for column in ("operations", "GB", *(("Mcycles", "share") if total else ())):
        table.add_column(column, justify="right")
    for one in operations[:top]:
        cells = [str(one.count), f"{one.bytes / 1e9:.2f}"]
        if total:
            cycles = one.cycles
            cells += ["", "no estimate"] if cycles is None else [f"{cycles / 1e6:.2f}", f"{cycles / total:.1%}"]
        table.add_row(one.kind, one.layer, one.direction, *cells)
    return table


def to_json(plans: Sequence[Plan], *, top: int) -> str:
    """The plans as a JSON list, with `top` groups of operations each."""
    return json.dumps([_record(plan, top) for plan in plans], indent=2) + "\n"


def _record(plan: Plan, top: int) -> dict[str, Any]:
    record = dataclasses.asdict(plan)
    record |= {
        "label": label_of(plan),
        "topology": plan.topology.name,
        "chips": plan.topology.chips,
        "device_memory": int(plan.topology.device_memory),
        "fits": plan.fits,
        "hours": plan.hours,
        "cost": plan.cost,
        "hosts": plan.topology.hosts,
        "input_wait": plan.input_wait,
        "not_counted": _not_counted(plan) if plan.eval else f"evaluations, {_not_counted(plan)}",
        "advice": advise(plan),
    }
    for name, step in (("train", plan.train), ("eval", plan.eval)):
        if step:
            record[name]["kinds"] = [dataclasses.asdict(one) for one in by_kind(step.operations)]
            record[name]["operations"] = record[name]["operations"][:top]
            record[name]["images_per_second"] = step.images_per_second
            record[name]["bytes_moved"] = bytes_of(step.operations)
    return record
