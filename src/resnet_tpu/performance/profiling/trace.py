"""Reads a trace of training: its steps, its waits for input, and the operations on the devices."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.training.profiler import FOLDER

_SUFFIX = ".xplane.pb"
_STEP, _INPUT_WAIT, _DEVICE_WAIT = "train", "input_wait", "device_wait"  # annotations of `training.dispatcher`
_DO = "Make one with `resnet-tpu profile train`, or train with --profile_every_n_steps."


class Span(NamedTuple):
    """The time from `start` to `end`, in seconds of the trace's clock."""

    start: float
    end: float


class Event(NamedTuple):
    """One execution of an operation of a compiled program on a device, in the same seconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Trace:
    """The training steps of one process.

    On the host a step consists of a wait for the batch, the work to pass the batch and the step to the devices, and a
    wait for the end of an earlier step.
    devices: by device its lanes (streams, threads), and by lane the events, which overlap only if one contains the
    other. The CPU is one device, with a lane per thread.
    """

    steps: tuple[Span, ...]
    input_waits: tuple[Span, ...]
    device_waits: tuple[Span, ...]
    devices: dict[str, list[list[Event]]]


def find_trace(path: str) -> str:
    """The newest trace at `path`: a model_dir, its `plugins/profile`, a folder in that, or the file itself.

    With several processes, that of the first. Raises UserError if there is none.
    """
    if path.endswith(_SUFFIX) and storage.exists(path):
        return path
    for folder in (path, storage.join(path, FOLDER)):
        found = [name for name in storage.list_dir(folder) if name.endswith(_SUFFIX)]
        if found:
            return storage.join(folder, found[0])
        for name in reversed(storage.list_dir(folder)):
            inside = storage.join(folder, name)
            if found := [file for file in storage.list_dir(inside) if file.endswith(_SUFFIX)]:
                return storage.join(inside, found[0])
    raise UserError("Trace", path, f"a folder with a file *{_SUFFIX} in {FOLDER}/", _DO)


def read_trace(path: str) -> Trace:
    """The trace in the file `path`. Raises UserError if it is not a trace, or not one of training."""
    with storage.open_read(path) as file:
        content = file.read()
    try:
        data = jax.profiler.ProfileData.from_serialized_xspace(content)
    except (ValueError, RuntimeError):
        raise UserError("Trace", path, "a file of JAX's profiler", _DO) from None
    planes = list(data.planes)
    marks: dict[str, list[Span]] = defaultdict(list)
    for event in (
        event for plane in planes if plane.name == "/host:CPU" for line in plane.lines for event in line.events
    ):
        if event.name in (_STEP, _INPUT_WAIT, _DEVICE_WAIT):
            marks[event.name].append(_span(event))
    devices = {plane.name: _device_lanes(plane) for plane in planes if plane.name.startswith("/device:")}
    devices = {name: lanes for name, lanes in devices.items() if any(lanes)}
    if not devices:
        devices = {plane.name: _host_lanes(plane) for plane in planes if plane.name == "/host:CPU"}
    if not marks[_STEP]:
        raise UserError("Trace", f"{path}, without a training step", "a trace of training steps", _DO)
    steps, input_waits, device_waits = (tuple(sorted(marks[name])) for name in (_STEP, _INPUT_WAIT, _DEVICE_WAIT))
    return Trace(steps, input_waits, device_waits, devices)


def _span(event: Any) -> Span:
    return Span(event.start_ns / 1e9, event.end_ns / 1e9)


def _device_lanes(plane: Any) -> list[list[Event]]:
    """The operations of a TPU or GPU. The other lines of the plane repeat them, grouped by step, program or layer."""
    lines = [line for line in plane.lines if line.name == "XLA Ops" or line.name.startswith("Stream #")]
    return [_lane(line.events, all_count=True) for line in lines]


def _host_lanes(plane: Any) -> list[list[Event]]:
    """The operations among the events of a CPU's threads."""
    return [lane for line in plane.lines if (lane := _lane(line.events, all_count=False))]


def _lane(events: Iterable[Any], *, all_count: bool) -> list[Event]:
    """The events in order; without `all_count`, those that name an operation of a compiled program."""
    found = []
    for event in events:
        operation = next((value for name, value in event.stats if name == "hlo_op"), None)
        if operation is not None or all_count:
            # a TPU's events have names like `%fusion.3 = f32[8] fusion(...)`
            name = str(operation or event.name).partition(" = ")[0].lstrip("%")
            found.append(Event(name, *_span(event)))
    return sorted(found, key=lambda event: (event.start, -event.end))
