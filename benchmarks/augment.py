"""CPU time of augmentation per image, compared with torchvision's, and with the loader's work before it.

Training crops of the photos are made once; each policy then works on them in one process, on one thread. torchvision's
RandAugment and AutoAugment (policy ImageNet) get the same crops: as PIL images, as from its own loaders, and as uint8
tensors. The work differs slightly: torchvision's RandAugment has 14 operations, without Invert, Cutout and SolarizeAdd
but with one that does nothing. CPU time is less affected by other work on the machine than elapsed time; figures are
means over images, because operations differ widely.

    python -m benchmarks.augment imagenet_photos
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks import script
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.figures import markdown
from resnet_tpu.performance.bench.photos import draw_photos

OURS, PIL, TENSORS = "resnet_tpu", "torchvision, PIL images", "torchvision, tensors"
POLICIES = ("randaugment", "autoaugment")
SUFFIXES = (".jpg", ".jpeg")
MAGNITUDE = 9


def cpu_us(work: Callable[[Any], Any], items: Sequence[Any], runs: int) -> float:
    """Mean CPU microseconds of `work` on one of `items`, over `runs` runs after a warm-up."""
    for number in range(runs // 10 + 1):
        work(items[number % len(items)])
    start = time.thread_time()
    for number in range(runs):
        work(items[number % len(items)])
    return (time.thread_time() - start) / runs * 1e6


def make_crops(photos: Sequence[bytes], image_size: int) -> list[np.ndarray]:
    """A training crop of each photo."""
    from resnet_tpu.data.pixels.preprocess import train_image

    crops = [np.empty((image_size, image_size, 3), np.uint8) for _ in photos]
    for number, (photo, crop) in enumerate(zip(photos, crops, strict=True)):
        train_image(photo, image_size, np.random.default_rng(number), crop)
    return crops


def measure_ours(photos: Sequence[bytes], options: argparse.Namespace) -> dict[str, float]:
    """CPU microseconds of each policy, of each operation by itself, and of the crop before them."""
    from resnet_tpu.data.pixels.augment import random_erasing
    from resnet_tpu.data.pixels.operations import OPERATIONS
    from resnet_tpu.data.pixels.policies import RANDAUGMENT, autoaugment, draw_arguments, randaugment
    from resnet_tpu.data.pixels.preprocess import train_image

    cv2.setNumThreads(1)  # as in the loader
    rng, size = np.random.default_rng(0), options.image_size
    crops, out = make_crops(photos, size), np.empty((size, size, 3), np.uint8)
    figures = {
        "randaugment": cpu_us(lambda crop: randaugment(crop, rng, magnitude=MAGNITUDE), crops, options.runs),
        "autoaugment": cpu_us(lambda crop: autoaugment(crop, rng), crops, options.runs),
        "random_erasing": cpu_us(lambda crop: random_erasing(crop, rng, 1), crops, options.runs),
        "decode_crop_resize": cpu_us(lambda photo: train_image(photo, size, rng, out), photos, len(photos)),
    }
    for name, operation in OPERATIONS["tf"].items():

        def apply(crop: np.ndarray, name: str = name, operation: Callable[..., np.ndarray] = operation) -> None:
            operation(crop, *draw_arguments(name, MAGNITUDE, RANDAUGMENT, crop.shape, rng))

        figures[name] = cpu_us(apply, crops, options.runs // 10 + 1)
    return figures


def measure_peer(photos: Sequence[bytes], options: argparse.Namespace, *, tensors: bool) -> dict[str, float]:
    """CPU microseconds of torchvision's two policies."""
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    torch.manual_seed(0)
    crops = make_crops(photos, options.image_size)
    images = [torch.from_numpy(crop.transpose(2, 0, 1).copy()) if tensors else Image.fromarray(crop) for crop in crops]
    policies = {"randaugment": v2.RandAugment(2, MAGNITUDE), "autoaugment": v2.AutoAugment()}
    return {name: cpu_us(policy, images, options.runs) for name, policy in policies.items()}


def describe_ours(outputs: Sequence[dict[str, float]], image_size: int) -> str:
    """A Markdown table with the time of each of our parts, as the median over rounds."""
    header = (f"at {image_size} px, of {OURS}", "CPU us per image")
    return markdown(header, ((name.replace("_", " "), f"{compare.median(outputs, name):.0f}") for name in outputs[0]))


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("augment", __doc__, rounds=5)
    parser.add_argument("images", nargs="?", type=Path, help="Folder with JPEG files. Not for --quick.")
    parser.add_argument("--image_size", type=int, default=224, help="Default: %(default)s.")
    parser.add_argument("--runs", type=int, default=2000, help="Images per measurement. Default: %(default)s.")
    parser.add_argument("--worker", choices=["ours", "pil", "tensors"], help="One run in this process, as JSON.")
    options = parser.parse_args()
    if options.worker:
        files = sorted(path for path in options.images.rglob("*") if path.suffix.lower() in SUFFIXES)
        photos = [path.read_bytes() for path in files]
        if options.worker == "ours":
            figures = measure_ours(photos, options)
        else:
            figures = measure_peer(photos, options, tensors=options.worker == "tensors")
        print(json.dumps(figures))
        return
    compare.require("torchvision, a peer", "torchvision", "torchvision")
    if not options.quick and options.images is None:
        parser.error("the folder of images is needed; --quick does without.")
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            options.images, options.rounds, options.runs = Path(folder), 1, 20
            draw_photos(options.images, 60)
        shared = (options.images, "--image_size", options.image_size, "--runs", options.runs)
        sides = {OURS: "ours", PIL: "pil", TENSORS: "tensors"}
        commands = {name: script.worker("augment", *shared, "--worker", side) for name, side in sides.items()}
        outputs = script.alternate(commands, options)
    what = f"{options.image_size} px, CPU us per image"
    rows = [script.compared(what, policy, OURS, peer, outputs) for policy in POLICIES for peer in (PIL, TENSORS)]
    text = f"{script.table(rows)}\n\n{describe_ours(outputs[OURS], options.image_size)}"
    figures = {"comparisons": [asdict(row) | {"ratios": row.ratios()} for row in rows], OURS: outputs[OURS]}
    script.report("augment", text, figures, options)


if __name__ == "__main__":
    script.main(main)
