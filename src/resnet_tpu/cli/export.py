"""`resnet-tpu export`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.cli.arguments import OtherName, Parser, fill
from resnet_tpu.cli.run_options import IN_TRAINING, add_run_options, configure
from resnet_tpu.options.fields import expand_home, option, options_of
from resnet_tpu.options.overrides import read_run
from resnet_tpu.reports.console import make_console

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportOptions:
    """What is done after the export."""

    verify: bool = option(
        False,
        "Compare every form with the trained network, on the images named or else on a split of the data. Also done "
        "when images are named, and for int8.",
    )
    split: Literal["test", "validation", "train"] | None = option(
        None, "Images of data_dir to compare on. Default: test, or validation where there is no test."
    )
    verify_images: int = option(500, "At most so many of them.", at_least=1)


def export(arguments: Sequence[str]) -> None:
    """Write a trained network as a bundle that runs anywhere: as StableHLO, ONNX, int8 or SavedModel."""
    parser = Parser(
        "resnet-tpu export",
        f"{export.__doc__}\n\nA new folder in EXPORT_DIR, named by the time, appears whole or not at all. "
        "Options that are not given are the run's own.",
        usage="CHECKPOINT EXPORT_DIR [IMAGE_OR_FOLDER ...] [options]",
        examples=(
            "resnet-tpu export runs/flowers exported",
            "resnet-tpu export runs/flowers exported --forms=stablehlo,onnx,int8 --name=flowers --verify",
            "resnet-tpu export runs/flowers/checkpoints/1000 exported photos/ --verify",
        ),
    )
    parser.add_argument(
        "checkpoint", type=expand_home, metavar="CHECKPOINT", help="A checkpoint, or a model_dir: its newest one."
    )
    parser.add_argument("export_dir", type=expand_home, metavar="EXPORT_DIR", help="Folder of bundles.")
    parser.add_argument(
        "images",
        type=expand_home,
        metavar="IMAGE_OR_FOLDER",
        nargs="*",
        default=[],
        help="Images to verify with. Default: a split.",
    )
    own = options_of("export", ExportOptions)
    parser.add_options("what to do", own.values())
    other_names = {"forms": OtherName("export_forms"), "name": OtherName("model_name")}
    unheeded = IN_TRAINING | {"export_dir", "eval_timeout"}
    add_run_options(parser, "data", "eval", "run", without=unheeded, other_names=other_names)
    given = parser.parse(arguments)
    places = {"model_dir": given.pop("checkpoint"), "export_dir": given.pop("export_dir")}
    images = given.pop("images")
    options = fill(ExportOptions, {name: given.pop(name) for name in own if name in given})
    layers = [found] if (found := read_run(places["model_dir"])) else []
    config = configure({**given, **places}, layers)

    from resnet_tpu import storage
    from resnet_tpu.parallel import distributed, hosts
    from resnet_tpu.serving.export.bundle import open_bundle
    from resnet_tpu.serving.export.export import check_export, chosen_forms, export_run
    from resnet_tpu.serving.export.verify import comparisons_table, files_table, open_reference, verify

    check_export(config.eval)
    distributed.start(use_tpu=config.run.use_tpu)
    with hosts.joined(config.run):
        reference = None
        if options.verify or images or "int8" in chosen_forms(config.eval):  # what is missing shows before the export
            reference = open_reference(config, images, split=options.split, num_images=options.verify_images)
        bundle = open_bundle(export_run(config))
    console = make_console()
    console.print(files_table(bundle))
    if reference:
        try:
            compared = verify(bundle, *reference)
        except BaseException:
            if hosts.is_first():  # nobody is to serve what may not compute what the network does
                storage.remove_dir(bundle.path)
                log.info("Removed %s again: it could not be verified.", bundle.path)
            raise
        console.print(comparisons_table(compared))
    console.print(f"{bundle.path}  holds {', '.join(bundle.forms)}.", soft_wrap=True)
    console.print(f"Predict with it: resnet-tpu predict {bundle.path} IMAGE", soft_wrap=True)
    console.print(f"Serve it: resnet-tpu serve {bundle.path}", soft_wrap=True)
