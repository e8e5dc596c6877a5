"""Test accuracy of variants of a training run: the same steps and seeds, with some options changed.

Each run is `resnet-tpu train`, then `resnet-tpu predict --split=test`, as a user would run them. The first variant is
the baseline for the others. All random numbers depend on the seed, which is the same for all variants of a round.

    python -m benchmarks.variants --recipe=flowers_cpu --options=data_dir=data/flowers \\
        --variant=plain: --variant=smoothed:label_smoothing=0.2 --rounds=3
"""

import argparse
import json
import statistics
from typing import Any

from benchmarks import script
from benchmarks.flowers import train_ours
from resnet_tpu.errors import UserError
from resnet_tpu.options.overrides import parse_overrides
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.figures import markdown

QUICK = (
    "data_dir=synthetic,num_train_images=320,num_label_classes=5,num_test_images=32,resnet_depth=18,resnet_width=4,"
    "image_size=32,train_batch_size=32,train_steps=4,iterations_per_loop=4,precision=float32"
)


def main() -> None:
    """Runs the benchmark."""
    parser = script.make_parser("variants", __doc__, rounds=3)
    parser.add_argument("--recipe", default="", help="What all variants start from.")
    parser.add_argument("--options", default="", help="Options of all variants: a=1,b=2.")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME:OPTIONS", help="A variant and its options. Repeat it."
    )
    parser.add_argument("--worker", metavar="VARIANT", help="One run in this process, as JSON.")
    parser.add_argument("--seed", type=int, default=0, help="Of the worker's run. Rounds have seeds 0, 1, 2 ...")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.recipe, options.options = 1, "", QUICK
        options.variant = options.variant or ["plain:", "smoothed:label_smoothing=0.1"]
    variants = dict(_split(text) for text in options.variant)
    if options.worker is not None:
        changes = parse_overrides(options.options) | variants[options.worker] | {"seed": options.seed}
        print(json.dumps(train_ours(changes, options.recipe)))
        return
    if len(variants) < 2:
        parser.error("Give at least two --variant.")
    _compare(options, list(variants))


def _split(text: str) -> tuple[str, dict[str, Any]]:
    name, colon, overrides = text.partition(":")
    if not colon:
        raise UserError("--variant", text, "NAME:OPTIONS", "For a variant without options write NAME: alone.")
    return name, parse_overrides(overrides)


def _compare(options: argparse.Namespace, names: list[str]) -> None:
    given = [f"--recipe={options.recipe}", f"--options={options.options}"]
    given += [f"--variant={text}" for text in options.variant]
    commands = {name: script.worker("variants", *given, f"--worker={name}") for name in names}
    outputs = script.alternate(commands, options, round_option="--seed")
    accuracies = {name: [run["test_accuracy"] for run in outputs[name]] for name in names}
    rows = [_row(seed, [accuracies[name][seed] for name in names]) for seed in range(options.rounds)]
    rows.append(_row("mean", [statistics.mean(accuracies[name]) for name in names]))
    seconds = (f"{compare.median(outputs[name], 'train_secs'):.0f} s" for name in names)
    rows.append(["median time of a training", *seconds])
    figures = {"recipe": options.recipe, "options": options.options, "variants": options.variant, "runs": outputs}
    script.report("variants", markdown(("test top-1, seed", *names), rows), figures, options)


def _row(what: object, accuracies: list[float]) -> list[object]:
    return [what, *(f"{accuracy:.1%}" for accuracy in accuracies)]


if __name__ == "__main__":
    script.main(main)
