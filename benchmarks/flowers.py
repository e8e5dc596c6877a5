"""Test accuracy of a recipe over several seeds, compared with the same training of the same network in PyTorch.

Ours runs as a user would run it: `resnet-tpu train --recipe=flowers_cpu`, then `resnet-tpu predict --split=test`.
PyTorch gets the same recipe: learning rate of every step, weight decay, label smoothing, number of steps. It also gets
the same batches, in the same order and with the same crops, because it reads them from our loader with the same seed.
So the comparison is about the network, its initial weights and the optimizer, not about two ways to crop. Both make
predictions for the same centre crops of the test photos.

    python -m benchmarks.flowers --data_dir=data/flowers               # seeds 0, 1, 2
    python -m benchmarks.flowers --data_dir=data/flowers --rounds=5    # seeds 0 ... 4: a more reliable mean
    python -m benchmarks.flowers --data_dir=data/flowers --same_weights

The two draw their initial weights independently, from the same distributions. With few test photos the mean over a few
seeds is a rough figure: 100 photos and 3 seeds leave an error of about 2 percentage points in the difference.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.figures import markdown
from resnet_tpu.recipes import find_recipe

OURS, PEER = "resnet_tpu", "PyTorch"


def train_ours(changes: dict[str, Any], recipe: str) -> dict[str, float]:
    """Trains and predicts through the command line. Returns `test_accuracy` (top-1) and `train_secs`."""
    with tempfile.TemporaryDirectory() as model_dir:
        flags = [f"--{name}={value}" for name, value in changes.items()]
        flags += [f"--recipe={recipe}"] if recipe else []
        start = time.perf_counter()
        _resnet_tpu("train", f"--model_dir={model_dir}", "--mode=train", *flags)
        train_secs = time.perf_counter() - start
        predictions = json.loads(_resnet_tpu("predict", model_dir, "--split=test", "--format=json"))
    return {"test_accuracy": predictions["accuracy"]["top_1"], "train_secs": train_secs}


def _resnet_tpu(*arguments: str) -> str:
    command = [sys.executable, "-m", "resnet_tpu", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(shlex.join(command), f"exit code {done.returncode}", "exit code 0", "Its message is above.")
    return done.stdout


def train_peer(config: Config, *, same_weights: bool) -> dict[str, float]:
    """Trains and predicts in PyTorch, on the batches of our loader. Returns `test_accuracy` and `train_secs`."""
    start = time.perf_counter()
    import jax

    from resnet_tpu.data.loader.batches import eval_batches, train_batches
    from resnet_tpu.data.sources.data_dir import open_source
    from resnet_tpu.data.sources.subset import evenly_spaced
    from resnet_tpu.models.from_options import create_network
    from resnet_tpu.performance.bench import torch_resnet
    from resnet_tpu.training.maths.lengths import lengths_of
    from resnet_tpu.training.maths.schedule import make_schedule
    from resnet_tpu.training.run import fill_in_counts

    source = open_source(config.data, "train")
    config = fill_in_counts(config, source)
    num_classes, num_steps = config.data.num_label_classes or 0, lengths_of(config).total
    rates = jax.device_get(jax.vmap(make_schedule(config))(jax.numpy.arange(num_steps)))
    options, seed = config.optimizer, config.train.seed
    model = torch_resnet.build(config.model.resnet_depth, num_classes, seed=seed)
    if same_weights:
        network = create_network(config.model, num_classes=num_classes, image_size=config.data.image_size)
        torch_resnet.copy_weights(model, network.init(seed)[0])
    optimizer = torch_resnet.make_optimizer(
        model, momentum=options.momentum, nesterov=options.nesterov, weight_decay=options.weight_decay
    )
    step = torch_resnet.make_train_step(
        model, optimizer, label_smoothing=options.label_smoothing, precision=config.model.precision
    )
    with train_batches(source, config.data, batch_size=config.train.train_batch_size, seed=seed) as batches:
        for rate, batch in zip(rates.tolist(), batches, strict=False):
            step(batch["image"], batch["label"], rate)
    train_secs = time.perf_counter() - start
    test = open_source(config.data, "test")
    test = evenly_spaced(test, config.data.num_test_images or len(test))  # as `predict` does
    test = eval_batches(test, config.data, batch_size=config.eval.eval_batch_size)
    counts = [_count_correct(model, batch) for batch in test]
    return {"test_accuracy": sum(right for right, _ in counts) / sum(n for _, n in counts), "train_secs": train_secs}


def _count_correct(model: Any, batch: dict[str, np.ndarray]) -> tuple[int, int]:
    """(number of images of weight 1 that the PyTorch network classifies correctly, number of images of weight 1)."""
    import torch

    from resnet_tpu.performance.bench import torch_resnet

    model.eval()
    with torch.inference_mode():
        found = model(torch_resnet.normalize(torch_resnet.put(batch["image"]))).argmax(1).cpu().numpy()
    return int(((found == batch["label"]) * batch["weight"]).sum()), int(batch["weight"].sum())


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("flowers", __doc__, rounds=3)
    parser.add_argument(
        "--data_dir", help="Prepared TFRecords, or a folder of photos per class. Needed but for --quick."
    )
    parser.add_argument("--recipe", default="flowers_cpu", help="Of ResNet-18, 34 or 50. Default: %(default)s.")
    parser.add_argument("--train_steps", help="Steps, or epochs such as 20epochs. Default: the recipe's.")
    parser.add_argument(
        "--same_weights", action="store_true",
        help="Start PyTorch from our initial weights: then the two differ in rounding alone.",
    )  # fmt: skip
    parser.add_argument("--worker", choices=["ours", "peer"], help="One run in this process, as JSON.")
    parser.add_argument("--seed", type=int, default=0, help="Of the worker's run. Rounds have seeds 0, 1, 2 ...")
    options = parser.parse_args()
    if not (options.data_dir or options.quick):
        parser.error("--data_dir is needed; --quick does without.")
    if options.worker:
        changes = _changes(options)
        if options.worker == "ours":
            figures = train_ours(changes, options.recipe)
        else:
            figures = train_peer(find_recipe(options.recipe).replace(**changes), same_weights=options.same_weights)
        print(json.dumps(figures))
        return
    compare.require(PEER, "torch", "torch")
    if options.quick:
        options.rounds = 1
    _compare(options)


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The options that differ from the recipe's, by flat name."""
    changes: dict[str, Any] = {"seed": options.seed, "data_dir": options.data_dir}
    if options.train_steps:
        changes["train_steps"] = options.train_steps
    if options.quick:
        changes |= {"train_steps": 6, "warmup_steps": 2, "iterations_per_loop": 6, "num_test_images": 32}
        changes |= {"data_dir": options.data_dir or "synthetic"}
        if not options.data_dir:
            changes |= {"num_train_images": 320, "num_label_classes": 5}
    return changes


