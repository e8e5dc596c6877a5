"""`resnet-tpu convert`: converts weights from and to the formats of other programs."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import BulkOptions
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import FilePath, option, options_of
from resnet_tpu.options.overrides import Layer, merge, parse_overrides
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class ConvertOptions:
    """What `convert` writes."""

    to: Literal["model_dir", "tf1", "safetensors", "timm"] | None = option(
        None,
        "What to write. model_dir: for every command here. tf1: a folder with a TF1 checkpoint of the original. "
        "safetensors: a file with torchvision's names. timm: a folder for timm and the Hugging Face hub. Default: "
        "safetensors or model_dir, by the name of DST.",
    )
    inspect: bool = option(False, "Only show what is in SRC: names, shapes, types, sizes, and what it seems to be.")
    labels: FilePath = option("", "Text file with one class name per line. Default: the names in SRC, else numbers.")
    image_size: int | None = option(
        None,
        "Side in pixels of the images that the network is for. Default: as SRC says, else 224.",
        at_least=8,
    )


_OVERRIDES = dataclasses.replace(
    options_of(BulkOptions)["params_override"],
    help="Options of the network or its training that SRC does not record: precision=float32,resnetd_shortcut=true.",
)


@Command(
    "resnet-tpu convert",
    "Code inside a file is never run. "
    "SRC is a TF1 checkpoint (prefix or folder), a .safetensors or .pth file, a folder from the Hugging Face hub, a "
    "model_dir or checkpoint, or a name: see `resnet-tpu models`. DST must be new.",
    usage="SRC DST [options], or --inspect SRC",
    examples=(
        "resnet-tpu convert --inspect resnet50.pth",
        "resnet-tpu convert resnet-nhwc-2018-02-07 runs/original --labels=imagenet.txt",
        "resnet-tpu convert resnet50.safetensors runs/torchvision --image_size=176",
        "resnet-tpu convert hf:timm/resnet50.a1_in1k runs/imagenet",
        "resnet-tpu convert runs/flowers flowers.safetensors          # for PyTorch",
        "resnet-tpu convert runs/flowers flowers_timm --to=timm        # for timm and the hub",
        "resnet-tpu convert runs/flowers flowers_tf1 --to=tf1          # for the original program",
    ),
    arguments=(
        Argument("source", "SRC", "The weights."),
        Argument("target", "DST", "Folder or *.safetensors file to write.", is_required=False),
    ),
    groups=[
        Group("what to do", ConvertOptions),
        Group("options in bulk", {_OVERRIDES.name: _OVERRIDES}),
    ],
)
def convert(given: Given) -> None:
    """Turn weights of the original program, torchvision or timm into a model_dir, and back."""
    options = given.fill(ConvertOptions)
    source, target = given.values["source"], given.values["target"]
    if options.inspect:
        if more := [name for name, value in given.values.items() if value and name not in ("source", "inspect")]:
            raise UserError("--inspect", ", ".join(more), "SRC alone", "Leave the rest out: nothing is converted.")
        from resnet_tpu.checkpoints.inspection import inspect, render

        make_console().print(render(inspect(source)))
        return
    if not target:
        raise UserError("DST", "nothing", "a folder or *.safetensors to write", "Give it, or --inspect.")
    layers = [Layer("--params_override", parse_overrides(text)) for text in given.values.get("params_override", ())]
    merge(Config(), layers)  # reports mistakes before the weights are read

    from resnet_tpu.checkpoints.convert import convert as convert_weights

    convert_weights(
        source,
        target,
        to=options.to,
        labels=options.labels,
        image_size=options.image_size,
        overrides={name: value for layer in layers for name, value in layer.values.items()},
    )
