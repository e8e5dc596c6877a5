"""`resnet-tpu demo`: runs the whole workflow on available data, from photos to pictures of the mistakes."""

import logging
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.reports.console import make_console

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DemoOptions:
    """What `demo` works on."""

    data_dir: FilePath = option("", "Folder of photos, one folder per class. Default: scanned digits, 8x8 px each.")
    output_dir: FilePath = option("resnet_tpu_demo", "Folder for everything the demo makes.")


@Command(
    "resnet-tpu demo",
    "Needs no internet connection. The digits come with the extra `demo`, and take about a minute on 2 CPU cores.",
    examples=("resnet-tpu demo", "resnet-tpu demo --data_dir=my_photos --output_dir=my_demo"),
    groups=[Group("what to work on", DemoOptions)],
)
def demo(given: Given) -> None:
    """Try the whole workflow, from a folder of images to predictions, on a small data set."""
    options = given.fill(DemoOptions)

    from resnet_tpu.data.prepare.digits import write_digits
    from resnet_tpu.data.prepare.options import PrepareOptions
    from resnet_tpu.data.prepare.prepare import prepare
    from resnet_tpu.data.prepare.report import render_report
    from resnet_tpu.data.split import SPLITS
    from resnet_tpu.recipes import find_recipe
    from resnet_tpu.recipes.choice import choose
    from resnet_tpu.training.inference.predict import predict
    from resnet_tpu.training.loop import train

    raw, data, model = (storage.join(options.output_dir, name) for name in ("photos", "data", "model"))
    if options.data_dir:
        raw, recipe = options.data_dir, "flowers_cpu"
    else:
        write_digits(raw)
        recipe = "digits"
    log.info("1. prepare %s", raw)
    manifest = prepare(raw, data, PrepareOptions())
    make_console().print(render_report(manifest))
    if missing := [split for split in SPLITS if split not in manifest.splits]:
        do = "Give more photos per class, or folders for all splits, and another output_dir."
        raise UserError(f"Photos of {raw}", f"none for {', '.join(missing)}", "some for each split", do)
    log.info("2. train, recipe %s", recipe)
    config = find_recipe(recipe).replace(data_dir=data, model_dir=model)
    if options.data_dir:
        fewer = choose(manifest.splits["train"].num_images, device="cpu", has_weights=False).changes
        config = config.replace(**fewer)
    train(config)
    log.info("3. predict the test images")
    score = predict(config).accuracy
    assert score is not None  # `prepare` labels every image
    _show(data, model, score.top_1)


def _show(data: str, model: str, accuracy: float) -> None:
    """Prints the results, where everything is, and the next commands to try."""
    from rich.markup import escape
    from rich.table import Table

    from resnet_tpu.reports.run_curves import curves_path

    pictures = storage.join(model, "report", "test")
    table = Table(title="Demo", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # so that a path can be copied whole
    for name, value in {
        "test accuracy": f"{accuracy:.2%}",
        "data": data,
        "checkpoints, metrics": model,
        "curves": curves_path(model),
        "confusion matrix": storage.join(pictures, "confusion_matrix.png"),
        "worst mistakes": storage.join(pictures, "mistakes.png"),
    }.items():
        table.add_row(name, escape(value))
    console = make_console()
    console.print(table)
    here = [sys.argv[0]] if Path(sys.argv[0]).name == "resnet-tpu" else [sys.executable, "-m", "resnet_tpu"]
    # `here`: in an environment that is not activated
    command = "resnet-tpu" if shutil.which("resnet-tpu") else shlex.join(here)
    console.print(
        "With your own photos, one folder per class:\n"
        f"  {command} train PHOTOS\n"
        f"  {command} predict runs/PHOTOS PHOTO.jpg",
        markup=False,
        soft_wrap=True,  # so that commands can be copied whole
    )
