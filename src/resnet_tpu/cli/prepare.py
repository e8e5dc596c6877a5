"""`resnet-tpu prepare`: photos to TFRecords."""

from collections.abc import Sequence

from resnet_tpu.arguments import Parser
from resnet_tpu.cli.options import fill
from resnet_tpu.options import options_of


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
    manifest = prepare_images(given.pop("raw_dir"), given.pop("out_dir"), fill(PrepareOptions, given))
    Console().print(render_report(manifest))
