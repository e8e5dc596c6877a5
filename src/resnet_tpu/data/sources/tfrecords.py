"""TFRecords in the original's format as a source, on this machine or in a bucket."""

import bisect
import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from resnet_tpu.data.manifest import MANIFEST, read_manifest
from resnet_tpu.data.records.example import parse_image_example
from resnet_tpu.data.records.pieces import ByteRange, first_records, open_reader
from resnet_tpu.data.records.tfrecord import RecordError, RecordFile
from resnet_tpu.data.sources.classes import Classes, Files
from resnet_tpu.data.sources.labels import make_labels
from resnet_tpu.data.sources.source import Sample, raise_if_damaged
from resnet_tpu.data.split import NoSplitError, Split, other_split_advice
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

log = logging.getLogger(__name__)

_OPEN_FILES_AT_ONCE = 16


class RecordSource:
    """TFRecords of `tf.train.Example`s in the original's format."""

    honour_exif = False  # the original does not, and what `prepare` writes is upright

    def __init__(self, data: DataConfig, split: Split, files: Files, classes: Classes | None) -> None:
        """files: those of the split. classes: those of the data set, if they are known."""
        names, number = classes or (None, None)
        self._labels = make_labels(data, names, counted=number, allow_unknown=split == "test")
        self.class_names, self.num_classes = self._labels.names, self._labels.num_classes
        with ThreadPoolExecutor(_OPEN_FILES_AT_ONCE) as pool:
            opened = pool.map(lambda path: RecordFile(path, skip_bad=data.skip_bad_records, state=files[path]), files)
            self._files = list(opened)
        self._ends = list(itertools.accumulate(len(file) for file in self._files))
        short = wrong_size_errors(data.data_dir, split, self._files)
        if short and not data.skip_bad_records:
            raise short[0]
        for error in (*itertools.chain.from_iterable(file.damage for file in self._files), *short):
            log.warning("Left out: %s", error)
        if not len(self):
            do = f"Write the {split} split again, or {other_split_advice(split)}"
            got = f"{len(files)} empty {split}-* files"
            raise NoSplitError(f"data_dir {data.data_dir}", got, "records in them", do)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> Sample:
        return self.parse(i, self.payload(i))

    def payload(self, i: int) -> bytes:
        """The bytes of record `i`. Raises RecordError for a damaged one."""
        file, record = self._locate(i)
        return file[record]

    def parse(self, i: int, payload: bytes) -> Sample:
        """The example in record `i`. Raises RecordError if it holds none, UserError for a wrong label."""
        file, record = self._locate(i)
        try:
            example = parse_image_example(payload)
        except UserError as error:
            raise RecordError(file.path, record, file.offset(record), str(error.got), error.expected) from None
        label = self._labels.of(example.label, example.filename, lambda: self.where(i))
        return Sample(example.encoded, label, example.filename or f"{file.name}:{record}")

    def first_records(self) -> np.ndarray:
        """The first record of each piece of the files, see `records.pieces`: int64 [pieces]."""
        return first_records(self._files)

    @property
    def num_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for file in self._files)

    def where(self, i: int) -> str:
        file, record = self._locate(i)
        return f"in record {record} of {file.path} at byte {file.offset(record)}"

    def _locate(self, i: int) -> tuple[RecordFile, int]:
        number = bisect.bisect_right(self._ends, i)
        return self._files[number], i - (self._ends[number - 1] if number else 0)


def wrong_size_errors(data_dir: str, split: Split, files: Sequence[RecordFile]) -> list[RecordError]:
    """An error for each file that is whole as far as its format can tell, but differs in size from the manifest."""
    manifest = read_manifest(data_dir)
    listed = manifest.splits[split].files if manifest and split in manifest.splits else {}
    return [
        RecordError(file.path, len(file), file.size, f"a file of {file.size} bytes", f"{entry.num_bytes} ({MANIFEST})")
        for file in files
        if not file.damage and (entry := listed.get(file.name)) and entry.num_bytes != file.size
    ]


class RemoteRecordSource(RecordSource):
    """TFRecords in a bucket."""

    def __init__(self, data: DataConfig, split: Split, files: Files, classes: Classes | None) -> None:
        super().__init__(data, split, files, classes)
        self._reader = open_reader(data.cache_folder, self._files)
        self.is_kept = self._reader.keeps
        """Whether what is read stays on this machine."""

    def __getitem__(self, i: int) -> Sample:
        (found,) = self.fetch([i])
        return raise_if_damaged(found)

    def fetch(self, records: Sequence[int]) -> list[Sample | RecordError]:
        """The examples with these numbers, read together; an error in the place of each damaged one."""
        wanted = [ByteRange(file, *file.span(record)) for file, record in map(self._locate, records)]
        return [self._example(*found) for found in zip(records, wanted, self._reader.read(wanted), strict=True)]

    def _example(self, i: int, span: ByteRange, data: bytes) -> Sample | RecordError:
        _, record = self._locate(i)
        try:
            try:
                payload = span.file.check(record, data)
            except RecordError:  # perhaps only the copy kept here is damaged
                self._reader.forget(span)
                payload = span.file[record]
            return self.parse(i, payload)
        except RecordError as error:
            return error
