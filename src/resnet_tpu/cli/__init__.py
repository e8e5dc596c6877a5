"""`resnet-tpu VERB ...`: one module per verb.

Importing this package is quick: what takes long to import is imported inside the functions of the verbs.
"""

from collections.abc import Sequence

from resnet_tpu import __version__
from resnet_tpu.cli import (
    bench,
    compact,
    completion,
    convert,
    demo,
    doctor,
    evaluate,
    export,
    models,
    plan,
    predict,
    prepare,
    profile,
    prune,
    recipes,
    results,
    serve,
    submit,
    train,
    tune,
)
from resnet_tpu.cli.command import Verb
from resnet_tpu.cli.menu import Menu
from resnet_tpu.system.program import run_program

VERBS: dict[str, Verb | Menu] = {
    "prepare": prepare.prepare,
    "train": train.train,
    "eval": evaluate.evaluate,
    "predict": predict.predict,
    "prune": prune.prune,
    "compact": compact.compact,
    "results": results.results,
    "recipes": recipes.recipes,
    "models": models.models,
    "convert": convert.convert,
    "export": export.export,
    "serve": serve.serve,
    "submit": submit.SUBMIT,
    "plan": plan.plan,
    "profile": profile.PROFILE,
    "tune": tune.tune,
    "bench": bench.BENCH,
    "demo": demo.demo,
    "doctor": doctor.doctor,
    "completion": completion.completion,
}

_ALL = Menu(
    "resnet-tpu",
    "Image classification with ResNets on TPU, GPU and CPU.",
    VERBS,
    examples=(
        "resnet-tpu demo",
        "resnet-tpu train my_photos                       # a folder of photos per class",
        "resnet-tpu predict runs/my_photos photo.jpg",
    ),
    what="COMMAND",
    version=f"resnet-tpu {__version__}",
    details="In the help, the original is TensorFlow's program ResNet-50 on TPU (tensorflow/tpu). Its flags work with "
    "`python -m resnet_tpu.resnet_main`.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `resnet-tpu`. Returns the exit code, see `run_program`."""
    return run_program(_ALL, arguments)
