"""The order by pieces: computed by arithmetic, almost as random per batch as the other order, but read in sequence."""

import itertools
import pickle

import numpy as np
import pytest

from resnet_tpu.data.loader.order import record_at_position
from resnet_tpu.data.loader.piece_order import PieceOrder, Segment


def make(num_records: int, *, piece: int, batch_size: int, seed: int = 3) -> PieceOrder:
    starts = np.arange(0, num_records, piece)
    return PieceOrder(starts, num_records=num_records, batch_size=batch_size, seed=seed)


def epoch_order(order: PieceOrder, epoch: int, num_records: int) -> list[int]:
    return [order.record_at(epoch * num_records + i) for i in range(num_records)]


def segments_of(order: PieceOrder, num_records: int, epoch: int = 0) -> set[Segment]:
    return {order.segment_at(epoch * num_records + i) for i in range(num_records)}


def test_order_of_one_seed() -> None:
    # As in test_order: runs resume by position, so this may only change together with a release note that says so.
    order = make(12, piece=5, batch_size=3, seed=7)
    expected = [8, 5, 4, 9, 0, 3, 7, 1, 11, 6, 2, 10, 11, 7, 1, 10, 8, 0, 5, 9, 2, 6, 4, 3]
    assert epoch_order(order, 0, 12) + epoch_order(order, 1, 12) == expected


@pytest.mark.parametrize(("num_records", "piece"), [(1, 1), (2, 1), (37, 5), (37, 100), (1000, 36)])
@pytest.mark.parametrize("batch_size", [1, 16, 64])
def test_every_epoch_holds_every_record_once(num_records: int, piece: int, batch_size: int) -> None:
    order = make(num_records, piece=piece, batch_size=batch_size)
    for epoch in (0, 1, 5, 10**6):
        assert sorted(epoch_order(order, epoch, num_records)) == list(range(num_records))


def test_pieces_may_be_of_any_size() -> None:
    order = PieceOrder(np.array([0, 1, 9, 10, 30]), num_records=37, batch_size=4, seed=0)
    assert sorted(epoch_order(order, 2, 37)) == list(range(37))


def test_epochs_and_seeds_differ() -> None:
    orders = [
        tuple(epoch_order(make(100, piece=10, batch_size=5, seed=seed), epoch, 100))
        for epoch in range(4)
        for seed in (0, 1, 2, 2**40)
    ]
    assert len(set(orders)) == len(orders)


def test_a_pickled_order_is_the_same() -> None:
    order = make(100, piece=10, batch_size=5)
    assert epoch_order(pickle.loads(pickle.dumps(order)), 1, 100) == epoch_order(order, 1, 100)


@pytest.mark.parametrize("num_hosts", [1, 2, 8])
def test_a_segment_is_a_stretch_of_a_piece_for_one_host(num_hosts: int) -> None:
    num_records, piece, batch_size = 1000, 36, 16
    order = make(num_records, piece=piece, batch_size=batch_size)
    segments = segments_of(order, num_records, epoch=1)
    assert sum(len(segment.records) for segment in segments) == num_records
    assert len(segments) <= -(-num_records // piece) + batch_size
    for segment in segments:
        assert sorted(segment.records) == list(range(min(segment.records), max(segment.records) + 1))
        assert min(segment.records) // piece == max(segment.records) // piece
        assert len({position % batch_size * num_hosts // batch_size for position in segment.positions}) == 1
        assert [order.record_at(position) for position in segment.positions] == list(segment.records)


def test_a_batch_holds_as_many_pieces_as_rows() -> None:
    num_records, piece, batch_size = 10_000, 20, 64
    order = make(num_records, piece=piece, batch_size=batch_size)
    records = np.array(epoch_order(order, 0, num_records))
    batches = records[: num_records // batch_size * batch_size].reshape(-1, batch_size) // piece
    assert min(len(set(batch)) for batch in batches.tolist()) == batch_size


def test_what_batches_hold_is_as_random_as_of_a_true_permutation() -> None:
    num_records, batch_size, classes = 20_000, 100, 10
    order = make(num_records, piece=25, batch_size=batch_size)
    found = [np.array(epoch_order(order, epoch, num_records)) for epoch in (0, 1)]
    true = np.array([record_at_position(position, num_records=num_records, seed=3) for position in range(num_records)])
    for labels in (np.arange(num_records) % classes, np.arange(num_records) * classes // num_records):
        spread, expected = (_spread(labels[records], batch_size, classes) for records in (found[0], true))
        assert spread == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("batch_size", [100, 600])
def test_where_a_record_stands_tells_nothing_of_the_next_epoch(batch_size: int) -> None:
    num_records, piece = 20_000, 25  # with the larger batch, rows have 33 steps, and many end within a piece
    order = make(num_records, piece=piece, batch_size=batch_size)
    places = [np.argsort(epoch_order(order, epoch, num_records)) for epoch in (0, 1)]
    # independent units are pieces, not records
    assert abs(np.corrcoef(places[0], places[1]).item(0, 1)) < 4.5 / np.sqrt(num_records / piece)


def _spread(labels: np.ndarray, batch_size: int, classes: int) -> float:
    """The standard deviation of how often a class occurs in a batch."""
    counts = [np.bincount(batch, minlength=classes) for batch in labels.reshape(-1, batch_size)]
    return float(np.std(counts))


def test_neighbours_of_a_piece_are_a_few_steps_apart() -> None:
    num_records, piece, batch_size = 2000, 20, 10
    order = make(num_records, piece=piece, batch_size=batch_size)
    segments = segments_of(order, num_records)
    steps = [abs(i - j) for segment in segments for i, j in itertools.pairwise(np.argsort(segment.records).tolist())]
    assert max(steps) < piece
    assert np.mean(steps) > piece / 5  # a true permutation of a piece would give a third
