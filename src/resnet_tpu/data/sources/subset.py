"""Evenly spaced examples of a source: the first N of a folder would all be of one class."""

from collections.abc import Sequence
from typing import cast

from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.source import RemoteSource, Sample, Source, as_remote


def evenly_spaced(source: Source, count: int) -> Source:
    """`count` examples of `source`; `source` itself if it has no more."""
    if count >= len(source):
        return source
    return _RemoteSubset(source, count) if as_remote(source) else _Subset(source, count)


class _Subset:
    def __init__(self, source: Source, count: int) -> None:
        self.class_names, self.num_classes = source.class_names, source.num_classes
        self.honour_exif = source.honour_exif
        self._source, self._count = source, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Sample:
        return self._source[self._number(i)]

    def where(self, i: int) -> str:
        return self._source.where(self._number(i))

    def _number(self, i: int) -> int:
        return i * len(self._source) // self._count


class _RemoteSubset(_Subset):
    def fetch(self, records: Sequence[int]) -> Sequence[Sample | RecordError]:
        return cast("RemoteSource", self._source).fetch([self._number(i) for i in records])
