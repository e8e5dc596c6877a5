"""Images per second of a training step, next to the same network, loss and optimizer in PyTorch.

The batch is in memory, so that nothing but the step is measured: uint8 images in; normalisation, forward, backward,
L2 term on all but batch norm, Nesterov momentum; new parameters out. PyTorch runs eagerly in channels_last memory, in
bfloat16 by autocast; all available cores for both. Every run warms up, then times each step and gives the median.

    python -m benchmarks.step                                  # ResNet-50 at 224 px, ResNet-18 at 128 px, both types
    python -m benchmarks.step --cases 18:128:32 --precision float32 --rounds 3
    python -m benchmarks.step --check                          # do both programs compute the same?
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import script
from resnet_tpu.bench import compare
from resnet_tpu.config import Config
from resnet_tpu.errors import UserError

OURS, PEER = "resnet_tpu", "PyTorch"
NUM_CLASSES = 1000
CHECK_STEPS = 3
CHECK_TOLERANCE = 1e-5
"""Largest relative difference of a loss. Rounding makes some 1e-7; a wrong weight decay, the smallest mistake, 1e-4."""


@dataclass(frozen=True)
class Case:
    """What is trained: `50:224:16` is ResNet-50 on images of 224 px in batches of 16."""

    depth: int
    image_size: int
    batch_size: int

    @classmethod
    def parse(cls, text: str) -> "Case":
        """From `depth:image_size:batch_size`. Raises UserError."""
        try:
            depth, image_size, batch_size = map(int, text.split(":"))
        except ValueError:
            raise UserError("Case", repr(text), "depth:image_size:batch_size", "For example 50:224:16.") from None
        if depth not in (18, 34, 50) or image_size < 64 or batch_size < 2:
            raise UserError("Case", text, "depth 18, 34 or 50, at least 64 px and 2 images", "Change the case.")
        return cls(depth, image_size, batch_size)

    def __str__(self) -> str:
        return f"{self.depth}:{self.image_size}:{self.batch_size}"

    def config(self, precision: str) -> Config:
        """The options that both programs follow. The weight decay is large so that `--check` sees it."""
        return Config().replace(
            resnet_depth=self.depth,
            image_size=self.image_size,
            train_batch_size=self.batch_size,
            precision=precision,
            base_learning_rate=0.1,
            learning_rate_schedule="constant",
            num_train_images=1000,
            num_label_classes=NUM_CLASSES,
            label_smoothing=0.1,
            weight_decay=0.01,
        )

    def batch(self) -> dict[str, np.ndarray]:
        """The same random images and labels for everyone."""
        rng = np.random.default_rng(0)
        shape = (self.batch_size, self.image_size, self.image_size, 3)
        return {
            "image": rng.integers(0, 256, shape, np.uint8),
            "label": rng.integers(0, NUM_CLASSES, self.batch_size, np.int32),
            "weight": np.ones(self.batch_size, np.float32),
        }


def make_ours(case: Case, precision: str) -> tuple[Any, Callable[[], float]]:
    """(initial parameters, a training step on one device that returns the loss) of resnet_tpu."""
    import jax

    from resnet_tpu.models.network import Network
    from resnet_tpu.train.optimizer import make_optimizer
    from resnet_tpu.train.schedule import make_schedule
    from resnet_tpu.train.state import create_state
    from resnet_tpu.train.step import make_train_step

    config = case.config(precision)
    network = Network.create(config.model, num_classes=NUM_CLASSES, image_size=case.image_size)
    optimizer = make_optimizer(config.optimizer)
    state = create_state(network, optimizer, seed=0)
    params = jax.device_get(state.params)
    train_step = make_train_step(network, optimizer, make_schedule(config), config.optimizer)
    batch = jax.device_put(case.batch())

    def step() -> float:
        nonlocal state
        state, metrics = train_step(state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    return params, step


def make_peer(case: Case, precision: str) -> tuple[Any, Callable[[], float]]:
    """(the network, a training step that returns the loss without its L2 term) of PyTorch."""
    from benchmarks import torch_resnet

    config = case.config(precision)
    options = config.optimizer
    model = torch_resnet.build(case.depth, NUM_CLASSES, seed=0)
    optimizer = torch_resnet.make_optimizer(
        model, momentum=options.momentum, nesterov=options.nesterov, weight_decay=options.weight_decay
    )
    train_step = torch_resnet.make_train_step(
        model, optimizer, label_smoothing=options.label_smoothing, precision=precision
    )
    batch = case.batch()
    rate = options.base_learning_rate * case.batch_size / 256
    return model, lambda: train_step(batch["image"], batch["label"], rate)


def measure(step: Callable[[], float], batch_size: int, *, warmup: int, steps: int) -> dict[str, float]:
    """Images per second at the median and at the fastest of `steps` steps, and what came before them."""
    start = time.perf_counter()
    for _ in range(warmup):
        step()
    warmup_secs = time.perf_counter() - start
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {
        "images_per_sec": batch_size / statistics.median(seconds),
        "best_images_per_sec": batch_size / min(seconds),
        "warmup_secs": warmup_secs,
    }


def check(case: Case) -> None:
    """Prints the losses of a few float32 steps of both from the same weights. Raises UserError when they differ."""
    from benchmarks import torch_resnet

    params, step = make_ours(case, "float32")
    model, peer_step = make_peer(case, "float32")
    torch_resnet.copy_weights(model, params)
    weight_decay = case.config("float32").optimizer.weight_decay
    print(f"{case}\n| step | ours | {PEER} | relative difference |\n|---|---|---|---|")
    for number in range(CHECK_STEPS):
        peer = 0.5 * weight_decay * torch_resnet.sum_of_squares(model)
        peer += peer_step()
        ours = step()
        difference = abs(ours - peer) / abs(peer)
        print(f"| {number} | {ours:.6f} | {peer:.6f} | {difference:.1e} |")
        if not difference < CHECK_TOLERANCE:
            what = f"Loss at step {number}, relative difference"
            raise UserError(what, difference, f"less than {CHECK_TOLERANCE}", "The two programs are not the same.")


def main() -> None:
    """The command line."""
    parser = script.make_parser("step", __doc__, rounds=5)
    parser.add_argument(
        "--cases", nargs="+", type=Case.parse, default=[Case(50, 224, 16), Case(18, 128, 32)], metavar="D:P:N",
        help="depth:image_size:batch_size, several if you like. Default: 50:224:16 18:128:32.",
    )  # fmt: skip
    parser.add_argument("--precision", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--warmup", type=int, default=4, help="Steps before the measured ones. Default: %(default)s.")
    parser.add_argument("--steps", type=int, default=12, help="Measured steps in a run. Default: %(default)s.")
    parser.add_argument("--check", action="store_true", help="Measure nothing; compare the losses of both programs.")
    parser.add_argument("--worker", choices=["ours", "peer"], help="One run in this process, as JSON.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.warmup, options.steps, options.cases = 1, 1, 2, [Case(18, 64, 8)]
    if options.worker:
        case, precision = options.cases[0], options.precision[0]
        _, step = (make_ours if options.worker == "ours" else make_peer)(case, precision)
        print(json.dumps(measure(step, case.batch_size, warmup=options.warmup, steps=options.steps)))
        return
    compare.require(PEER, "torch", "torch")
    if options.check:
        for case in options.cases:
            check(case)
        return
    script.report_ratios("step", [row for case in options.cases for row in _compare_case(case, options)], options)


def _compare_case(case: Case, options: argparse.Namespace) -> list[compare.Comparison]:
    rows = []
    for precision in options.precision:
        common = ("--cases", case, "--precision", precision, "--warmup", options.warmup, "--steps", options.steps)
        ours = script.worker("step", "--worker", "ours", *common)
        peer = script.worker("step", "--worker", "peer", *common)
        contenders = [compare.Contender(OURS, lambda _, c=ours: c), compare.Contender(PEER, lambda _, c=peer: c)]
        what = f"ResNet-{case.depth}, {case.image_size} px, batch {case.batch_size}, {precision}"
        rows.append(compare.compare(what, "images_per_sec", OURS, PEER, script.alternate(contenders, options)))
    return rows


if __name__ == "__main__":
    script.main(main)
