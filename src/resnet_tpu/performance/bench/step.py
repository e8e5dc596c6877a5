"""Measures a training step in images per second, and compares it with PyTorch.

The batch is in memory, so that only the step is measured: uint8 images in; normalisation, forward, backward, momentum;
new parameters out. Every run is a process that warms up, then times each step and returns the median.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import option
from resnet_tpu.performance.bench import child, compare, record
from resnet_tpu.performance.bench.compare import Outputs
from resnet_tpu.performance.bench.figures import Bar, Grid, show, write_bars
from resnet_tpu.performance.bench.options import MeasureOptions
from resnet_tpu.performance.bench.step_programs import (
    KEEP_HEAP,
    OURS,
    PROGRAMS,
    Case,
    Step,
    choose_ours,
    make_ours,
    make_torch,
)
from resnet_tpu.system.machine import has_gpu

PRECISIONS = ("float32", "bfloat16")
CASES = "50:224:16,18:128:32"
CHECK_STEPS = 3
CHECK_TOLERANCE = 1e-5
"""Largest relative difference of a loss. Rounding causes about 1e-7; a wrong weight decay, the smallest mistake, 1e-4.
"""


@dataclass(frozen=True)
class StepBenchOptions(MeasureOptions):
    """How `bench step` measures."""

    warmup: int = option(4, "Steps before the measured ones.", at_least=1)
    steps: int = option(12, "Least number of measured steps in a run: `seconds` may ask for more.", at_least=1)
    precisions: str = option(",".join(PRECISIONS), f"Precisions to measure: {', '.join(PRECISIONS)}.")
    peers: str = option(
        "", f"Compare with: {', '.join(name for name in PROGRAMS if name != OURS)}. Default: all installed."
    )
    check: bool = option(False, "Measure nothing: compare the losses of resnet-tpu and PyTorch from the same weights.")


def bench_step(cases: str, options: StepBenchOptions, command: Sequence[str]) -> None:
    """Measures all cases (`depth:image_size:batch_size`, separated by commas) and shows the figures.

    command: as typed, for the record. Raises UserError for a named peer that is not installed, and when a program
    fails.
    """
    options.check_files()
    chosen = [Case.parse(text) for text in (cases or CASES).split(",")]
    if options.check:
        for case in chosen:
            check(case)
        return
    here = "gpu" if has_gpu() else "cpu"
    peers = {name: program for name, program in PROGRAMS.items() if name != OURS and program.only_on in ("", here)}
    chosen_peers, notes = compare.choose_peers(options.peers, peers)
    rows, records, bars = [], [], []
    for case in chosen:
        for precision in _precisions(options.precisions):
            outputs = _measure_case(case, precision, chosen_peers, options)
            rows += _rows(f"{case.title}, {precision}", outputs)
            records.append({"case": str(case), "precision": precision, "runs": outputs})
            bars += _bars(f"{case.title}, {precision}", outputs)
    header = ("step", "program", "images/s", "ours / it", "range", "CPU ms", "MFU")
    show(Grid("Training step", header, rows, notes), options.format)
    if options.output:
        record.write(options.output, command, {"options": asdict(options), "cases": records})
    if options.picture:
        write_bars(options.picture, "Training step", bars, "images per second")


def _precisions(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PRECISIONS:
            raise UserError("precisions", name, f"some of {', '.join(PRECISIONS)}", "Change the value.")
    return names


def _measure_case(case: Case, precision: str, peers: Sequence[str], options: StepBenchOptions) -> Outputs:
    """The output of each program in each round, by its title."""
    lengths = [str(options.warmup), str(options.steps), str(options.seconds)]
    commands = {PROGRAMS[name].title: run_alone(name, case, precision, lengths) for name in (OURS, *peers)}
    optional = () if options.peers else [PROGRAMS[name].title for name in peers]
    outputs = compare.alternate(commands, rounds=options.rounds, optional=optional)
    check_devices({title: runs[0]["device"] for title, runs in outputs.items()})
    return outputs


def check_devices(devices: Mapping[str, str]) -> None:
    """Raises UserError unless all programs, by their titles, ran on the same kind of device."""
    if len(set(devices.values())) > 1:
        got = ", ".join(f"{title} on a {device}" for title, device in devices.items())
        do = "Install the peer's build for that device, or leave it out: --peers=none."
        raise UserError("bench step", got, "all on the same kind of device", do)


def run_alone(name: str, case: Case, precision: str, lengths: Sequence[str]) -> list[str]:
    """The command that measures one of PROGRAMS in a process of its own. lengths: warm-up, steps, seconds."""
    command = child.command_of(__name__, name, str(case), precision, *lengths)
    return ["env", KEEP_HEAP, *command] if PROGRAMS[name].keeps_memory else command


def measure(step: Step, batch_size: int, *, warmup: int, steps: int, seconds: float) -> dict[str, Any]:
    """Images per second of the median and the fastest of at least `steps` steps, and the seconds of the first one.

    `cpu_secs` is the CPU time of all threads of the process in the median step, which other programs hardly affect.
    """
    start = time.perf_counter()
    step()
    first_secs = time.perf_counter() - start
    for _ in range(warmup - 1):
        step()
    times: list[float] = []
    cpu_times: list[float] = []
    while len(times) < steps or sum(times) < seconds:
        start, cpu_start = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
    return {
        "images_per_sec": batch_size / statistics.median(times),
        "best_images_per_sec": batch_size / min(times),
        "cpu_secs": statistics.median(cpu_times),
        "first_step_secs": first_secs,
    }


def _rows(what: str, outputs: Outputs) -> list[tuple[str, ...]]:
    ours = PROGRAMS[OURS].title
    first = outputs[ours][0]
    share = first.get("mfu", 0) / first["images_per_sec"]
    rows = []
    for title, runs in outputs.items():
        speed = compare.median(runs, "images_per_sec")
        rows.append(
            (
                what,
                f"{title} ({runs[0]['kernels']})" if "kernels" in runs[0] else title,
                f"{speed:.4g}",
                *compare.ratio_cells(compare.ratios(outputs, "images_per_sec", ours, title)),
                f"{1000 * compare.median(runs, 'cpu_secs'):.0f}",
                f"{share * speed:.1%}" if share else "",
            )
        )
    return rows


def _bars(what: str, outputs: Outputs) -> list[Bar]:
    speeds = {title: compare.median(runs, "images_per_sec") for title, runs in outputs.items()}
    ours = PROGRAMS[OURS].title
    return [Bar(f"{title}, {what}", speed, f"{speed:.4g}", title == ours) for title, speed in speeds.items()]


def check(case: Case) -> None:
    """Prints the losses of a few float32 steps of our program and PyTorch from the same weights.

    Raises UserError when they differ.
    """
    compare.require("PyTorch", "torch", "torch")
    import jax

    from resnet_tpu.performance.bench import torch_resnet

    jax.config.update("jax_default_matmul_precision", "highest")  # otherwise a GPU would round float32 to TF32
    torch_resnet.compute_exactly()
    params, step = make_ours(case, "float32")
    model, peer_step = make_torch(case, "float32")
    torch_resnet.copy_weights(model, params)
    weight_decay = case.config("float32").optimizer.weight_decay
    print(f"{case.title}\n| step | ours | PyTorch | relative difference |\n|---|---|---|---|")
    for number in range(CHECK_STEPS):
        peer = 0.5 * weight_decay * torch_resnet.sum_of_squares(model)
        peer += peer_step()
        ours = step()
        difference = abs(ours - peer) / abs(peer)
        print(f"| {number} | {ours:.6f} | {peer:.6f} | {difference:.1e} |")
        if not difference < CHECK_TOLERANCE:
            what = f"Loss at step {number}, relative difference"
            raise UserError(what, difference, f"less than {CHECK_TOLERANCE}", "Report it: one of them is wrong.")


def _utilisation(case: Case, precision: str, images_per_sec: float) -> dict[str, float]:
    """The model FLOPs of a step as a share of a GPU's peak; empty on other devices."""
    import jax

    from resnet_tpu.models.flops import PASSES_PER_STEP, forward_flops
    from resnet_tpu.models.from_options import network_of
    from resnet_tpu.performance.profiling.peaks import find_peak

    device = jax.devices()[0]
    peak = find_peak(device.device_kind) if device.platform == "gpu" else None
    if peak is None:
        return {}
    flops = PASSES_PER_STEP * forward_flops(network_of(case.config(precision)))
    return {"mfu": images_per_sec * flops / peak}


def _run(name: str, text: str, precision: str, *lengths: str) -> dict[str, Any]:
    """The figures of one run in this process; for the arguments see `run_alone`."""
    case, (warmup, steps, seconds) = Case.parse(text), lengths
    _, step = PROGRAMS[name].make(case, precision)
    figures = measure(step, case.batch_size, warmup=int(warmup), steps=int(steps), seconds=float(seconds))
    figures["device"] = PROGRAMS[name].device()
    if name == OURS:
        figures["kernels"] = str(choose_ours(case, precision)[2])  # without oneDNN they are different, and slow
        figures |= _utilisation(case, precision, figures["images_per_sec"])
    return figures


if __name__ == "__main__":
    child.print_figures(_run)
