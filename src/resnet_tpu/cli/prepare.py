"""`resnet-tpu prepare`: converts photos to TFRecords, and can copy these to a Bigtable table."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import Option, option, options_of
from resnet_tpu.reports.console import make_console

if TYPE_CHECKING:
    from resnet_tpu.data.prepare.options import PrepareOptions


@dataclass(frozen=True)
class _HowOptions:
    """How the work is done."""

    beam: bool = option(False, "Write the shards with an Apache Beam pipeline. Its options come after --.")


def _bigtable_options() -> dict[str, Option]:
    found = {name: found for name, found in OPTIONS.items() if name.startswith("bigtable_") or name == "gcp_project"}
    where = "Copy the records to a table of this instance too."
    return {**found, "bigtable_instance": dataclasses.replace(found["bigtable_instance"], help=where)}


@Command(
    "resnet-tpu prepare",
    usage="RAW OUT [options] [--beam -- options of Apache Beam]",
    examples=(
        "resnet-tpu prepare flower_photos data/flowers      # downloads them if there is no such folder",
        "resnet-tpu prepare my_photos data/mine --short_side=256 --workers=8",
        "resnet-tpu prepare my_photos data/mine --recompress --quality=90     # fewer bytes, same sizes in pixels",
        "resnet-tpu prepare photos.csv data/photos --split=0.9,0.1     # CSV: path,label[,split]",
        "resnet-tpu prepare data/flowers --bigtable_instance=INSTANCE --bigtable_table=flowers",
        "resnet-tpu prepare gs://BUCKET/raw gs://BUCKET/data --beam -- --runner=DataflowRunner ...",
    ),
    arguments=(
        Argument(
            "raw_dir",
            "RAW",
            "Folder with a subfolder per class, or with train/ validation/ test/ of such folders; or CSV.",
        ),
        Argument(
            "out_dir",
            "OUT",
            "Folder for the shards and manifest.json. If left out, RAW must be such a folder, and is copied to "
            "Bigtable.",
            is_required=False,
        ),
    ),
    groups=[
        Group("what to do", "resnet_tpu.data.prepare.options:PrepareOptions"),
        Group("Apache Beam", _HowOptions),
        Group("Cloud Bigtable", _bigtable_options()),
    ],
    other_program=(),
)
def prepare(given: Given) -> None:
    """Convert images, in a folder per class or listed in a CSV, to TFRecords, which train reads fast."""
    from resnet_tpu.data.prepare.options import PrepareOptions

    how, options = given.fill(_HowOptions), given.fill(PrepareOptions)
    table = Config().replace(**{name: given.values[name] for name in _bigtable_options() if name in given.values}).data
    raw_dir, out_dir, beam = given.values["raw_dir"], given.values["out_dir"], given.rest if how.beam else None
    _check_beam(given, how)
    if table.bigtable_instance:
        from resnet_tpu.data.prepare.bigtable_writer import check_access, write_table

        if not out_dir:
            _check_only_copied(given)
        check_access(table)  # now, not after hours of preparing
        if out_dir:
            _write_shards(raw_dir, out_dir, options, beam=beam)
        number = write_table(out_dir or raw_dir, table, overwrite=options.overwrite)
        print(f"{number} rows written to {table.location}.")
    else:
        _check_no_table(given)
        _write_shards(raw_dir, out_dir, options, beam=beam)


def _check_beam(given: Given, how: _HowOptions) -> None:
    """Raises UserError for options of Beam without --beam."""
    if given.rest and not how.beam:
        expected = "nothing after -- without --beam"
        raise UserError("resnet-tpu prepare", given.rest[0], expected, "Pass --beam before --, or leave it out.")


def _check_only_copied(given: Given) -> None:
    """Raises UserError for options of new shards when the shards in RAW are only copied to a table."""
    from resnet_tpu.data.prepare.options import PrepareOptions

    for name in [*options_of(PrepareOptions), *options_of(_HowOptions)]:
        if name in given.values and name != "overwrite":
            do = "Give a folder for new TFRecords as OUT, or leave it out."
            raise UserError(name, given.values[name], "nothing: the table gets the records as they are", do)


def _check_no_table(given: Given) -> None:
    """Raises UserError for options of a table when none is named, and when there is no folder for shards."""
    for name in _bigtable_options():
        if name in given.values:
            do = "Give --bigtable_instance=INSTANCE too, or leave it out."
            raise UserError(name, given.values[name], "nothing, as no table is written", do)
    if not given.values["out_dir"]:
        do = "Give a folder for the TFRecords; or --bigtable_instance, to copy those in RAW to a table."
        raise UserError("resnet-tpu prepare", "no OUT", "a folder to write to", do)


def _write_shards(raw_dir: str, out_dir: str, options: "PrepareOptions", *, beam: Sequence[str] | None) -> None:
    """Writes the shards, and prints what is in them and the command that trains on them."""
    from resnet_tpu.data.prepare.prepare import prepare as prepare_images
    from resnet_tpu.data.prepare.report import render_report

    console = make_console()
    manifest = prepare_images(raw_dir, out_dir, options, beam=beam)
    console.print(render_report(manifest))
    sizes = {split: entry.num_images for split, entry in manifest.splits.items()}
    if not sizes.get("train"):
        return
    hint, options_of_train = "Train on them:", ""
    if not sizes.get("validation"):
        hint = (
            "No photos to validate with: add some, or split again with --split=0.8,0.2 --overwrite, if the split "
            "was random. Without any:"
        )
        options_of_train = " --mode=train"
    command = f"resnet-tpu train {shlex.quote(out_dir)}{options_of_train}"
    console.print(f"{hint} {command}", markup=False, soft_wrap=True)
