"""`resnet-tpu demo`."""

from collections.abc import Sequence
from dataclasses import dataclass

from resnet_tpu.cli.arguments import Parser, fill
from resnet_tpu.options import FilePath, option, options_of


@dataclass(frozen=True)
class DemoOptions:
    """What `demo` works on."""

    data_dir: FilePath = option("", "Folder of photos, one folder per class. Default: scanned digits, 8x8 px each.")
    output_dir: FilePath = option("resnet_tpu_demo", "Folder for everything the demo makes.")


def demo(arguments: Sequence[str]) -> None:
    """See the whole way, from a folder of images to predictions, on data that is at hand."""
    parser = Parser(
        "resnet-tpu demo",
        f"{demo.__doc__} Needs no network and a few minutes on 2 CPU cores.",
        examples=("resnet-tpu demo", "resnet-tpu demo --data_dir=my_photos --output_dir=my_demo"),
    )
    parser.add_options("what to work on", options_of("demo", DemoOptions).values())
    options = fill(DemoOptions, parser.parse(arguments))

    from resnet_tpu.demo import demo as run_demo

    run_demo(options.data_dir, options.output_dir)
