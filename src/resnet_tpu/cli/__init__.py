"""`resnet-tpu VERB ...`: one module per verb.

Importing this package is quick: what a verb needs is imported inside its function.
"""

from collections.abc import Callable, Sequence

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
from resnet_tpu.cli.arguments import ASKING_FOR_HELP, entries
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.system.program import exit_code

VERBS: dict[str, Callable[[Sequence[str]], None]] = {
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
    "submit": submit.submit,
    "plan": plan.plan,
    "profile": profile.profile,
    "tune": tune.tune,
    "bench": bench.bench,
    "demo": demo.demo,
    "doctor": doctor.doctor,
    "completion": completion.completion,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `resnet-tpu`. Returns the exit code: 0 done, 2 for the user to mend, 130 or 143 when stopped."""
    return exit_code(_dispatch, arguments)


def _dispatch(arguments: Sequence[str]) -> None:
    verb, *others = arguments or ["--help"]
    if verb == "help" and others:
        verb, *others = *others, "--help"
    if verb in ASKING_FOR_HELP:
        print(_overview())
    elif verb in ("--version", "-V"):
        print(f"resnet-tpu {__version__}")
    elif verb in VERBS:
        VERBS[verb](others)
    else:
        raise UserError("Verb", verb, f"one of {', '.join(VERBS)}", f"See resnet-tpu --help.{nearest(verb, VERBS)}")


def _overview() -> str:
    verbs = entries({name: function.__doc__ or "" for name, function in VERBS.items()})
    return (
        "usage: resnet-tpu VERB [options]\n\nImage classification with ResNets on TPU, GPU and CPU.\n\n"
        f"verbs:\n{verbs}\n\nexamples:\n  resnet-tpu demo\n"
        "  resnet-tpu train my_photos                       # a folder of photos per class\n"
        "  resnet-tpu predict runs/my_photos photo.jpg\n\n"
        "`resnet-tpu help VERB` says how each is used. The flags of the original program work with\n"
        "`python -m resnet_tpu.resnet_main`."
    )