def _compare(options: argparse.Namespace) -> None:
    given = [f"--recipe={options.recipe}"]
    given += [f"--{name}={value}" for name in ("data_dir", "train_steps") if (value := getattr(options, name))]
    given += [f"--{name}" for name in ("quick", "same_weights") if getattr(options, name)]
    commands = {OURS: script.worker("flowers", "--worker=ours", *given)}
    commands[PEER] = script.worker("flowers", "--worker=peer", *given)
    outputs = script.alternate(commands, options, round_option="--seed")
    header = ("seed", "ours, test top-1", "PyTorch, test top-1", "ours, s", "PyTorch, s")
    rows = [_row(seed, *runs) for seed, runs in enumerate(zip(outputs[OURS], outputs[PEER], strict=True))]
    means = [
        {key: statistics.mean(run[key] for run in outputs[name]) for key in outputs[name][0]} for name in (OURS, PEER)
    ]
    points = 100 * (means[0]["test_accuracy"] - means[1]["test_accuracy"])
    text = markdown(header, [*rows, _row("mean", *means)], [f"Difference of the means: {points:+.1f} points."])
    figures = {"recipe": options.recipe, "runs": outputs, "difference_of_means_points": points}
    script.report("flowers", text, figures, options)


def _row(what: object, ours: dict[str, float], peer: dict[str, float]) -> list[object]:
    accuracies, seconds = ([run[name] for run in (ours, peer)] for name in ("test_accuracy", "train_secs"))
    return [what, *(f"{accuracy:.1%}" for accuracy in accuracies), *(f"{secs:.0f}" for secs in seconds)]


if __name__ == "__main__":
    script.main(main)
