"""Plans every recipe for ImageNet on its TPU slice: memory, speed and duration. Compiler estimates, no TPU.

Needs libtpu (pip install 'resnet-tpu[plan]'), and one to five minutes per recipe the first time; compiled programs are
cached, so an interrupted run can continue. The ResNet-RS recipes are not for a particular slice: see --slice.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.script import main, report
from resnet_tpu.cli.run_options import slice_for
from resnet_tpu.performance.bench.figures import markdown
from resnet_tpu.recipes import find_recipe
from resnet_tpu.recipes.imagenet import CLOUD, MODERN, RANDAUGMENT
from resnet_tpu.recipes.resnet_rs import RESNET_RS

COLUMNS = (
    "recipe", "slice", "batch", "per device", "memory, GiB", "fits", "step, ms", "images/s", "matrix units", "hours",
)  # fmt: skip


def run() -> None:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*CLOUD, *MODERN, *RANDAUGMENT, *RESNET_RS]
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="Default: all of them.")
    parser.add_argument("--slice", default="v3:8x8", help="Slice of recipes that name none. Default: %(default)s.")
    parser.add_argument("--full", action="store_true", help="Compile for the whole slice, not for four of its chips.")
    parser.add_argument("--quick", action="store_true", help="Three recipes.")
    parser.add_argument("--output", type=Path, help="JSON file for the figures. Default: in benchmarks/results.")
    options = parser.parse_args()
    names = options.recipes or (["v2-8", "v5e-8", "v3-512"] if options.quick else known)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from resnet_tpu.performance.plan.compiler import compiler_of
    from resnet_tpu.performance.plan.topology import find_topology

    compiler_of(find_topology(options.slice))
    rows = [plan_recipe(name, options.slice, full=options.full) for name in names]
    text = markdown(COLUMNS, (row.values() for row in rows))
    report("plan", text, {"label": "compiler estimate", "rows": rows}, options)


def plan_recipe(name: str, default: str, *, full: bool) -> dict[str, object]:
    """One row of the table."""
    from resnet_tpu.performance.plan.generations import GIB
    from resnet_tpu.performance.plan.plan import plan
    from resnet_tpu.performance.plan.topology import find_topology

    config = find_recipe(name)
    found = plan(config, find_topology(slice_for(name) or default), fast=not full, notice=_notice)
    step = found.train
    if step is None:
        raise ValueError(f"{name} trains nothing")
    cells: list[object] = [
        name, found.topology.name, step.batch_size, step.batch_per_device,
        None if step.needed is None else round(step.needed / GIB, 2), found.fits,
    ]  # fmt: skip
    if step.time and step.images_per_second and step.utilisation:
        hours = None if found.hours is None else round(found.hours, 2)
        cells += [round(1000 * step.time.total, 1), round(step.images_per_second), round(step.utilisation, 3), hours]
    return dict(zip(COLUMNS, [*cells, None, None, None, None], strict=False))


@contextlib.contextmanager
def _notice(text: str) -> Iterator[None]:
    print(f"{text} ...", flush=True)
    yield


if __name__ == "__main__":
    main(run)
