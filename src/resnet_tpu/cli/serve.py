"""`resnet-tpu serve`."""

from collections.abc import Sequence

from resnet_tpu.cli.arguments import Parser, fill
from resnet_tpu.errors import missing_extra
from resnet_tpu.options.fields import options_of
from resnet_tpu.serving.server.options import ServeOptions


def serve(arguments: Sequence[str]) -> None:
    """Answer requests over HTTP with exported models, and show a page to try them."""
    parser = Parser(
        "resnet-tpu serve",
        f"{serve.__doc__} TensorFlow Serving's clients work unchanged.\n\n"
        "BUNDLE is what `export` wrote, or the folder it writes to: then a newer bundle takes over as soon as it is "
        "there.\nSIGTERM and Ctrl-C answer what is under way and stop.",
        usage="[NAME=]BUNDLE ... [options]",
        examples=(
            "resnet-tpu serve exports/flowers",
            "resnet-tpu serve flowers=exports/flowers birds=exports/birds --host=0.0.0.0 --port=80",
            "resnet-tpu serve exports/flowers --form=int8 --num_threads=2 --access_log",
        ),
    )
    parser.add_argument(
        "bundles", metavar="BUNDLE", nargs="+", help="A bundle or a folder of bundles; NAME= renames it."
    )
    parser.add_options("what to do", options_of("serve", ServeOptions).values())
    given = parser.parse(arguments)
    bundles = given.pop("bundles")
    options = fill(ServeOptions, given)
    try:
        from resnet_tpu.serving.server.server import serve as serve_bundles
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("resnet_tpu"):
            raise
        raise missing_extra("serve", error.name or "", "serve") from None
    serve_bundles(bundles, options)
