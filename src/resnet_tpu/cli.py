"""`resnet-tpu VERB ...`: one function per verb.

Importing this module is quick: what a verb needs is imported inside its function.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from resnet_tpu import __version__
from resnet_tpu.arguments import Parser, convert_options
from resnet_tpu.config import OPTIONS, Config, option, options_of
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.overrides import Layer, merge, parse_overrides, read_run, read_yaml
from resnet_tpu.program import exit_code

T = TypeVar("T")

_CONCERNS = {
    "data": "the images",
    "model": "the network",
    "optimizer": "loss, optimizer and learning rate",
    "train": "how long, how often, and what is kept",
    "eval": "evaluation, prediction and export",
    "run": "the run",
}


@dataclass(frozen=True)
class BulkOptions:
    """Where many options come from at once."""

    recipe: str = option("", "Start from the options of a recipe: {}.")
    config_file: str = option("", "YAML file of options, one `name: value` per line.")
    params_override: str = option("", "Options in one string: a=1,b=2; or a YAML mapping; or a YAML file.")


@dataclass(frozen=True)
class EvalOptions:
    """What `eval` does beside the options of a run."""

    watch: bool = option(False, "Follow a training: evaluate every new checkpoint, up to the last or eval_timeout.")


@dataclass(frozen=True)
class PredictOptions:
    """What `predict` reads and writes."""

    split: Literal["test", "validation", "train"] = option("test", "Images of data_dir to predict if none are named.")
    format: Literal["table", "csv", "json"] = option("table", "How to print the predictions.")
    top_k: int = option(5, "Classes to name for each image.", at_least=1)
    output_dir: str = option("", "Folder for predictions and, with known labels, per-class figures and pictures.")


@dataclass(frozen=True)
class ResultsOptions:
    """What `results` shows."""

    metric: str = option("top_1_accuracy", "Tag of the event files.")
    split: Literal["eval", "train"] = option("eval", "Values of the evaluations or of the training steps.")
    format: Literal["table", "csv"] = option("table", "How to print the values.")
    picture: str = option("", "Also draw them into this PNG file.")


@dataclass(frozen=True)
class DemoOptions:
    """What `demo` works on."""

    data_dir: str = option("", "Folder of photos, one folder per class. Default: scanned digits, 8x8 px each.")
    output_dir: str = option("resnet_tpu_demo", "Folder for everything the demo makes.")


def prepare(arguments: Sequence[str]) -> None:
    """Turn folders of images per class, split folders or a CSV into TFRecords that train reads fast."""
    from rich.console import Console

    from resnet_tpu.data.prepare import PrepareOptions
    from resnet_tpu.data.prepare import prepare as prepare_images
    from resnet_tpu.data.report import render_report

    parser = Parser(
        "resnet-tpu prepare",
        f"{prepare.__doc__}",
        usage="RAW OUT [options]",
        examples=(
            "resnet-tpu prepare flower_photos data/flowers      # downloads them when there is no such folder",
            "resnet-tpu prepare my_photos data/mine --short_side=256 --workers=8",
            "resnet-tpu prepare photos.csv data/photos --split=0.9,0.1     # CSV: path,label[,split]",
        ),
    )
    parser.add_argument(
        "raw_dir", metavar="RAW", help="Folder of class folders, plain or in train/ validation/ test/; or CSV."
    )
    parser.add_argument("out_dir", metavar="OUT", help="Folder for the shards and manifest.json.")
    parser.add_options("options", options_of("prepare", PrepareOptions).values())
    given = parser.parse(arguments)
    manifest = prepare_images(given.pop("raw_dir"), given.pop("out_dir"), _fill(PrepareOptions, given))
    Console().print(render_report(manifest))


def train(arguments: Sequence[str]) -> None:
    """Train on images, evaluate along the way, keep checkpoints; go on where model_dir stopped."""
    from resnet_tpu.recipes import RECIPES, find_recipe

    parser = Parser(
        "resnet-tpu train",
        f"{train.__doc__}\n\nOptions add up, later over earlier: defaults, --recipe, --config_file, "
        "--params_override, single options.",
        examples=(
            "resnet-tpu train --recipe=flowers_cpu --data_dir=flower_photos --model_dir=runs/flowers",
            "resnet-tpu train --recipe=flowers --data_dir=data/flowers --model_dir=runs/flowers --train_steps=90epochs",
            "resnet-tpu train --config_file=mine.yaml --params_override=train_batch_size=256,seed=1",
            "resnet-tpu train --data_dir=synthetic --model_dir=runs/speed --train_steps=100    # measure speed",
        ),
    )
    bulk = options_of("bulk", BulkOptions)
    recipe = bulk.pop("recipe")
    named = dataclasses.replace(recipe, help=recipe.help.format(", ".join(RECIPES)))
    parser.add_options("options in bulk", [named, *bulk.values()], repeatable=bulk)
    for concern, title in _CONCERNS.items():
        parser.add_options(title, [found for found in OPTIONS.values() if found.group == concern])
    given = parser.parse(arguments)
    name = given.pop("recipe", "")
    layers = [Layer(f"recipe {name}", find_recipe(name).flat())] if name else []
    config = _configure(given, layers)
    if config.run.mode not in ("train", "train_and_eval"):
        raise UserError("mode", config.run.mode, "train or train_and_eval", f"See resnet-tpu {config.run.mode} --help.")
    if not config.data.data_dir:
        do = "Give --data_dir=FOLDER, or --data_dir=null to measure speed without images."
        raise UserError("data_dir", "nothing", "TFRecords or a folder of images per class", do)
    run(config)


def evaluate(arguments: Sequence[str]) -> None:
    """Evaluate the newest checkpoint of a run on the validation images."""
    parser = Parser(
        "resnet-tpu eval",
        f"{evaluate.__doc__} Options that are not given are the run's own.",
        usage="MODEL_DIR [options]",
        examples=(
            "resnet-tpu eval runs/flowers",
            "resnet-tpu eval runs/flowers --watch --eval_timeout=3600      # beside a training",
            "resnet-tpu eval runs/flowers --data_dir=data/other_flowers",
        ),
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="Folder of the run.")
    parser.add_options("what to do", options_of("eval", EvalOptions).values())
    _add_run_options(parser, "data", "eval", "run")
    given = parser.parse(arguments)
    watch = _fill(EvalOptions, {"watch": given.pop("watch", False)}).watch
    own = read_run(given["model_dir"])
    config = _configure({**given, "mode": "eval"}, [own] if own else [])

    from resnet_tpu.train.evaluate import evaluate_run

    evaluate_run(config, watch=watch)


def predict(arguments: Sequence[str]) -> None:
    """Name the classes of images: of files, of folders, or of a split of the data."""
    parser = Parser(
        "resnet-tpu predict",
        f"{predict.__doc__} With known labels also the accuracy and what was mistaken for what.",
        usage="CHECKPOINT [IMAGE_OR_FOLDER ...] [options]",
        examples=(
            "resnet-tpu predict runs/flowers rose.jpg tulips/",
            "resnet-tpu predict runs/flowers --split=test --output_dir=report",
            "resnet-tpu predict runs/flowers/checkpoints/1000 photos --format=csv --top_k=1",
        ),
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="A checkpoint, or a model_dir: its newest one.")
    parser.add_argument(
        "images", metavar="IMAGE_OR_FOLDER", nargs="*", default=[], help="Default: the test split of data_dir."
    )
    own = options_of("predict", PredictOptions)
    parser.add_options("what to do", own.values())
    _add_run_options(parser, "data", "eval", "run")
    given = parser.parse(arguments)
    checkpoint, images = given.pop("checkpoint"), given.pop("images")
    options = _fill(PredictOptions, {name: given.pop(name) for name in own if name in given})
    layers = [found] if (found := read_run(checkpoint)) else []
    config = _configure({**given, "model_dir": checkpoint, "mode": "predict"}, layers)

    from resnet_tpu.train.predict import predict as predict_images

    predict_images(
        config,
        images,
        split=options.split,
        output_format=options.format,
        top_k=options.top_k,
        output_dir=options.output_dir,
    )


def results(arguments: Sequence[str]) -> None:
    """Show what runs reached, step by step: ours, or the original's event files."""
    parser = Parser(
        "resnet-tpu results",
        f"{results.__doc__}",
        usage="MODEL_DIR ... [options]",
        examples=(
            "resnet-tpu results runs/flowers",
            "resnet-tpu results runs/a runs/b --metric=loss --picture=loss.png",
            "resnet-tpu results runs/flowers --format=csv > accuracy.csv",
        ),
    )
    parser.add_argument("model_dirs", metavar="MODEL_DIR", nargs="+", help="Folders of runs, or event files.")
    parser.add_options("what to show", options_of("results", ResultsOptions).values())
    given = parser.parse(arguments)
    model_dirs = given.pop("model_dirs")
    options = _fill(ResultsOptions, given)

    from rich.console import Console

    from resnet_tpu.train import results as found

    rows = found.results(model_dirs, options.metric, split=options.split)
    if options.format == "csv":
        sys.stdout.write(found.results_csv(rows, options.metric))
    else:
        Console().print(found.results_table(rows, options.metric))
    if options.picture:
        from resnet_tpu.train.curves import draw_results
        from resnet_tpu.train.style import write_png

        write_png(draw_results(rows, options.metric), options.picture)


