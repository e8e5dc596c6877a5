"""`resnet-tpu bench WHAT`: measures speed and compares it with peers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.dawnbench import dawnbench
from resnet_tpu.cli.menu import Menu
from resnet_tpu.cli.run_options import configure
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import Option, option

T = TypeVar("T")

_INPUT = ("image_size", "resize_method", "num_parallel_calls")
_OURS = ("input_workers", "cache", "cache_short_side", "cache_memory")
_NETWORK = ("resnet_depth", "resnet_width", "image_size")
_CASES = "What to train: depth:image_size:batch_size; several, with commas between. Default: 50:224:16,18:128:32."
_DATA = "DATA is a folder of JPEGs or of TFRecords; without it, pictures are drawn."

_QUICK_VALUES = {"rounds": "1", "seconds": "0.2"}
_QUICK_INPUT = _QUICK_VALUES | {"batch_size": "8", "num_images": "32"}
_QUICK_STEP = _QUICK_VALUES | {"where": "18:64:8", "warmup": "1", "steps": "2"}
_QUICK_SERVE = _QUICK_VALUES | {"resnet_depth": "18", "resnet_width": "8", "image_size": "64"}


@dataclass(frozen=True)
class QuickOptions:
    """Whether to try a benchmark out quickly."""

    quick: bool = option(
        False,
        "One short round with few images, unless other options say otherwise: shows that it works; the figures mean "
        "nothing.",
    )


_QUICK_GROUP = Group("to try it out", QuickOptions)


def _options_named(*names: str) -> Mapping[str, Option]:
    return {name: OPTIONS[name] for name in names}


@Command(
    "resnet-tpu bench input",
    f"{_DATA} All pipelines read the same records from memory.",
    examples=(
        "resnet-tpu bench input",
        "resnet-tpu bench input photos --resize_method=bilinear --variants --picture=input.png",
        "resnet-tpu bench input data --peers=torch,grain --num_parallel_calls=8",
    ),
    arguments=(Argument("where", "DATA", "Photos to measure with.", is_required=False),),
    groups=[
        Group("how to measure", "resnet_tpu.performance.bench.input:InputBenchOptions"),
        _QUICK_GROUP,
        Group("every pipeline", _options_named(*_INPUT)),
        Group("only resnet-tpu's pipeline", _options_named(*_OURS, "input_pipeline")),
    ],
)
def bench_input(given: Given) -> None:
    """Images per second of the input pipeline, against tf.data, PyTorch's DataLoader, Grain, SPDL, DALI and FFCV."""
    from resnet_tpu.performance.bench.input import InputBenchOptions
    from resnet_tpu.performance.bench.input import bench_input as measure

    _measure(measure, InputBenchOptions, "input", _with_quick_values(_QUICK_INPUT, given))


@Command(
    "resnet-tpu bench wait",
    f"{_DATA} On a CPU, a stand-in that only waits replaces the device, because a real step would take cores away from "
    "the decoders.",
    examples=(
        "resnet-tpu bench wait",
        "resnet-tpu bench wait photos --cache=decoded --picture=wait.png",
        "resnet-tpu bench wait data --device_ms=50",
    ),
    arguments=(Argument("where", "DATA", "Photos to train on.", is_required=False),),
    groups=[
        Group("how to measure", "resnet_tpu.performance.bench.wait:WaitBenchOptions"),
        _QUICK_GROUP,
        Group("the input", _options_named(*_INPUT, *_OURS)),
        Group("the step, if it is not a stand-in", _options_named("resnet_depth", "use_tpu")),
    ],
)
def bench_wait(given: Given) -> None:
    """How long the device waits for images with the basic and with the optimized input pipeline."""
    from resnet_tpu.performance.bench.wait import WaitBenchOptions
    from resnet_tpu.performance.bench.wait import bench_wait as measure

    _measure(measure, WaitBenchOptions, "wait", _with_quick_values(_QUICK_INPUT, given))


