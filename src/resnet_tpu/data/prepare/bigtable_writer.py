"""Copies TFRecords to a Cloud Bigtable table: record i of a split becomes row i."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import Progress

import resnet_tpu
from resnet_tpu import storage
from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.data.manifest import Manifest, read_manifest
from resnet_tpu.data.records.tfrecord import RecordFile, read_records
from resnet_tpu.data.sources.bigtable_rows import ADMIN, WRITER, About, Rows, api, format_key, no_warnings
from resnet_tpu.data.sources.classes import find_classes
from resnet_tpu.data.sources.data_dir import check_shards, shards_in
from resnet_tpu.data.sources.tfrecords import wrong_size_errors
from resnet_tpu.data.split import SPLITS, Split
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.system.terminal import OutputConsole, live_line

_ROWS_PER_REQUEST = 100  # a request holds at most 100 000 mutations and 256 MB
_BYTES_PER_REQUEST = 16_000_000


@dataclass(frozen=True)
class _Part:
    """A split to be written."""

    rows: Rows
    files: list[RecordFile]
    about: About  # as it is at the start


def check_access(data: DataConfig) -> None:
    """Raises UserError when the client is not installed, or credentials or a project are missing."""
    Rows(data, "train")


def write_table(records_dir: str, data: DataConfig, *, overwrite: bool = False, console: Console | None = None) -> int:
    """Copies the TFRecords in a folder to the table that `data` names; returns how many rows it wrote.

    The table and the column family are created if missing. The same call resumes an interrupted one, file by file;
    until all is written, the table cannot be read. Raises UserError for a folder without TFRecords, for rows of
    other data unless `overwrite`, which deletes them, and when the service refuses.
    """
    console = console or OutputConsole(stderr=True)
    parts = _parts(records_dir, data)
    _make_table(parts[0].rows)
    written = [part.rows.split for part in parts]
    for split in SPLITS:
        if split not in written and (about := (rows := Rows(data, split)).read_about()):
            console.print(
                f"{records_dir} has no {split} split: the table keeps the {about.num_records} {split} rows of other "
                f"records, which may include images that are now for training. Give another {rows.prefix_option}.",
                markup=False,
            )
    parts = [found for part in parts if (found := _claim(part, overwrite=overwrite))]
    if not parts:
        console.print(f"Nothing to do: {data.location} holds these records already.", markup=False)
        return 0
    with live_line(console=console) as progress:
        return sum(_write(part, progress) for part in parts)


def _parts(records_dir: str, data: DataConfig) -> list[_Part]:
    names, manifest = storage.list_dir(records_dir), read_manifest(records_dir)
    shards = shards_in(names)
    for split in SPLITS:
        if shards[split] or (manifest and split in manifest.splits):
            check_shards(records_dir, split, names)
    class_names, parts = _class_names(records_dir, shards), []
    for split, found in shards.items():
        paths = [storage.join(records_dir, name) for name in found]
        files = [RecordFile(path) for path in paths]
        if short := wrong_size_errors(records_dir, split, files):
            raise short[0]
        if number := sum(len(file) for file in files):
            origin = _digest(paths, split, manifest)
            about = About(False, number, 0, class_names, origin, resnet_tpu.__version__)
            parts.append(_Part(Rows(data, split), files, about))
    if not parts:
        expected = "TFRecords named train-*, validation-* or test-*"
        raise UserError(
            f"Folder {records_dir}", "no records", expected, "Write them with `resnet-tpu prepare RAW OUT`."
        )
    return parts


def _class_names(records_dir: str, shards: Mapping[Split, Sequence[str]]) -> list[str] | None:
    """The class names that training on these records would find; None if it could not tell how many there are."""
    paths = [storage.join(records_dir, name) for found in shards.values() for name in found]
    classes = find_classes(DataConfig(data_dir=records_dir), dict.fromkeys(paths)) if paths else None
    return (classes.names or numbers_as_names(classes.number)) if classes else None


def _digest(paths: Sequence[str], split: Split, manifest: Manifest | None) -> str:
    """A digest of the files' contents or, if no manifest gives those, of their names, sizes and times."""
    marks: list[Any] = [storage.file_state(path) for path in paths]
    if manifest and split in manifest.splits:
        marks = sorted(entry.sha256 for entry in manifest.splits[split].files.values())
    names = [path.rpartition("/")[2] for path in paths]
    return hashlib.sha256(json.dumps([names, marks]).encode()).hexdigest()


