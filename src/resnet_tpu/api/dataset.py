"""A data set as a sequence of examples."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, SupportsIndex, overload

import numpy as np

from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.data.loader.batches import Batches, eval_batches, train_batches
from resnet_tpu.data.pixels.decode import decode
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.split import Split
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import expand_home

_BATCH_SIZE = dataclasses.replace(OPTIONS["train_batch_size"], name="batch_size")


class Example(NamedTuple):
    """A photo with its class.

    image: uint8 [h, w, 3], not cropped. label: -1 if unknown. class_name: None if unknown. name: the name of its file.
    """

    image: np.ndarray
    label: int
    class_name: str | None
    name: str


class Dataset(Sequence[Example]):
    """A split of a data set: `len`, `dataset[i]`, slices, and iteration over examples; made by `open_dataset`."""

    def __init__(self, config: Config, split: Split) -> None:
        self.config = config
        """The options that say where the data are and how they are read."""
        self.split: Split = split
        self._source = open_source(config.data, split)

    @property
    def class_names(self) -> list[str]:
        """The class names by label; numbers if the data set names no classes."""
        return self._source.class_names or numbers_as_names(self._source.num_classes)

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, i: SupportsIndex) -> Example: ...
    @overload
    def __getitem__(self, i: slice) -> list[Example]: ...
    def __getitem__(self, i: SupportsIndex | slice) -> Example | list[Example]:
        if isinstance(i, slice):
            return [self._example(number) for number in range(len(self))[i]]
        return self._example(range(len(self))[i])

    def __iter__(self) -> Iterator[Example]:
        return (self._example(number) for number in range(len(self)))

    def batches(self, batch_size: int = 32) -> Batches:
        """Batches as the network sees them. The training split repeats endlessly, shuffled and randomly cropped.

        The other splits are read once. Each batch is a dict of `image` uint8 [batch_size, s, s, 3], `label` int32 and
        `weight` float32 [batch_size], which is 0 where the last batch is padded. The option `seed` determines order and
        crops, as in training. Close the result after use, or use `with`. Raises UserError unless `batch_size` is a
        whole number of at least 1.
        """
        batch_size = _BATCH_SIZE.convert(batch_size)
        if self.split == "train":
            return train_batches(self._source, self.config.data, batch_size=batch_size, seed=self.config.train.seed)
        return eval_batches(self._source, self.config.data, batch_size=batch_size)

    def __repr__(self) -> str:
        return f"<{self.split} of {self.config.data.location}: {len(self)} images, {len(self.class_names)} classes>"

    def _example(self, i: int) -> Example:
        sample = self._source[i]
        image = sample.encoded
        if isinstance(image, bytes):
            image = decode(image, honour_exif=self._source.honour_exif)
        known = 0 <= sample.label < len(self.class_names)
        return Example(image, sample.label, self.class_names[sample.label] if known else None, sample.name)


def open_dataset(data: Config | str | os.PathLike[str], split: Split = "train") -> Dataset:
    """Opens a split of a data set: of one that `prepare` wrote, or of a folder with one folder of photos per class.

    data: its path, or the options of a training run. Raises UserError when there is no such folder or split.
    """
    config = data if isinstance(data, Config) else Config().replace(data_dir=expand_home(data))
    config.data.require_images()
    return Dataset(config, split)
