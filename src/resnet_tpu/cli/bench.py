"""`resnet-tpu bench WHAT`: speed, next to peers."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from resnet_tpu.cli.arguments import Parser, dispatch, fill
from resnet_tpu.cli.dawnbench import dawnbench
from resnet_tpu.cli.run_options import configure
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import expand_home, options_of

T = TypeVar("T")

_INPUT = ("image_size", "resize_method", "num_parallel_calls")
_OURS = ("input_workers", "cache", "cache_short_side", "cache_memory")
_NETWORK = ("resnet_depth", "resnet_width", "image_size")
_DATA = "DATA is a folder of JPEGs or of TFRecords; without it, pictures are drawn."


def bench_input(arguments: Sequence[str]) -> None:
    """Images per second of the input pipeline, beside tf.data, PyTorch's DataLoader and Grain."""
    from resnet_tpu.performance.bench.input import InputBenchOptions
    from resnet_tpu.performance.bench.input import bench_input as measure

    parser = Parser(
        "resnet-tpu bench input",
        f"{bench_input.__doc__}\n{_DATA} Everyone reads the same records from memory.",
        usage="[DATA] [options]",
        examples=(
            "resnet-tpu bench input",
            "resnet-tpu bench input photos --resize_method=bilinear --variants --picture=input.png",
            "resnet-tpu bench input data --peers=torch,grain --num_parallel_calls=8",
        ),
    )
    parser.add_argument(
        "where", type=expand_home, metavar="DATA", nargs="?", default="", help="Photos to measure with."
    )
    parser.add_options("how to measure", options_of("bench", InputBenchOptions).values())
    parser.add_options("everyone's pipeline", [OPTIONS[name] for name in _INPUT])
    parser.add_options("ours", [OPTIONS[name] for name in (*_OURS, "input_pipeline")])
    _call(measure, InputBenchOptions, "input", parser, arguments)


def bench_wait(arguments: Sequence[str]) -> None:
    """How long the device waits for images with the basic and with the optimized input pipeline."""
    from resnet_tpu.performance.bench.wait import WaitBenchOptions
    from resnet_tpu.performance.bench.wait import bench_wait as measure

    parser = Parser(
        "resnet-tpu bench wait",
        f"{bench_wait.__doc__}\n{_DATA} On a CPU something that only waits "
        "stands in for the device: a real step would take the cores from the decoders.",
        usage="[DATA] [options]",
        examples=(
            "resnet-tpu bench wait",
            "resnet-tpu bench wait photos --cache=decoded --picture=wait.png",
            "resnet-tpu bench wait data --device_ms=50",
        ),
    )
    parser.add_argument("where", type=expand_home, metavar="DATA", nargs="?", default="", help="Photos to train on.")
    parser.add_options("how to measure", options_of("bench", WaitBenchOptions).values())
    parser.add_options("the input", [OPTIONS[name] for name in (*_INPUT, *_OURS)])
    parser.add_options("the step", [OPTIONS[name] for name in ("resnet_depth", "use_tpu")])
    _call(measure, WaitBenchOptions, "wait", parser, arguments)


def bench_serve(arguments: Sequence[str]) -> None:
    """Speed of an exported network: its runtimes beside peers, and over HTTP with more and more clients."""
    from resnet_tpu.performance.bench.serve import ServeBenchOptions
    from resnet_tpu.performance.bench.serve import bench_serve as measure

    parser = Parser(
        "resnet-tpu bench serve",
        f"{bench_serve.__doc__}\nWithout BUNDLE, a network with random weights is exported first.",
        usage="[BUNDLE] [options]",
        examples=(
            "resnet-tpu bench serve",
            "resnet-tpu bench serve exported --peers=onnxruntime,torch --clients=1,16 --picture=serve.png",
            "resnet-tpu bench serve --resnet_depth=18 --image_size=128",
        ),
    )
    parser.add_argument(
        "where", type=expand_home, metavar="BUNDLE", nargs="?", default="", help="A bundle, or a folder of bundles."
    )
    parser.add_options("how to measure", options_of("bench", ServeBenchOptions).values())
    parser.add_options("the network without BUNDLE", [OPTIONS[name] for name in _NETWORK])
    _call(measure, ServeBenchOptions, "serve", parser, arguments)


def bench_step(arguments: Sequence[str]) -> None:
    """Images per second of a training step, beside PyTorch, flax and Keras."""
    from resnet_tpu.performance.bench.step import CASES, StepBenchOptions
    from resnet_tpu.performance.bench.step import bench_step as measure

    parser = Parser(
        "resnet-tpu bench step",
        f"{bench_step.__doc__}\nCASES are depth:image_size:batch_size, with commas; without any, {CASES}.\n"
        "Ours takes the kernels that tune found, or those that a case ends with, such as :plain.\n"
        "The batch is in memory: nothing but the step is measured.",
        usage="[CASES] [options]",
        examples=(
            "resnet-tpu bench step",
            "resnet-tpu bench step 50:224:16 --peers=torch,torch_kept --precisions=bfloat16",
            "resnet-tpu bench step --check",
        ),
    )
    parser.add_argument("where", metavar="CASES", nargs="?", default="", help="What to train.")
    parser.add_options("how to measure", options_of("bench", StepBenchOptions).values())
    _call(measure, StepBenchOptions, "step", parser, arguments)


def _call(
    measure: Callable[[str, Config, T, Sequence[str]], None],
    owner: type[T],
    what: str,
    parser: Parser,
    arguments: Sequence[str],
) -> None:
    """Calls `measure` with DATA, the options of a run, its own options, and the command itself."""
    given = parser.parse(arguments)
    where, names = given.pop("where"), options_of("bench", owner)
    options = fill(owner, {name: given.pop(name) for name in names if name in given})
    measure(where, configure(given, []), options, ["resnet-tpu", "bench", what, *arguments])


WHATS: dict[str, Callable[[Sequence[str]], None]] = {
    "input": bench_input,
    "wait": bench_wait,
    "step": bench_step,
    "serve": bench_serve,
    "dawnbench": dawnbench,
}


def bench(arguments: Sequence[str]) -> None:
    """Measure speed on this machine, beside the peers that are installed."""
    dispatch(
        "bench",
        f"{bench.__doc__}",
        WHATS,
        arguments,
        examples=("resnet-tpu bench input", "resnet-tpu bench input photos --variants --picture=input.png"),
    )
