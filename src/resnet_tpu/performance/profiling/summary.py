"""Summarises where the time of training steps goes, from their trace."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resnet_tpu.errors import UserError
from resnet_tpu.performance.profiling.labels import Label, guess_label
from resnet_tpu.performance.profiling.trace import Event, Span, Trace


@dataclass(frozen=True)
class OperationTime:
    """An operation, its time per step in ms, without the operations inside it, and its share of all operations."""

    name: str
    label: Label
    ms: float
    share: float


@dataclass(frozen=True)
class StepSummary:
    """A training step in ms, from its start to the start of the next; shares are of the mean step.

    Averaged over devices. On the host, a step consists of a wait for the batch (`host_wait_ms`), the work to pass the
    batch and the step to the devices (`host_work_ms`), and a wait for the end of an earlier step.
    """

    num_steps: int
    num_devices: int
    median_ms: float
    mean_ms: float
    fastest_ms: float
    slowest_ms: float
    compute_ms: float
    """Time in which the devices were busy."""
    input_wait_ms: float
    """Time in which the devices were idle while the host waited for a batch."""
    other_idle_ms: float
    """Time in which the devices were idle for another reason: work of the host, or between two loops."""
    host_wait_ms: float
    host_work_ms: float
    operations: tuple[OperationTime, ...]
    """The longest first. Threads of a CPU work in parallel, so their sum may exceed `compute_ms`."""

    @property
    def input_wait_share(self) -> float:
        """`input_wait_ms` as a share of the step."""
        return self.input_wait_ms / self.mean_ms

    def kinds(self) -> dict[str, float]:
        """The share of each kind of operation, the largest first."""
        shares: dict[str, float] = defaultdict(float)
        for item in self.operations:
            shares[item.label.kind] += item.share
        return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def summarize(trace: Trace, labels: Mapping[str, Label]) -> StepSummary:
    """The mean step between the first and the last of the trace. labels: of the operations, by name, if known.

    Raises UserError if the trace contains a single step.
    """
    starts = [step.start for step in trace.steps]
    num_steps = len(starts) - 1
    if num_steps < 1:
        raise UserError("Trace", "a single training step", "at least two", "Capture a longer one.")
    # the host is as far ahead of the devices at the first step as at the last, so whole steps lie between them
    window = Span(starts[0], starts[-1])
    durations = [1000 * (end - start) for start, end in itertools.pairwise(starts)]
    waits = _clip(trace.input_waits, window)
    busy = [_clip(union(event[1:] for lane in lanes for event in lane), window) for lanes in trace.devices.values()]

    def per_step(seconds: float) -> float:
        return 1000 * seconds / num_steps

    compute = per_step(statistics.fmean(_length(spans) for spans in busy))
    input_wait = per_step(statistics.fmean(_length(waits) - _length(intersect(waits, spans)) for spans in busy))
    mean = per_step(window.end - window.start)
    return StepSummary(
        num_steps=num_steps,
        num_devices=len(trace.devices),
        median_ms=statistics.median(durations),
        mean_ms=mean,
        fastest_ms=min(durations),
        slowest_ms=max(durations),
        compute_ms=compute,
        input_wait_ms=input_wait,
        other_idle_ms=max(0.0, mean - compute - input_wait),
        host_wait_ms=per_step(_length(waits)),
        host_work_ms=per_step(
            _length(_clip(trace.steps, window)) - _length(waits) - _length(_clip(trace.device_waits, window))
        ),
        operations=_times(trace, window, labels, num_steps),
    )


def union(spans: Iterable[tuple[float, float]]) -> list[Span]:
    """The union of the spans, as disjoint spans in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Span(start, end))
    return found


def intersect(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The intersection. Each argument contains disjoint spans in order."""
    found, i, k = [], 0, 0
    while i < len(one) and k < len(other):
        start, end = max(one[i].start, other[k].start), min(one[i].end, other[k].end)
        if start < end:
            found.append(Span(start, end))
        if one[i].end < other[k].end:
            i += 1
        else:
            k += 1
    return found


def own_times(lane: Sequence[Event]) -> dict[str, float]:
    """Seconds by operation name, without events inside an event. Events are in order of their start."""
    seconds: dict[str, float] = defaultdict(float)
    open_events: list[Event] = []
    for event in lane:
        while open_events and open_events[-1].end <= event.start:
            open_events.pop()
        if open_events:
            seconds[open_events[-1].name] -= event.end - event.start
        seconds[event.name] += event.end - event.start
        open_events.append(event)
    return seconds


def _times(trace: Trace, window: Span, labels: Mapping[str, Label], num_steps: int) -> tuple[OperationTime, ...]:
    seconds: dict[str, float] = defaultdict(float)
    for lanes in trace.devices.values():
        for lane in lanes:
            inside = [event for event in lane if window.start <= event.start < window.end]
            for name, own in own_times(inside).items():
                seconds[name] += own / len(trace.devices)
    total = sum(seconds.values())
    return tuple(
        OperationTime(name, labels.get(name) or guess_label(name), 1000 * own / num_steps, own / total)
        for name, own in sorted(seconds.items(), key=lambda pair: -pair[1])
    )


def _clip(spans: Iterable[Span], window: Span) -> list[Span]:
    return intersect(list(spans), [window])


def _length(spans: Iterable[Span]) -> float:
    return sum(span.end - span.start for span in spans)
