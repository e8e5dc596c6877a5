"""Fills the rows of a batch: reads, decodes, crops and augments examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from resnet_tpu.data.cleaning import Limits, shrink
from resnet_tpu.data.loader.ahead import Fetched
from resnet_tpu.data.loader.cache import ImageCache
from resnet_tpu.data.loader.order import random_at, record_at_position
from resnet_tpu.data.loader.piece_order import PieceOrder
from resnet_tpu.data.loader.slots import Slot
from resnet_tpu.data.pixels.augment import augment
from resnet_tpu.data.pixels.decode import DecodeError, decode
from resnet_tpu.data.pixels.preprocess import TrainImage, eval_image, train_image
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.source import Source, raise_if_damaged
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

_MOST_BAD_IN_A_ROW = 1000


class Chunk(NamedTuple):
    """Neighbouring rows of a batch, and the examples that belong there."""

    first_row: int
    positions: range  # in the stream, one per row
    fetched: Fetched | None = None  # their examples, as far as they have been fetched already


@dataclass(frozen=True)
class RowFiller:
    """Fills rows: for training, in the order and with the random numbers of `seed`; without a seed, for evaluation."""

    source: Source
    data: DataConfig
    seed: int | None = None
    order: PieceOrder | None = None  # of training; None: a permutation of all records
    cache: ImageCache | None = None
    train_image: TrainImage = train_image  # may be replaced, to measure everything else

    def record_at(self, position: int) -> int | None:
        """The number of the record at a position of the stream; None if there is none."""
        if self.seed is None:
            return position if position < len(self.source) else None
        if self.order:
            return self.order.record_at(position)
        return record_at_position(position, num_records=len(self.source), seed=self.seed)

    def records_at(self, positions: range) -> dict[int, int]:
        """The numbers of the records at these positions, by position; positions without one are left out."""
        found = ((position, self.record_at(position)) for position in positions)
        return {position: record for position, record in found if record is not None}

    def fill(self, chunk: Chunk, slot: Slot) -> list[str]:
        """Writes the rows of `chunk` in a slot. Returns the messages of damaged examples that were skipped.

        In training, the next good record takes the place of a damaged one. In evaluation, its row is black with weight
        0, like a row without a record. Raises RecordError and DecodeError unless `data.skip_bad_records`, and UserError
        for anything else that is wrong.
        """
        rows, fetched = slot.rows, chunk.fetched or {}
        skipped: list[str] = []
        for row, position in enumerate(chunk.positions, chunk.first_row):
            label = None
            for record in self._candidates(position):
                try:
                    label = self._fill_row(record, position, rows.image[row], fetched)
                    break
                except (RecordError, DecodeError) as error:
                    skipped.append(self._skip(record, error))
            if label is None:
                rows.image[row] = 0
            rows.label[row], rows.weight[row] = label or 0, label is not None
        return skipped

    def _candidates(self, position: int) -> Iterator[int]:
        """The records that may fill the row of a position: its own and then, in training, those that follow it.

        Raises UserError once too many have been taken.
        """
        record = self.record_at(position)
        if record is None:
            return
        yield record
        if self.seed is not None:
            tries = min(len(self.source), _MOST_BAD_IN_A_ROW)
            yield from ((record + offset) % len(self.source) for offset in range(1, tries))
            got = f"{tries} damaged records in a row"
            raise UserError("Training data", got, "records that can be read", "Check the data set.")

    def _skip(self, record: int, error: RecordError | DecodeError) -> str:
        """The message for a damaged example that is skipped. Raises the error, with the place, if skipping is off."""
        placed = error.but(what=f"Image {self.source.where(record)}") if isinstance(error, DecodeError) else error
        if not self.data.skip_bad_records:
            raise placed from None
        return placed.finding  # its advice is already followed

    def _fill_row(self, record: int, position: int, out: np.ndarray, fetched: Fetched) -> int:
        data, honour_exif = self.data, self.source.honour_exif
        image, label, is_finished = self._read(record, fetched)
        if is_finished:
            out[...] = image
        elif self.seed is None:
            eval_image(image, data.image_size, out, honour_exif=honour_exif, **data.eval_crop)
        else:
            rng = random_at(position, seed=self.seed)
            self.train_image(image, data.image_size, rng, out, honour_exif=honour_exif, **data.train_crop)
            # Last, so that crop and flip draw the same numbers with and without it.
            augmented = augment(out, rng, data)
            if augmented is not out:
                out[...] = augmented
        return label

    def _read(self, record: int, fetched: Fetched) -> tuple[bytes | np.ndarray, int, bool]:
        """(image, label, whether the image is finished). Unfinished images given as pixels are already upright."""
        found = self.cache.get(record) if self.cache else None
        if found:
            image, label = found
        else:
            image, label, _ = raise_if_damaged(fetched[record]) if record in fetched else self.source[record]
            if isinstance(image, np.ndarray):
                return image, label, True
            if self.cache and self.data.cache == "decoded":
                # Shrunk whether or not it will be kept: batches must not depend on how much memory there is.
                image = shrink(self._decode(image), Limits(short_side=self.data.cached_short_side))
            if self.cache:
                self.cache.put(record, image, label)
        if self.data.input_pipeline == "basic" and isinstance(image, bytes):
            image = self._decode(image)
        return image, label, False

    def _decode(self, encoded: bytes) -> np.ndarray:
        preprocessing = "tf" if self.seed is not None else self.data.eval_preprocessing
        return decode(encoded, honour_exif=self.source.honour_exif, preprocessing=preprocessing)


FillChunk = Callable[[Chunk, Slot], list[str]]
"""Fills the rows of a chunk in a slot, like `RowFiller.fill`."""