def _claim(part: _Part, *, overwrite: bool) -> _Part | None:
    """Claims the rows with the part's prefix; rows already written count as done. None if all of them are."""
    rows, before = part.rows, None
    with contextlib.suppress(UserError) if overwrite else contextlib.nullcontext():  # a damaged one is replaced
        before = rows.read_about()
    is_same = before is not None and before.made_from == part.about.made_from
    if before and is_same and before.finished and not overwrite:
        _check_rows(rows, before)
        if before.class_names != part.about.class_names:
            rows.write_about(replace(before, class_names=part.about.class_names))
        return None
    if before and is_same and before.done and not before.finished:
        return replace(part, about=replace(part.about, done=before.done))
    first = rows.first_key(rows.prefix)
    if first is not None and not (overwrite or is_same):  # if it is the same, the rows found were about to be deleted
        got = f"rows of other data with the prefix {rows.prefix}, such as {format_key(first)}"
        do = f"Pass --overwrite to delete them, or choose another table or {rows.prefix_option}."
        raise UserError(rows.name, got, "none, or rows of the same records", do)
    rows.write_about(part.about)  # before anything changes: until the last row is written, there is no data set
    if first is not None:
        with rows.explained(ADMIN):
            _admin_table(rows).drop_by_prefix(rows.prefix, timeout=600)
    return part


def _check_rows(rows: Rows, about: About) -> None:
    """Raises UserError if the first or the last of the rows described is not there: others may have deleted them."""
    ends = {rows.key(0), rows.key(about.num_records - 1)}
    if len(rows.read([*ends])) < len(ends):
        got = f"a description of {about.num_records} {rows.split} rows, not all of which are there"
        expected = f"examples in {rows.family}:{rows.qualifier.decode()}"
        raise UserError(rows.name, got, expected, "Pass --overwrite to write them again.")


def _write(part: _Part, progress: Progress) -> int:
    """Writes the missing rows, file by file; returns how many."""
    rows, about = part.rows, part.about
    bar = progress.add_task(f"{rows.split} rows", total=about.num_records, completed=about.done)
    first = 0
    for file in part.files:
        if first >= about.done:
            _write_file(rows, file, first, progress, bar)
            about = replace(about, done=first + len(file))
            rows.write_about(replace(about, finished=about.done == about.num_records))
        first += len(file)
    return about.num_records - part.about.done


def _write_file(rows: Rows, file: RecordFile, first: int, progress: Progress, bar: Any) -> None:
    """Writes the records of a file as the rows from `first` on; when it returns, the service has all of them."""
    entry, set_cell = api().RowMutationEntry, api().SetCell
    with _raise_failures(rows):
        batcher = rows.connect().mutations_batcher(
            flush_limit_mutation_count=_ROWS_PER_REQUEST,
            flush_limit_bytes=_BYTES_PER_REQUEST,
            flow_control_max_bytes=4 * _BYTES_PER_REQUEST,
        )
        with batcher:
            for i, record in enumerate(read_records(file.path)):
                batcher.append(entry(rows.key(first + i), [set_cell(rows.family, rows.qualifier, record)]))
                progress.advance(bar)


@contextlib.contextmanager
def _raise_failures(rows: Rows) -> Iterator[None]:
    """Raises the last error of the service if rows could not be written."""
    from google.api_core.exceptions import GoogleAPICallError

    with rows.explained(WRITER):
        try:
            yield
        except api().exceptions.MutationsExceptionGroup as group:
            said: BaseException | None = group
            while said is not None and not isinstance(said, GoogleAPICallError):  # nested in groups and causes
                said = said.exceptions[-1] if isinstance(said, BaseExceptionGroup) else said.__cause__
            raise said or group from None


def _make_table(rows: Rows) -> None:
    """Creates the table and the column family if they are missing."""
    from google.api_core.exceptions import NotFound
    from google.cloud.bigtable.column_family import MaxVersionsGCRule

    table, keep_one = _admin_table(rows), MaxVersionsGCRule(1)
    with rows.explained(ADMIN):
        try:
            families = table.list_column_families()
        except NotFound:
            table.create(column_families={rows.family: keep_one})
            return
        if rows.family not in families:
            table.column_family(rows.family, keep_one).create()


def _admin_table(rows: Rows) -> Any:
    from google.cloud.bigtable import Client

    with no_warnings():
        return Client(project=rows.project, admin=True).instance(rows.instance).table(rows.table_name)
