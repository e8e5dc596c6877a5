"""`resnet-tpu plan`."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import configure, follow_start, groups_for_trainings, slice_for
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.reports.console import make_console

if TYPE_CHECKING:
    from resnet_tpu.options.config import Config
    from resnet_tpu.performance.plan.host import Host
    from resnet_tpu.performance.plan.plan import Plan


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlanOptions:
    """What to plan for."""

    topology: str = option(
        "",
        "TPU slices, or GPUs of one machine, separated by commas: v5e:2x4 as the compiler names it, v3-32 as Google "
        "Cloud does, h100:8. Default: the recipe's.",
    )
    price_per_chip_hour: str = option(
        "", "Price of a chip per hour, for the cost of the run: 1.20; or by generation: v5e=1.20,v3=2.20."
    )
    host_images_per_sec: float | None = option(
        None,
        "Images/s that the input pipeline of each host delivers. The time that devices wait for images is then "
        "counted. Measure it on such a host with `resnet-tpu bench input`. Default: as many as the devices take.",
        at_least=1,
    )
    host_mb_per_sec: float | None = option(
        None,
        "MB/s that each host reads from its bucket, with host_images_per_sec. Default: as many as it decodes.",
        at_least=1,
    )
    image_kb: float | None = option(
        None, "Mean size of an image file in kB, with host_mb_per_sec. Default: 110, as for ImageNet.", at_least=1
    )
    largest_batch: bool = option(
        False,
        "Also look for the largest train_batch_size that fits, up to 4096 images on a device: two or three short "
        "compilations.",
    )
    fast: bool = option(
        False,
        "Compile for 4 chips, with as many images on each as in the slice, and scale up to it. For comparing many "
        "slices.",
    )
    top: int = option(
        10, "Number of layers to show: the slowest or, for GPUs, those that move the most bytes.", at_least=0
    )
    format: Literal["table", "json"] = option("table", "How to print the plan.")
    picture: FilePath = option("", "Also draw the plan to this PNG file.")


@Command(
    "resnet-tpu plan",
    "All figures are estimates by the compiler; for GPUs they are bounds. The compiler for TPUs comes with pip install "
    "'resnet-tpu[plan]', the one for GPUs with JAX's plugin. The first time, compiling each step takes some minutes. "
    "mode=train or mode=eval leaves out the other step.",
    examples=(
        "resnet-tpu plan --recipe=v3-32",
        "resnet-tpu plan --topology=v5e:2x4,v6e:2x4,v2-8 --price_per_chip_hour=v5e=1.20,v6e=2.70,v2=1.12",
        "resnet-tpu plan --recipe=resnetrs50_i160 --topology=v3:8x8 --mode=train --picture=plan.png",
        "resnet-tpu plan --topology=v5e:2x2 --resnet_depth=152 --largest_batch",
        "resnet-tpu plan --recipe=v5e-8 --host_images_per_sec=15000 --host_mb_per_sec=1200",
        "resnet-tpu plan --topology=h200:8,a100:8 --train_batch_size=2048 --mode=train",
    ),
    groups=[Group("what to plan", PlanOptions), *groups_for_trainings()],
)
def plan(given: Given) -> None:
    """Estimate whether a run fits a TPU slice or GPUs that you do not have, and its speed, duration and cost."""
    options = given.fill(PlanOptions)
    storage.check_file(options.picture)
    os.environ["JAX_PLATFORMS"] = "cpu"  # leaves a TPU or GPU of this machine free for training
    config = configure(given.values)

    from resnet_tpu.performance.plan.compiler import compiler_of, warn_of_other_libtpu
    from resnet_tpu.performance.plan.plan import check_plan
    from resnet_tpu.performance.plan.plan import plan as plan_run
    from resnet_tpu.performance.plan.prices import price_of, read_prices
    from resnet_tpu.performance.plan.topology import find_topology

    prices, host = read_prices(options.price_per_chip_hour), _host_of(options)
    recipe = given.values.get("recipe", "")
    names = options.topology or (recipe and slice_for(recipe))
    if not names:
        got = f"nothing, and recipe {recipe} is not for a particular slice" if recipe else "nothing"
        raise UserError("--topology", got, "TPU slices or GPUs", "Give --topology=v5e:2x4 or the like.")
    slices = [find_topology(name.strip()) for name in names.split(",")]
    for found in slices:  # reports mistakes in any slice before compiling for the first
        compiler_of(found)
        check_plan(config, found)
    if not all(found.is_gpu for found in slices):
        warn_of_other_libtpu()
    if given.values.get("resnet_checkpoint"):
        config = _with_network_of_weights(config, given)
    plans = [
        plan_run(
            config, found, price_per_chip_hour=price_of(prices, found.generation.name),
            host=host, search=options.largest_batch, fast=options.fast,
            notice=_show_elapsed,
        )
        for found in slices
    ]  # fmt: skip
    _show(plans, options)


def _with_network_of_weights(config: "Config", given: Given) -> "Config":
    try:
        return follow_start(config, given.values)
    except UserError as error:  # they may lie on the machine that the plan is for
        log.warning("The network is that of the options, not that of the weights. %s", error)
        return config


def _host_of(options: PlanOptions) -> "Host | None":
    """The host that feeds the devices, as far as the options describe it."""
    from resnet_tpu.performance.plan.host import Host

    if options.host_images_per_sec is None:
        for name, value in {"host_mb_per_sec": options.host_mb_per_sec, "image_kb": options.image_kb}.items():
            if value is not None:
                expected, do = "host_images_per_sec as well", "Measure it there, with `resnet-tpu bench input`."
                raise UserError(f"--{name}", f"{value:g} alone", expected, do)
        return None
    if options.image_kb is not None and options.host_mb_per_sec is None:
        do = "Give both, or neither."
        raise UserError("--image_kb", f"{options.image_kb:g} alone", "host_mb_per_sec as well", do)
    sizes = {} if options.image_kb is None else {"image_kb": options.image_kb}
    return Host(options.host_images_per_sec, options.host_mb_per_sec, **sizes)


def _show(plans: Sequence["Plan"], options: PlanOptions) -> None:
    """Prints the plans, and draws them if asked to."""
    from resnet_tpu.performance.plan import table

    if options.format == "json":
        sys.stdout.write(table.to_json(plans, top=options.top))
    else:
        make_console().print(table.render(plans, top=options.top))
    if options.picture:
        from resnet_tpu.performance.plan.picture import draw_plans
        from resnet_tpu.reports.style import write_png

        write_png(draw_plans(plans), options.picture)


@contextlib.contextmanager
def _show_elapsed(text: str) -> Iterator[None]:
    """Shows a line with the elapsed time on the terminal within the block."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from resnet_tpu.system.terminal import OutputConsole, live_line

    console = OutputConsole(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with live_line(*columns, console=console) as progress:
        progress.add_task(text, total=None)
        if progress.disable:
            console.print(f"{text[0].upper()}{text[1:]} ...")
        yield
