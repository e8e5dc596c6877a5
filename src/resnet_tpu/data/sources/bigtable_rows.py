"""A Cloud Bigtable table with an example in each row: its place, its keys, and the rows that describe the others."""

import contextlib
import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from resnet_tpu.data.split import Split
from resnet_tpu.errors import UserError, missing_extra
from resnet_tpu.options.config import DataConfig
from resnet_tpu.storage import checked_json
from resnet_tpu.storage.gcp import explained, project_of

log = logging.getLogger(__name__)

READER, WRITER, ADMIN = "roles/bigtable.reader", "roles/bigtable.user", "roles/bigtable.admin"
_COLUMN_OPTIONS = ("bigtable_column_family", "bigtable_column_qualifier")
_DIGITS = 10
_ABOUT = "resnet_tpu/"  # begins the keys of rows that describe other rows
_ABOUT_COLUMN = b"about"
_SCANS_AT_ONCE = 8
_ATTEMPT_SECS, _PATIENCE_SECS = 30.0, 120.0
EMULATOR = "BIGTABLE_EMULATOR_HOST"


def api() -> Any:
    """The client library of Bigtable, `google.cloud.bigtable.data`. Raises UserError if it is not installed."""
    try:
        from google.cloud.bigtable import data
    except ImportError:
        raise missing_extra("Reading from Bigtable", "google-cloud-bigtable", "gcp") from None
    return data


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Keeps the clients made in the block from warning that they talk to an emulator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@dataclass(frozen=True)
class About:
    """The description of all rows with a prefix, in a special row that `prepare` writes."""

    finished: bool
    num_records: int  # how many rows there are meant to be
    done: int  # how many, from the first, are known to be written
    class_names: list[str] | None  # in the order of labels from 1
    made_from: str  # digest of what they were made from
    version: str  # of the package


