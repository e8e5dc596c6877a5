"""The ResNet-50 training step vs. flax's ImageNet example on several TPU generations. Compiler estimates, no TPU.

Both steps are compiled for the smallest slice of each generation, at 224 px, in bfloat16, with batch norm per replica.
The figure is the sum of the compiler's cycles over the operations of a step. Ours has the kernels `fused` and compiler
options (training/compiler_options.py), which `resnet-tpu tune` tries on a TPU; flax's example has none as published, or
ours with --same_options. Needs libtpu (pip install 'resnet-tpu[plan]'), and some minutes per step the first time;
compiled programs are cached.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.script import main, report
from resnet_tpu.performance.bench.figures import markdown

SLICES = ("v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")
COLUMNS = ("slice", "ours, M cycles", "flax, M cycles", "ours / flax", "step, ms", "images/s per device", "of the peak")
FORWARD_MULTIPLY_ADDS = 4.09e9
"""FLOPs of ResNet-50 for an image of 224 px; a training step needs three times as many."""


def run() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tpu_cycles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("slices", nargs="*", metavar="SLICE", help=f"Default: {' '.join(SLICES)}.")
    parser.add_argument("--images", type=int, default=128, help="Images per device. Default: %(default)s.")
    parser.add_argument("--same_options", action="store_true", help="Compile flax's example with our compiler options.")
    parser.add_argument("--quick", action="store_true", help="One slice, 8 images per device.")
    parser.add_argument("--output", type=Path, help="JSON file for the figures. Default: in benchmarks/results.")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"

    from resnet_tpu.performance.plan.compiler import libtpu_version

    images = 8 if options.quick else options.images
    rows = [
        estimate(name, images, options.same_options)
        for name in options.slices or (SLICES[:1] if options.quick else SLICES)
    ]
    text = markdown(
        COLUMNS,
        (row.values() for row in rows),
        [f"Compiler estimate, libtpu {libtpu_version()}, {images} images per device."],
    )
    figures = {
        "label": "compiler estimate",
        "libtpu": libtpu_version(),
        "images_per_device": images,
        "same_options": options.same_options,
        "rows": rows,
    }
    report("tpu_cycles", text, figures, options)


def estimate(name: str, images: int, same_options: bool) -> dict[str, object]:
    """One row of the table."""
    from benchmarks import flax_step
    from resnet_tpu.options.config import Config
    from resnet_tpu.parallel.meshes import mesh_of
    from resnet_tpu.performance.plan.compiler import compile_step, devices_of
    from resnet_tpu.performance.plan.lowering import lower_train_step
    from resnet_tpu.performance.plan.topology import find_topology
    from resnet_tpu.training.compiler_options import compiler_options_for
    from resnet_tpu.training.kernel_choice.setting import KernelSetting

    topology = find_topology(name)
    mesh = mesh_of(devices_of(topology))
    config = Config().replace(
        resnet_depth=50,
        precision="bfloat16",
        num_train_images=1281167,
        num_label_classes=flax_step.NUM_CLASSES,
        train_batch_size=images * topology.devices,
    )
    peer, shapes = flax_step.train_step(mesh, images)
    lowered: Any = peer
    options = compiler_options_for(mesh.devices.flat[0])
    ours = compile_step(lower_train_step(config, mesh, KernelSetting("fused")), topology, options=options).cycles
    theirs = compile_step(lowered.lower(*shapes), topology, options=options if same_options else None).cycles
    seconds = ours / topology.generation.clock
    flops = 3 * 2 * FORWARD_MULTIPLY_ADDS * images
    cells: list[object] = [
        topology.name, round(ours / 1e6, 1), round(theirs / 1e6, 1), round(ours / theirs, 3), round(1e3 * seconds, 1),
        round(images / seconds), f"{flops / seconds / topology.device_flops:.0%}",
    ]  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


if __name__ == "__main__":
    main(run)
