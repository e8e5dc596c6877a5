"""Plans ResNet-50's training step on each kind of TPU: memory and speed. Compiler estimates, no TPU.

A recipe stands for all recipes of its generation with as many images on a device. Needs libtpu (pip install
'resnet-tpu[plan]'), and one to five minutes per recipe the first time; compiled programs are cached, so an interrupted
run can continue.
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

RECIPES = ("v2-8", "v2-512", "v3-8", "v3-512", "v3-1024", "v3-2048", "v4-8", "v5e-8", "v5p-8", "v6e-8")
COLUMNS = (
    "recipe",
    "images on a device",
    "memory of a device, GiB",
    "step, ms",
    "images/s on a device",
    "matrix units",
)


def run() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"Default: {' '.join(RECIPES)}.")
    parser.add_argument("--quick", action="store_true", help="One recipe.")
    parser.add_argument("--output", type=Path, help="JSON file for the figures. Default: in benchmarks/results.")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"

    from resnet_tpu.performance.plan.compiler import libtpu_version

    rows = [plan_recipe(name) for name in options.recipes or RECIPES[: 1 if options.quick else None]]
    text = markdown(COLUMNS, (row.values() for row in rows), [f"Compiler estimate, libtpu {libtpu_version()}."])
    report("plan", text, {"label": "compiler estimate", "libtpu": libtpu_version(), "rows": rows}, options)


def plan_recipe(name: str) -> dict[str, object]:
    """One row of the table."""
    from resnet_tpu.performance.plan.generations import GIB
    from resnet_tpu.performance.plan.plan import plan
    from resnet_tpu.performance.plan.topology import find_topology

    topology = find_topology(slice_for(name) or name)
    found = plan(find_recipe(name).replace(mode="train"), topology, fast=True, notice=_notice)
    step = found.train
    if not (step and step.needed and step.time and step.images_per_second and step.utilisation):
        raise ValueError(f"{name} does not fit")
    cells = (
        name, step.batch_per_device, round(step.needed / GIB, 2), round(1000 * step.time.total, 1),
        round(step.images_per_second / found.devices), f"{step.utilisation:.0%}",
    )  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


@contextlib.contextmanager
def _notice(text: str) -> Iterator[None]:
    print(f"{text} ...", flush=True)
    yield


if __name__ == "__main__":
    main(run)
