"""Images from Cloud Bigtable: one tf.train.Example per row, in the order of the indexes in the keys."""

import logging
from collections.abc import Sequence
from typing import Any

from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.data.records.example import parse_image_example
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.bigtable_rows import Rows, format_key
from resnet_tpu.data.sources.labels import make_labels
from resnet_tpu.data.sources.source import Sample, raise_if_damaged
from resnet_tpu.data.split import NoSplitError, Split
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

log = logging.getLogger(__name__)


class RowError(RecordError):
    """A row that is missing, or holds no readable example."""

    def __init__(self, table: str, key: str, record: int, got: str, expected: str) -> None:
        self.key = key
        super().__init__(table, record, 0, got, expected)
        do = "Write the table again, or pass --skip_bad_records to count such rows and continue."
        UserError.__init__(self, f"Row {key} of {table}", got, expected, do)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.key, self.record, str(self.got), self.expected)


class BigtableSource:
    """The rows of a split. Example i is row i: the one with index i in tables that `prepare` writes.

    Other tables are scanned for their keys once, without values; their examples are ordered by the index in the key,
    whatever its width, or by the bytes of the keys if they hold none. Labels, classes and names are as in TFRecords.
    """

    honour_exif = False  # as in TFRecords: what `prepare` writes is upright

    def __init__(self, data: DataConfig, split: Split) -> None:
        """Raises UserError when the table cannot be read, lacks these rows or this column, or is not yet complete."""
        self._rows = Rows(data, split)
        about = self._rows.read_about()
        if about and not about.finished:
            got = f"what an interrupted `prepare` left behind: {about.done} of {about.num_records} {split} rows"
            do = "Run the same `resnet-tpu prepare` again; it continues where it stopped."
            raise UserError(self._rows.name, got, "a finished data set", do)
        self._keys: list[bytes] | None = None  # only if they are not those of rows 0, 1, 2 ...
        if about:
            self._len = about.num_records
        else:
            self._find_keys()
        names, counted = about.class_names if about else None, None
        if names and names == numbers_as_names(len(names)):  # of records without names
            names, counted = None, len(names)
        self._labels = make_labels(data, names, counted=counted, allow_unknown=split == "test")
        self.class_names, self.num_classes = self._labels.names, self._labels.num_classes
        if not (about and about.class_names) and not data.num_label_classes:
            log.info(
                "%s does not say how many classes it has: %d are assumed. num_label_classes sets the number.",
                self._rows.name,
                self.num_classes,
            )
        if not self._rows.read([self._key(0)]) and not data.skip_bad_records:
            raise self._error(0)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, i: int) -> Sample:
        (found,) = self.fetch([i])
        return raise_if_damaged(found)

    def fetch(self, records: Sequence[int]) -> list[Sample | RecordError]:
        """The examples with these numbers, in one request; an error in the place of each damaged one."""
        values = self._rows.read([self._key(i) for i in records])
        return [self._parse(i, values.get(self._key(i))) for i in records]

    def where(self, i: int) -> str:
        """The row of example `i`, for messages."""
        return f"in row {format_key(self._key(i))} of {self._rows.name}"

    def _key(self, i: int) -> bytes:
        return self._keys[i] if self._keys is not None else self._rows.key(i)

    def _parse(self, i: int, value: bytes | None) -> Sample | RecordError:
        if value is None:
            return self._error(i)
        try:
            example = parse_image_example(value)
        except UserError as error:
            return RowError(self._rows.name, format_key(self._key(i)), i, str(error.got), error.expected)
        label = self._labels.of(example.label, example.filename, lambda: self.where(i))
        return Sample(example.encoded, label, example.filename or format_key(self._key(i)))

    def _error(self, i: int) -> RowError:
        """Why row `i` has no example."""
        rows, key = self._rows, self._key(i)
        columns = rows.columns(key)
        got = "no such row" if columns is None else f"a row with {', '.join(columns)} only"
        return RowError(rows.name, format_key(key), i, got, f"an example in {rows.family}:{rows.qualifier.decode()}")

    def _find_keys(self) -> None:
        rows = self._rows
        keys = rows.scan()
        self._len = len(keys)
        if not keys:
            first = rows.first_key()
            got = "an empty table" if first is None else f"none; the first row of the table is {format_key(first)}"
            do = f"Check {rows.prefix_option}, or write the rows with `resnet-tpu prepare`."
            raise NoSplitError(rows.name, got, f"rows whose keys begin with {rows.prefix}", do)
        if any(key != rows.key(i) for i, key in enumerate(keys)):
            self._keys = keys
        last = keys[-1][len(rows.prefix.encode()) :]
        if last.isdigit() and int(last) >= len(keys):
            missing = int(last) + 1 - len(keys)
            log.warning("%s: %d of the indexes from 0 to %d have no row.", rows.name, missing, int(last))