@Command(
    "resnet-tpu bench step",
    "resnet-tpu uses the kernels that tune found, or those named at the end of a case, as in 50:224:16:plain.\n"
    "The batch is in memory: nothing but the step is measured.",
    examples=(
        "resnet-tpu bench step",
        "resnet-tpu bench step 50:224:16 --peers=torch,torch_kept --precisions=bfloat16",
        "resnet-tpu bench step --check",
    ),
    arguments=(Argument("where", "CASES", _CASES, is_required=False, is_path=False),),
    groups=[Group("how to measure", "resnet_tpu.performance.bench.step:StepBenchOptions"), _QUICK_GROUP],
)
def bench_step(given: Given) -> None:
    """Images per second of a training step, compared with PyTorch."""
    from resnet_tpu.performance.bench.step import StepBenchOptions
    from resnet_tpu.performance.bench.step import bench_step as measure

    layered = _with_quick_values(_QUICK_STEP, given)
    options = layered.fill(StepBenchOptions)
    if options.check and (more := [name for name in given.values if name not in ("where", "check", "quick")]):
        raise UserError("--check", ", ".join(more), "CASES alone", "Leave the rest out: nothing is measured.")
    measure(layered.values["where"], options, _command_line("step", given))


@Command(
    "resnet-tpu bench serve",
    "Without BUNDLE, a network with random weights is exported first.",
    examples=(
        "resnet-tpu bench serve",
        "resnet-tpu bench serve exported --peers=onnxruntime,torch --clients=1,16 --picture=serve.png",
        "resnet-tpu bench serve --resnet_depth=18 --image_size=128",
    ),
    arguments=(Argument("where", "BUNDLE", "A bundle, or a folder of bundles.", is_required=False),),
    groups=[
        Group("how to measure", "resnet_tpu.performance.bench.serve:ServeBenchOptions"),
        _QUICK_GROUP,
        Group("the network without BUNDLE", _options_named(*_NETWORK)),
    ],
)
def bench_serve(given: Given) -> None:
    """Speed of an exported network: its runtimes against peers, and HTTP with a growing number of clients."""
    if given.values["where"] and (more := [name for name in _NETWORK if name in given.values]):
        raise UserError("BUNDLE", f"one, and {', '.join(more)}", "one of them", "Leave the other out.")

    from resnet_tpu.performance.bench.serve import ServeBenchOptions
    from resnet_tpu.performance.bench.serve import bench_serve as measure

    _measure(measure, ServeBenchOptions, "serve", _with_quick_values(_QUICK_SERVE, given))


def _measure(measure: Callable[[str, Config, T, Sequence[str]], None], owner: type[T], what: str, given: Given) -> None:
    """Calls `measure` with DATA, the options of a run, the benchmark's own options, and the command line."""
    from resnet_tpu.models.option_checks import check_options

    config = configure(given.values)
    check_options(config)
    measure(given.values["where"], config, given.fill(owner), _command_line(what, given))


def _with_quick_values(values: Mapping[str, str], given: Given) -> Given:
    """`given`; with `--quick`, `values` replace the defaults of options that were not typed."""
    if not given.fill(QuickOptions).quick:
        return given
    typed = {name: value for name, value in given.values.items() if value or name != "where"}  # empty: not typed
    return dataclasses.replace(given, values={"where": "", **values, **typed})


def _command_line(what: str, given: Given) -> list[str]:
    """The command line as typed, for the record."""
    return ["resnet-tpu", "bench", what, *given.words]


BENCH = Menu(
    "resnet-tpu bench",
    "Measure speed on this machine, and compare it with that of other installed libraries.",
    {
        "input": bench_input,
        "wait": bench_wait,
        "step": bench_step,
        "serve": bench_serve,
        "dawnbench": dawnbench,
    },
    examples=("resnet-tpu bench input", "resnet-tpu bench input photos --variants --picture=input.png"),
)
