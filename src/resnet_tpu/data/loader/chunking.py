"""Batches in chunks: what each chunk holds, and how it gets into the memory of its batch."""

import threading
from dataclasses import dataclass

from resnet_tpu.data.loader.ahead import ReadAhead
from resnet_tpu.data.loader.filling import Chunk, FillChunk, RowFiller
from resnet_tpu.data.loader.slots import Slot, Slots


@dataclass(frozen=True)
class Chunking:
    """How this host's part of each batch is cut into chunks, and which positions of the stream they hold."""

    batch_size: int
    start: int
    num_batches: int
    host_index: int
    num_hosts: int
    most: int  # images in a chunk

    @property
    def per_host(self) -> int:
        return self.batch_size // self.num_hosts

    @property
    def parts(self) -> int:
        """Chunks in a batch of one host."""
        return -(-self.per_host // self.most)

    @property
    def num_chunks(self) -> int:
        """Chunks in all batches."""
        return self.num_batches * self.parts

    def positions(self, chunk: int) -> range:
        """The positions that a chunk holds."""
        return self.locate(chunk)[2]

    def locate(self, chunk: int) -> tuple[int, int, range]:
        """The batch of a chunk, its first row in that batch, and the positions that it holds."""
        batch, part = divmod(chunk, self.parts)
        first = self.start + batch * self.batch_size + self.host_index * self.per_host
        low, high = (self.per_host * edge // self.parts for edge in (part, part + 1))
        return batch, low, range(first + low, first + high)


class ChunkMaker:
    """Makes chunks in the memory of the batches they belong to; callable from any number of threads."""

    def __init__(
        self, chunking: Chunking, filler: RowFiller, slots: Slots, fill: FillChunk, ahead: ReadAhead | None
    ) -> None:
        self._chunking, self._filler, self._slots, self._fill, self._ahead = chunking, filler, slots, fill, ahead
        self._begun: dict[int, Slot] = {}  # by batch
        self._lock = threading.Lock()

    def make(self, chunk: int) -> list[str]:
        """Fills the rows of a chunk; returns the messages of skipped examples."""
        batch, first_row, positions = self._chunking.locate(chunk)
        with self._lock:
            slot = self._begun.get(batch) or self._begun.setdefault(batch, self._slots.take())
        fetched = self._ahead.take(chunk, self._filler.records_at(positions)) if self._ahead else None
        return self._fill(Chunk(first_row, positions, fetched), slot)

    def take(self, batch: int) -> Slot:
        """The memory of a batch whose chunks are all made."""
        with self._lock:
            return self._begun.pop(batch)
