"""`resnet-tpu serve`."""

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.errors import missing_extra
from resnet_tpu.serving.server.options import ServeOptions


@Command(
    "resnet-tpu serve",
    "Takes TensorFlow Serving's Predict requests over REST, not over gRPC.\n\n"
    "BUNDLE is what `export` wrote, or the folder it writes to; in that case a newer bundle takes over as soon as it "
    "appears.\nOn SIGTERM or Ctrl-C it answers requests in progress and stops.",
    usage="[NAME=]BUNDLE ... [options]",
    examples=(
        "resnet-tpu serve exports/flowers",
        "resnet-tpu serve flowers=exports/flowers birds=exports/birds --host=0.0.0.0 --port=80",
        "resnet-tpu serve exports/flowers --form=int8 --num_threads=2 --access_log",
    ),
    arguments=(
        Argument("bundles", "BUNDLE", "A bundle or a folder of bundles; NAME= renames it.", many=True, is_path=False),
    ),
    groups=[Group("what to do", ServeOptions)],
)
def serve(given: Given) -> None:
    """Serve exported models over HTTP, with a page to try them."""
    options = given.fill(ServeOptions)
    try:
        from resnet_tpu.serving.server.server import serve as serve_bundles
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("resnet_tpu"):
            raise
        raise missing_extra("serve", error.name or "", "serve") from None
    serve_bundles(given.values["bundles"], options)
