"""Reading ahead: each example is fetched once, as many as fit in memory, until the reader is closed."""

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError

import numpy as np
import pytest

from resnet_tpu.data.loader import ahead
from resnet_tpu.data.loader.ahead import ReadAhead, by_chunks, by_segments
from resnet_tpu.data.loader.cache import ImageCache
from resnet_tpu.data.loader.piece_order import PieceOrder
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.errors import UserError

CHUNK, CHUNKS = 4, 1000


class Far:
    """A source of images of `size` bytes that records what is fetched; every seventh image is damaged."""

    class_names = None
    num_classes = 10
    honour_exif = False

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, list[int]()
        self.error: UserError | None = None

    def __len__(self) -> int:
        return CHUNK * CHUNKS

    def __getitem__(self, i: int) -> Sample:
        raise AssertionError("one by one")

    def where(self, i: int) -> str:
        return f"at {i}"

    def fetch(self, records: Sequence[int]) -> list[Sample | RecordError]:
        if self.error:
            raise self.error
        self.asked.extend(records)
        return [self.example(i) for i in records]

    def example(self, i: int) -> Sample | RecordError:
        return RecordError("file", i, 0, "damage", "none") if i % 7 == 6 else Sample(bytes(self.size), i % 10, f"{i}")


def records_in(chunk: int) -> dict[int, int]:
    """The chunk's records by position; its last row has none."""
    return {position: position for position in range(CHUNK * chunk, CHUNK * (chunk + 1) - 1)}


def read(source: Far, cache: ImageCache | None = None) -> ReadAhead:
    return ReadAhead(source, cache, by_chunks(CHUNKS, records_in))


def test_every_example_is_fetched_once() -> None:
    source = Far(10)
    reader = read(source)
    for chunk in range(CHUNKS):
        found = reader.take(chunk, records_in(chunk))
        assert list(found) == list(records_in(chunk))
        for i, example in found.items():
            if isinstance(example, RecordError):
                assert (i % 7, example.record) == (6, i)
            else:
                assert (i % 7 == 6, example.label) == (False, i % 10)
    reader.close()
    assert sorted(source.asked) == [i for i in range(len(source)) if i % CHUNK != CHUNK - 1]


@pytest.mark.parametrize("size", [10, 100_000])
def test_no_more_is_fetched_than_there_is_room_for(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MOST_BYTES", 3_000_000)
    source = Far(size)
    reader = read(source)
    for chunk in range(100):
        reader.take(chunk, records_in(chunk))
    waiting = len(set(source.asked)) - 100 * (CHUNK - 1)
    reader.close()
    assert waiting <= (35 + 2 * CHUNK * 4 if size > 10 else 16 * 4 * CHUNK)


@pytest.mark.parametrize("start", [0, 52])
def test_segments_are_fetched_whole_and_wait_within_bounds(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MOST_BYTES", 5000)
    source, rows, piece = Far(100), 2 * CHUNK, 25
    order = PieceOrder(np.arange(0, len(source), piece), num_records=len(source), batch_size=rows, seed=0)
    held = 0

    def positions(chunk: int) -> range:
        return range(start + CHUNK * chunk, start + CHUNK * (chunk + 1))

    reader = ReadAhead(source, None, by_segments(CHUNKS, positions, order))
    for chunk in range(CHUNKS):
        records = {position: order.record_at(position) for position in positions(chunk)}
        found = reader.take(chunk, records)
        assert [(number, str(one)) for number, one in found.items()] == [
            (number, str(source.example(number))) for number in records.values()
        ]
        held = max(held, len(source.asked) - CHUNK * (chunk + 1))
    reader.close()
    assert 8 * rows < held <= piece * (rows + 2 * 4)  # a segment for each row, and two requests of four


def test_cached_records_are_not_fetched() -> None:
    source, cache = Far(10), ImageCache(CHUNK * CHUNKS, 1_000_000)
    for i in range(0, 100, 2):
        cache.put(i, np.zeros((4, 4, 3), np.uint8), 0)
    reader = read(source, cache)
    found = [i for chunk in range(20) for i in reader.take(chunk, records_in(chunk))]
    reader.close()
    assert found == [i for i in range(80) if i % 2 and i % CHUNK != CHUNK - 1]


def test_an_error_reaches_who_asks() -> None:
    source = Far(10)
    source.error = UserError("Table", "nothing", "something", "Try again.")
    reader = read(source)
    for chunk in (0, 1):
        with pytest.raises(UserError, match="Table: got nothing"):
            reader.take(chunk, records_in(chunk))
    reader.close()


def test_closing_wakes_who_waits() -> None:
    source, answer = Far(10), threading.Event()
    fetch = source.fetch
    source.fetch = lambda records: fetch(records) if answer.wait(60) else []
    reader = read(source)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            reader.take(0, records_in(0))
        except CancelledError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not reader._unfinished:
        pass
    reader.close()
    waiting.join(30)
    assert len(ends) == 1
    with pytest.raises(CancelledError):
        reader.take(5, records_in(5))
    answer.set()
