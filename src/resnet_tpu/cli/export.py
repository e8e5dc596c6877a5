"""`resnet-tpu export`."""

import shlex
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.cli.arguments import Alias, Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import LIKE_THE_RUN, configure, groups_for_runs
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import option
from resnet_tpu.options.run_file import read_run
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class ExportOptions:
    """What to do after the export."""

    verify: bool = option(
        False,
        "Compare every form with the trained network, on the images given, else on a split of the data. Always done "
        "if images are given, and for int8.",
    )
    split: Literal["train", "validation", "test"] | None = option(
        None,
        "Images of data_dir to compare on if none are given. Default: test, or validation if there is no test.",
    )
    verify_images: int = option(500, "Largest number of images to compare on.", at_least=1)


@Command(
    "resnet-tpu export",
    f"Writes a new folder in EXPORT_DIR, named after the time. It appears complete or not at all. {LIKE_THE_RUN}",
    examples=(
        "resnet-tpu export runs/flowers exported",
        "resnet-tpu export runs/flowers exported --forms=stablehlo,onnx,int8 --name=flowers --verify",
        "resnet-tpu export runs/flowers/checkpoints/1000 exported photos/ --verify",
    ),
    arguments=(
        Argument("model_dir", "CHECKPOINT", "A checkpoint, or a model_dir for its newest one."),
        Argument("export_dir", "EXPORT_DIR", "Folder in which to write the bundle."),
        Argument("images", "IMAGE_OR_FOLDER", "Images to verify with. Default: a split.", is_required=False, many=True),
    ),
    groups=[
        Group("what to do", ExportOptions),
        *groups_for_runs(
            without={"export_dir", "eval_timeout"},
            aliases={"forms": Alias("export_forms"), "name": Alias("model_name")},
        ),
    ],
)
def export(given: Given) -> None:
    """Write a trained network as a bundle that runs anywhere: as StableHLO, ONNX, int8 or SavedModel."""
    options, images = given.fill(ExportOptions), given.values["images"]
    config = configure(given.values, read_run(given.values["model_dir"]))

    from resnet_tpu.parallel import hosts
    from resnet_tpu.serving.export.bundle import open_bundle
    from resnet_tpu.serving.export.export import check_export, chosen_forms, export_run
    from resnet_tpu.serving.export.verify import Comparison, comparisons_table, files_table, open_expected, verify

    check_export(config.eval)
    verifies = options.verify or images or "int8" in chosen_forms(config.eval)
    for name in ("split", "verify_images"):
        if not verifies and (value := given.values.get(name)) is not None:
            raise UserError(name, value, "it only with --verify", "Add --verify, or leave it out.")
    if images and options.split:
        raise UserError("split", options.split, "it only without images", "Leave it out, or the images.")
    with hosts.connected(config.run):
        expected = None
        if verifies:  # reports missing data before the export
            expected = open_expected(config, images, split=options.split, num_images=options.verify_images)
        compared: list[Comparison] = []
        check = (lambda bundle: compared.extend(verify(bundle, expected))) if expected else None
        bundle = open_bundle(export_run(config, expected and expected.trained, check=check))
    console = make_console()
    console.print(files_table(bundle))
    if compared:
        console.print(comparisons_table(compared))
    path = shlex.quote(bundle.path)
    uses = [f"Predict with it: resnet-tpu predict {path} IMAGE", f"Serve it: resnet-tpu serve {path}"]
    if bundle.forms == ("savedmodel",):
        uses = ["Serve it with TensorFlow Serving."]
    for line in (f"{bundle.path}  holds {', '.join(bundle.forms)}.", *uses):
        console.print(line, markup=False, soft_wrap=True)  # so that commands can be copied whole