def demo(arguments: Sequence[str]) -> None:
    """See the whole way, from a folder of images to predictions, on data that is at hand."""
    parser = Parser(
        "resnet-tpu demo",
        f"{demo.__doc__} Needs no network and a few minutes on 2 CPU cores.",
        examples=("resnet-tpu demo", "resnet-tpu demo --data_dir=my_photos --output_dir=my_demo"),
    )
    parser.add_options("what to work on", options_of("demo", DemoOptions).values())
    options = _fill(DemoOptions, parser.parse(arguments))

    from resnet_tpu.demo import demo as run_demo

    run_demo(options.data_dir, options.output_dir)


VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "prepare": prepare,
    "train": train,
    "eval": evaluate,
    "predict": predict,
    "results": results,
    "demo": demo,
}


def run(config: Config) -> None:
    """Does what `mode` says: for this program and for `resnet_main`."""
    if not config.run.model_dir:
        raise UserError("model_dir", "nothing", "a folder for checkpoints and metrics", "Give --model_dir=FOLDER.")
    if config.run.mode == "eval":
        from resnet_tpu.train.evaluate import evaluate_run

        evaluate_run(config, watch=True)
    elif config.run.mode == "predict":
        from resnet_tpu.train.predict import predict as predict_images

        predict_images(config)
    else:
        from resnet_tpu.train.loop import train as train_network

        train_network(config)
        if config.eval.export_dir:
            from resnet_tpu.export.stablehlo import export_run

            export_run(config)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `resnet-tpu`. Returns the exit code: 0 done, 2 the user's to mend, 130 interrupted."""
    return exit_code(_dispatch, sys.argv[1:] if arguments is None else arguments)


