"""`resnet-tpu doctor`."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from resnet_tpu.cli.arguments import Command, Given, Group
from resnet_tpu.options.fields import option
from resnet_tpu.reports.console import make_console

if TYPE_CHECKING:
    from resnet_tpu.cli.findings import Finding

_COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


@dataclass(frozen=True)
class DoctorOptions:
    """How `doctor` looks and what it says."""

    format: Literal["table", "json"] = option("table", "How to print what was found.")
    use_tpu: bool = option(True, "False: leave a TPU alone even where there is one.")


@Command(
    "resnet-tpu doctor",
    "Changes nothing and sends nothing over the network.",
    examples=("resnet-tpu doctor", "resnet-tpu doctor --format=json"),
    groups=[Group("how", DoctorOptions)],
)
def doctor(given: Given) -> None:
    """Look at this machine: devices, versions, decoders, extras, credentials, and what is missing."""
    options = given.fill(DoctorOptions)

    from resnet_tpu.cli.findings import examine

    findings = examine(use_tpu=options.use_tpu)
    if options.format == "json":
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)


def _print(findings: Sequence["Finding"]) -> None:
    """Prints a line per finding, grouped by topic, and below each problem what would help."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for topic, group in itertools.groupby(findings, lambda finding: finding.topic):
        table.add_row(f"[bold]{topic}[/]")
        for finding in group:
            found = "\n".join(filter(None, (finding.found, finding.do)))
            table.add_row(f"  {escape(finding.name)}", f"[{_COLOURS[finding.state]}]{finding.state}[/]", escape(found))
    make_console().print(table)
