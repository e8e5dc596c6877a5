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

_OTHER_NAMES = {"init_from": "resnet_checkpoint"}
"""Names that also mean an option of `train`."""

_WIDE = 1000
"""Columns of a table that goes into a file or a pipe: no name is cut or folded there."""

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
class ConvertOptions:
    """What `convert` makes of weights."""

    to: Literal["model_dir", "tf1", "safetensors"] | None = option(
        None,
        "What to write: a model_dir for every verb here; a folder with a TF1 checkpoint of the original; a file with "
        "torchvision's names. Default: by the name of DST, safetensors or model_dir.",
    )
    inspect: bool = option(False, "Only show what is in SRC: names, shapes, types, sizes, and what it seems to be.")
    labels: str = option("", "Text file with the name of each class on a line. Default: those in SRC, else numbers.")
    image_size: int | None = option(
        None, "Side in pixels of the images that the model_dir is for. Default: 224.", at_least=8
    )


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
            "resnet-tpu train --init_from=resnet50.safetensors --data_dir=data/flowers --model_dir=runs/tuned",
            "resnet-tpu train --config_file=mine.yaml --params_override=train_batch_size=256,seed=1",
            "resnet-tpu train --data_dir=synthetic --model_dir=runs/speed --train_steps=100    # measure speed",
        ),
    )
    bulk = options_of("bulk", BulkOptions)
    recipe = bulk.pop("recipe")
    named = dataclasses.replace(recipe, help=recipe.help.format(", ".join(RECIPES)))
    parser.add_options("options in bulk", [named, *bulk.values()], repeatable=bulk)
    for concern, title in _CONCERNS.items():
        options = [found for found in OPTIONS.values() if found.group == concern]
        parser.add_options(title, options, other_names=_OTHER_NAMES)
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


def convert(arguments: Sequence[str]) -> None:
    """Turn weights of the original program, torchvision or timm into a model_dir, and back."""
    parser = Parser(
        "resnet-tpu convert",
        f"{convert.__doc__} Nothing of a file is ever run.\n\n"
        "SRC is a TF1 checkpoint (prefix or folder), a .safetensors or .pth file, a folder from Hugging Face's hub, or "
        "a\nmodel_dir or checkpoint. DST must be new.",
        usage="SRC DST [options], or --inspect SRC",
        examples=(
            "resnet-tpu convert --inspect resnet50.pth",
            "resnet-tpu convert resnet-nhwc-2018-02-07 runs/original --labels=imagenet.txt",
            "resnet-tpu convert resnet50.safetensors runs/torchvision --image_size=176",
            "resnet-tpu convert runs/flowers flowers.safetensors          # for PyTorch",
            "resnet-tpu convert runs/flowers flowers_tf1 --to=tf1          # for the original program",
        ),
    )
    parser.add_argument("source", metavar="SRC", help="The weights.")
    parser.add_argument("target", metavar="DST", nargs="?", help="Folder, or file *.safetensors, to write.")
    own = options_of("convert", ConvertOptions)
    parser.add_options("what to do", own.values())
    overrides = options_of("bulk", BulkOptions)["params_override"]
    about = "Options of the network or its training that SRC does not tell: precision=float32,resnetd_shortcut=true."
    parser.add_options("options in bulk", [dataclasses.replace(overrides, help=about)], repeatable=(overrides.name,))
    given = parser.parse(arguments)
    options = _fill(ConvertOptions, {name: given[name] for name in own if name in given})
    source, target = given["source"], given["target"]
    if options.inspect:
        if more := [name for name in given if name not in ("source", "inspect") and given[name] is not None]:
            raise UserError("--inspect", ", ".join(more), "SRC alone", "Leave the rest out: nothing is converted.")
        _show_weights(source)
        return
    if target is None:
        raise UserError("DST", "nothing", "a folder or *.safetensors to write", "Give it, or --inspect.")
    layers = [Layer("--params_override", parse_overrides(text)) for text in given.get("params_override", ())]
    merge(Config(), layers)  # mistakes show before the weights are read

    from resnet_tpu.train.convert import convert as convert_weights

    convert_weights(
        source,
        target,
        to=options.to,
        labels=options.labels,
        image_size=options.image_size,
        overrides={name: value for layer in layers for name, value in layer.values.items()},
    )


def _show_weights(path: str) -> None:
    """Prints what is in the weights at `path`."""
    from rich.console import Console

    from resnet_tpu.checkpoints.inspection import inspect, render

    shown = render(inspect(path))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(shown)


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
    "convert": convert,
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