def _dispatch(arguments: Sequence[str]) -> None:
    verb = arguments[0] if arguments else "--help"
    if verb in ("--help", "-h", "help"):
        print(_overview())
    elif verb == "--version":
        print(f"resnet-tpu {__version__}")
    elif verb in VERBS:
        VERBS[verb](arguments[1:])
    else:
        raise UserError("Verb", verb, f"one of {', '.join(VERBS)}", f"See resnet-tpu --help.{nearest(verb, VERBS)}")


def _overview() -> str:
    verbs = "\n".join(f"  {name:9}{function.__doc__}" for name, function in VERBS.items())
    return (
        "usage: resnet-tpu VERB [options]\n\nImage classification with ResNets on TPU, GPU and CPU.\n\n"
        f"verbs:\n{verbs}\n\nexamples:\n  resnet-tpu demo\n"
        "  resnet-tpu train --recipe=flowers_cpu --data_dir=flower_photos --model_dir=runs/flowers\n"
        "  resnet-tpu predict runs/flowers rose.jpg\n\n"
        "`resnet-tpu VERB --help` lists the options of a verb. The flags of the original program work with\n"
        "`python -m resnet_tpu.resnet_main`."
    )


def _add_run_options(parser: Parser, *concerns: str) -> None:
    """Adds the options for working on a run that is there; its model_dir and the mode are the verb's to say."""
    bulk = options_of("bulk", BulkOptions)
    del bulk["recipe"]
    parser.add_options("options in bulk", bulk.values(), repeatable=bulk)
    for concern in concerns:
        own = [found for name, found in OPTIONS.items() if found.group == concern and name not in ("mode", "model_dir")]
        parser.add_options(_CONCERNS[concern], own)


def _configure(given: Mapping[str, Any], below: Sequence[Layer]) -> Config:
    """The defaults, the layers `below`, and what was given on the command line, in bulk and singly."""
    layers = [*below]
    layers += [Layer(path, read_yaml(path)) for path in given.get("config_file", ())]
    layers += [Layer("--params_override", parse_overrides(text)) for text in given.get("params_override", ())]
    layers.append(Layer("command line", {name: value for name, value in given.items() if name in OPTIONS}))
    return merge(Config(), layers)[0]


def _fill(owner: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass `owner` with these values, given as text, in the types of its fields."""
    return owner(**convert_options(values, options_of("", owner)))
