"""`resnet-tpu prepare`: photos to TFRecords, and these to a table of Bigtable."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from resnet_tpu.cli.arguments import Parser, cut_at_dashes, fill
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import expand_home, option, options_of
from resnet_tpu.reports.console import make_console


@dataclass(frozen=True)
class _HowOptions:
    """Who does the work."""

    beam: bool = option(False, "Write the shards by a pipeline of Apache Beam. Its options come after --.")


def prepare(arguments: Sequence[str]) -> None:
    """Turn folders of images per class, split folders or a CSV into TFRecords that train reads fast."""
    from resnet_tpu.data.prepare.prepare import PrepareOptions
    from resnet_tpu.data.prepare.prepare import prepare as prepare_images
    from resnet_tpu.data.prepare.report import render_report

    parser = Parser(
        "resnet-tpu prepare",
        f"{prepare.__doc__}",
        usage="RAW OUT [options] [--beam -- options of Apache Beam]",
        examples=(
            "resnet-tpu prepare flower_photos data/flowers      # downloads them when there is no such folder",
            "resnet-tpu prepare my_photos data/mine --short_side=256 --workers=8",
            "resnet-tpu prepare photos.csv data/photos --split=0.9,0.1     # CSV: path,label[,split]",
            "resnet-tpu prepare data/flowers --bigtable_instance=INSTANCE --bigtable_table=flowers",
            "resnet-tpu prepare gs://BUCKET/raw gs://BUCKET/data --beam -- --runner=DataflowRunner ...",
        ),
    )
    parser.add_argument(
        "raw_dir",
        type=expand_home,
        metavar="RAW",
        help="Folder of class folders, plain or in train/ validation/ test/; or CSV.",
    )
    parser.add_argument(
        "out_dir",
        type=expand_home,
        metavar="OUT",
        nargs="?",
        help="Folder for the shards and manifest.json. Left out, RAW is such a folder, to be copied to a table.",
    )
    parser.add_options("what to do", options_of("prepare", PrepareOptions).values())
    parser.add_options("Apache Beam", options_of("beam", _HowOptions).values())
    bigtable = {name: found for name, found in OPTIONS.items() if name.startswith("bigtable_") or name == "gcp_project"}
    where = "Copy the records to a table of this instance too."
    bigtable["bigtable_instance"] = dataclasses.replace(bigtable["bigtable_instance"], help=where)
    parser.add_options("Cloud Bigtable", bigtable.values())
    ours, for_beam = cut_at_dashes(arguments)
    given = parser.parse(ours)
    how = fill(_HowOptions, {"beam": given.pop("beam", "false")})
    if for_beam and not how.beam:
        expected = "nothing after -- without --beam"
        raise UserError("resnet-tpu prepare", for_beam[0], expected, "Pass --beam before --, or leave it out.")
    table = Config().replace(**{name: given.pop(name) for name in bigtable if name in given}).data
    raw_dir, out_dir, options = given.pop("raw_dir"), given.pop("out_dir"), fill(PrepareOptions, given)
    if table.bigtable_instance:
        from resnet_tpu.data.prepare.bigtable_writer import check_access

        check_access(table)  # not after hours of preparing
    if out_dir:
        console = make_console()
        console.print(render_report(prepare_images(raw_dir, out_dir, options, beam=for_beam if how.beam else None)))
        console.print(f"Train on them: resnet-tpu train {shlex.quote(out_dir)}", markup=False, soft_wrap=True)
    if table.bigtable_instance:
        from resnet_tpu.data.prepare.bigtable_writer import write_table

        number = write_table(out_dir or raw_dir, table, overwrite=options.overwrite)
        print(f"{number} rows written to {table.place}.")
    elif not out_dir:
        do = "Give a folder for the TFRecords; or --bigtable_instance, to copy those in RAW to a table."
        raise UserError("resnet-tpu prepare", "no OUT", "where to write", do)