class Rows:
    """The rows of a split, which any number of threads and processes may read by key, or scan."""

    def __init__(self, data: DataConfig, split: Split) -> None:
        """Raises UserError for an empty option, and when the project or credentials are missing."""
        self.prefix_option = {"train": "bigtable_train_prefix", "validation": "bigtable_eval_prefix"}.get(
            split, "bigtable_test_prefix"
        )
        for name in ("bigtable_instance", "bigtable_table", self.prefix_option, *_COLUMN_OPTIONS):
            if not getattr(data, name):
                do = "Give a value, or leave the option out for its default."
                raise UserError(name, "nothing", "text of at least one character", do)
        self.split, self.prefix = split, str(getattr(data, self.prefix_option))
        self.family, self.qualifier = data.bigtable_column_family, data.bigtable_column_qualifier.encode()
        self.instance, self.table_name = data.bigtable_instance, data.bigtable_table
        api()
        self.project = project_of(data.bigtable_project or data.gcp_project or _emulated())
        self._lock = threading.Lock()
        self._table: Any = None
        with self.explained():
            self.connect()  # so that problems are reported now

    def __getstate__(self) -> dict[str, Any]:  # connections stay in the process that made them
        return {name: value for name, value in vars(self).items() if name not in ("_table", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _table=None, _lock=threading.Lock())

    @property
    def name(self) -> str:
        """The table, for messages."""
        return f"Bigtable {self.project}/{self.instance}/{self.table_name}"

    def connect(self) -> Any:
        """The connection to the table, which this process keeps: a `google.cloud.bigtable.data.Table`."""
        with self._lock:
            if self._table is None:
                with no_warnings():
                    client = api().BigtableDataClient(project=self.project)
                self._table = client.get_table(
                    self.instance,
                    self.table_name,
                    default_read_rows_attempt_timeout=_ATTEMPT_SECS,
                    default_read_rows_operation_timeout=_PATIENCE_SECS,
                    default_operation_timeout=_PATIENCE_SECS,
                )
            return self._table

    @contextlib.contextmanager
    def explained(self, role: str = READER) -> Iterator[None]:
        """`gcp.explained` for errors about the table."""
        do = "Check bigtable_project, bigtable_instance and bigtable_table."
        with explained(self.name, role=role, do=do):
            yield

    def key(self, i: int) -> bytes:
        """The key of row `i`."""
        return f"{self.prefix}{i:0{_DIGITS}}".encode()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The newest examples in these rows, by key; rows without one are left out."""
        if not keys:  # a query without keys would read all rows
            return {}
        filters = api().row_filters
        column = filters.RowFilterChain(
            [
                filters.FamilyNameRegexFilter(re.escape(self.family)),
                filters.ColumnQualifierRegexFilter(re.escape(self.qualifier)),
                filters.CellsColumnLimitFilter(1),
            ]
        )
        query = api().ReadRowsQuery(row_keys=sorted(set(keys)), row_filter=column)
        with self.explained():
            return {row.row_key: row.cells[0].value for row in self.connect().read_rows(query)}

    def columns(self, key: bytes) -> list[str] | None:
        """The columns of a row, as family:qualifier; None if there is no such row."""
        with self.explained():
            row = self.connect().read_row(key, row_filter=api().row_filters.StripValueTransformerFilter(True))
        return (
            None
            if row is None
            else sorted({f"{cell.family}:{cell.qualifier.decode(errors='backslashreplace')}" for cell in row.cells})
        )

    def first_key(self, prefix: str = "") -> bytes | None:
        """The first key that begins with `prefix`; None if there is none."""
        query = api().ReadRowsQuery(row_ranges=_range(prefix) if prefix else None, limit=1, row_filter=_keys_only())
        with self.explained():
            return next((row.row_key for row in self.connect().read_rows(query)), None)

    def scan(self) -> list[bytes]:
        """The keys of all rows of the split, in the order of their index, or of their bytes if any has no index.

        The range is cut where the service divides it among its servers, and the parts are read in parallel.
        """
        with self.explained():
            whole = api().ReadRowsQuery(row_ranges=_range(self.prefix), row_filter=_keys_only())
            parts = whole.shard(self.connect().sample_row_keys())
            with ThreadPoolExecutor(_SCANS_AT_ONCE) as pool:
                keys = [key for part in pool.map(self._scan, parts) for key in part]
        if all(key[len(self.prefix.encode()) :].isdigit() for key in keys):
            return sorted(keys, key=lambda key: int(key[len(self.prefix.encode()) :]))
        return sorted(keys)

    def _scan(self, query: Any) -> list[bytes]:
        return [row.row_key for row in self.connect().read_rows_stream(query)]

    def read_about(self) -> About | None:
        """The table's description of these rows; None if it has none. Raises UserError when it is damaged."""
        with self.explained():
            row = self.connect().read_row(self._about_key)
        found = row.cells if row else []
        cells = [cell for cell in found if cell.family == self.family and cell.qualifier == _ABOUT_COLUMN]
        if not cells:
            return None
        try:
            return checked_json.as_kind(About, checked_json.parse(cells[0].value), "row")
        except ValueError:
            do = "Write the table again with `resnet-tpu prepare --overwrite`, or delete this row."
            what = f"Row {self._about_key.decode()} of {self.name}"
            raise UserError(what, repr(cells[0].value[:100]), "what `prepare` wrote", do) from None

    def write_about(self, about: About) -> None:
        """Writes the table's description of these rows."""
        value = json.dumps(vars(about)).encode()
        with self.explained(WRITER):
            self.connect().mutate_row(self._about_key, [api().SetCell(self.family, _ABOUT_COLUMN, value)])

    @property
    def _about_key(self) -> bytes:
        return f"{_ABOUT}{self.prefix}".encode()


def _emulated() -> str:
    """A name for the project if an emulator, which knows no projects, replaces the service; else empty."""
    return "emulator" if os.environ.get(EMULATOR) else ""


def _range(prefix: str) -> Any:
    """The keys that begin with `prefix`."""
    start = prefix.encode()
    head = start.rstrip(b"\xff")
    return api().RowRange(start, head[:-1] + bytes([head[-1] + 1]) if head else None)


def _keys_only() -> Any:
    filters = api().row_filters
    return filters.RowFilterChain([filters.CellsRowLimitFilter(1), filters.StripValueTransformerFilter(True)])


def format_key(key: bytes) -> str:
    """A row's key for messages; it may be any bytes."""
    return key.decode(errors="backslashreplace")
