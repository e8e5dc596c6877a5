"""What `prepare` did, for people: a table on the terminal, every path in a text file."""

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from resnet_tpu.data.findings import Finding, FindingGroup, Kind, group_findings
from resnet_tpu.data.manifest import Manifest
from resnet_tpu.data.split import SPLITS
from resnet_tpu.errors import visible

_SHOWN_PATHS = 3
_SHOWN_CLASSES = 20


def render_report(manifest: Manifest) -> RenderableType:
    """Two tables: images by class and split, and the findings with their first paths."""
    splits = [split for split in SPLITS if split in manifest.splits]
    images = Table("label", "class", *splits, title="Images")
    images.columns[1].overflow = "fold"
    for label, name in enumerate(manifest.class_names[:_SHOWN_CLASSES], start=1):
        counts = (f"{manifest.splits[split].per_class.get(name, 0):,}" for split in splits)
        images.add_row(str(label), escape(visible(name)), *counts)
    if len(manifest.class_names) > _SHOWN_CLASSES:
        images.add_row("...", f"{len(manifest.class_names) - _SHOWN_CLASSES} more classes")
    images.add_section()
    images.add_row("", "all", *(f"{manifest.splits[split].num_images:,}" for split in splits))
    images.add_row("", "shards", *(f"{manifest.splits[split].shards:,}" for split in splits))
    return Group(images, *([_findings_table(manifest.findings)] if manifest.findings else []))


def _findings_table(findings: Iterable[FindingGroup]) -> Table:
    table = Table("what", "done", "count", "first paths", title="Noticed")
    table.columns[3].overflow = "fold"  # so that a path is shown whole
    for found in findings:
        paths = [escape(_on_one_line(path)) for path in found.first[:_SHOWN_PATHS]]
        if found.count > len(paths) and paths:
            paths.append("...")
        table.add_row(found.what, found.action, f"{found.count:,}", "\n".join(paths))
    return table


def report_text(manifest: Manifest | None, findings: Iterable[Finding], counts: Mapping[Kind, int]) -> str:
    """All findings, each path on a line of its own, after the counts of the splits, if there are any."""
    lines = []
    for name, split in manifest.splits.items() if manifest else ():
        lines.append(f"{name}: {split.num_images} images in {split.shards} shards")
        lines.extend(f"  {class_name}: {count}" for class_name, count in split.per_class.items())
    for found in group_findings(findings, counts, first=None):
        lines.append(f"{found.what}, {found.action}: {found.count}")
        lines.extend(f"  {_on_one_line(path)}" for path in found.first)
    return "".join(f"{line}\n" for line in lines)


def _on_one_line(path: str) -> str:
    return visible(path).replace("\n", "\\n")
