"""Sources of examples by number: the records of a split, image files, or synthetic pixels."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np

from resnet_tpu.data.records.tfrecord import RecordError


class Sample(NamedTuple):
    """One example before decoding."""

    encoded: bytes | np.ndarray  # an image file; or the finished image, uint8 [image_size, image_size, 3]
    label: int  # from 0; -1 when a test example has none
    name: str  # of the image file, if known


def raise_if_damaged(found: Sample | RecordError) -> Sample:
    """The example that was fetched. Raises the error if there is one in its place."""
    if isinstance(found, RecordError):
        raise found
    return found


class Source(Protocol):
    """A split of a data set: examples by number, from any number of threads."""

    @property
    def class_names(self) -> list[str] | None:
        """Class names by label; None if the data does not say."""
        ...

    @property
    def num_classes(self) -> int:
        """The number of classes: as the options say, else as many as there are names, else 1000."""
        ...

    @property
    def honour_exif(self) -> bool:
        """Whether images are to be turned upright."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Sample:
        """Example `i`. Raises RecordError for a damaged record, UserError for a wrong label or a lost file."""
        ...

    def where(self, i: int) -> str:
        """Where example `i` is stored, for messages."""
        ...


class RemoteSource(Source, Protocol):
    """A source with slow requests, such as a bucket: many examples are fetched at once, before they are needed."""

    def fetch(self, records: Sequence[int]) -> Sequence[Sample | RecordError]:
        """The examples with these numbers, which may repeat; an error in the place of each damaged one.

        Thread-safe. Raises UserError as `source[i]` does.
        """
        ...


def as_remote(source: Source) -> RemoteSource | None:
    """`source` if it is remote, and so can fetch many examples at once; else None."""
    return cast("RemoteSource", source) if hasattr(source, "fetch") else None
