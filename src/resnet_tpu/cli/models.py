"""`resnet-tpu models`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.options.fields import option
from resnet_tpu.reports.console import make_console
from resnet_tpu.reports.csv_text import to_csv

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("name", "network", "million parameters", "MB", "top-1 %", "eval_preprocessing", "licence", "source")


@dataclass(frozen=True)
class ModelsOptions:
    """How `models` lists the models."""

    format: Literal["table", "csv"] = option("table", "How to print it; csv has their sources too.")


@Command(
    "resnet-tpu models",
    "All are for the 1000 classes of ImageNet. The accuracy is the published one, if it is known for certain; "
    "eval_preprocessing is how it was measured, and comes with the weights. Other weights on the Hugging Face hub, "
    "for the ResNets here that timm has: hf:OWNER/NAME, or hf:OWNER/NAME@REVISION. Names with hf: need pip install "
    "'resnet-tpu[hub]', those at gs:// the extra [gcp].",
    examples=(
        "resnet-tpu models",
        "resnet-tpu train --init_from=resnet50 --data_dir=flower_photos --model_dir=runs/tuned",
        "resnet-tpu convert hf:timm/resnet50.a1_in1k runs/imagenet",
    ),
    groups=[Group("how to show them", ModelsOptions)],
)
def models(given: Given) -> None:
    """List trained weights that --init_from and convert take by name: size, accuracy, licence."""
    rows = _rows()
    if given.fill(ModelsOptions).format == "csv":
        sys.stdout.write(to_csv(_COLUMNS, rows))
    else:
        make_console().print(_table(rows))


def _rows() -> list[tuple[str, ...]]:
    """The cells of `_COLUMNS` for each model, with a dash for an unknown accuracy."""
    from resnet_tpu.checkpoints.pretrained import PRETRAINED

    return [
        (
            name,
            found.network,
            f"{found.parameters:.1f}",
            str(found.megabytes),
            "-" if found.top_1 is None else f"{found.top_1:.1f}",
            found.eval_preprocessing,
            found.licence,
            found.source,
        )
        for name, found in PRETRAINED.items()
    ]


def _table(rows: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table

    table = Table(*_COLUMNS[:-1])  # without `source`, which leaves a narrow terminal no room for the names
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = True  # so that a name can be copied whole
    for number in (2, 3, 4):
        table.columns[number].justify = "right"
    for row in rows:
        table.add_row(*row[:-1])
    return table
