"""`resnet-tpu doctor`."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.options.fields import option
from resnet_tpu.reports.console import make_console

if TYPE_CHECKING:
    from resnet_tpu.cli.machine_checks import Check

_COLORS = {"ok": "green", "missing": "yellow", "broken": "red"}


@dataclass(frozen=True)
class DoctorOptions:
    """How `doctor` checks the machine and reports it."""

    format: Literal["table", "json"] = option("table", "How to print what was found.")
    use_tpu: bool = option(True, "False: leave a TPU alone even if there is one.")


@Command(
    "resnet-tpu doctor",
    "Changes nothing and sends nothing over the network.",
    examples=("resnet-tpu doctor", "resnet-tpu doctor --format=json"),
    groups=[Group("how", DoctorOptions)],
)
def doctor(given: Given) -> None:
    """Check this machine: devices, versions, decoders, extras, credentials, and what is missing."""
    options = given.fill(DoctorOptions)

    from resnet_tpu.cli.machine_checks import examine

    checks = examine(use_tpu=options.use_tpu)
    if options.format == "json":
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        _print(checks)


def _print(checks: Sequence["Check"]) -> None:
    """Prints a line per check, grouped by topic, and below each problem how to solve it."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for topic, group in itertools.groupby(checks, lambda check: check.topic):
        table.add_row(f"[bold]{topic}[/]")
        for check in group:
            found = "\n".join(filter(None, (check.found, check.do)))
            table.add_row(f"  {escape(check.name)}", f"[{_COLORS[check.state]}]{check.state}[/]", escape(found))
    make_console().print(table)
