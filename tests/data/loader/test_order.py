"""The order of training images is computed by arithmetic."""

import numpy as np
import pytest

from resnet_tpu.data.loader.order import random_at, record_at_position


def epoch_order(epoch: int, num_records: int, seed: int) -> list[int]:
    positions = range(epoch * num_records, (epoch + 1) * num_records)
    return [record_at_position(position, num_records=num_records, seed=seed) for position in positions]


LARGE = {
    70_000: [18286, 31017, 26602, 37124, 47050],
    1_281_167: [777045, 988645, 1060178, 345657, 1132805],
}
"""The records at the first, second and last position, the first of the next epoch, and one in the sixth epoch."""


def test_order_of_one_seed() -> None:
    # Runs resume from checkpoints by position: this may only change together with a release note that older runs cannot
    # be resumed exactly. A newer NumPy must not change it.
    assert epoch_order(0, 10, 7) + epoch_order(1, 10, 7) == [3, 8, 2, 1, 0, 4, 9, 5, 7, 6, 7, 9, 0, 8, 4, 2, 5, 6, 3, 1]
    for num_records, expected in LARGE.items():
        positions = (0, 1, num_records - 1, num_records, 5 * num_records + 20_000)
        assert [record_at_position(position, num_records=num_records, seed=7) for position in positions] == expected
    np.testing.assert_allclose(random_at(3, seed=7).random(2), [0.7852278453590279, 0.4288274544164784], rtol=1e-12)


@pytest.mark.parametrize("num_records", [1, 2, 3, 37, 1000])
def test_every_epoch_holds_every_record_once(num_records: int) -> None:
    for epoch in (0, 1, 5, 10**6):
        assert sorted(epoch_order(epoch, num_records, 3)) == list(range(num_records))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(epoch_order(epoch, 100, seed)) for epoch in range(4) for seed in (0, 1, 2, 2**40)]
    assert len(set(orders)) == len(orders)
    assert tuple(range(100)) not in orders


@pytest.mark.long
def test_records_are_spread_over_the_epoch() -> None:
    firsts = [record_at_position(epoch * 50, num_records=50, seed=0) for epoch in range(1000)]
    assert np.abs(np.bincount(firsts, minlength=50) - 20).max() < 4.5 * np.sqrt(1000 * 0.02 * 0.98)  # 4.5 sigma
    # Neighbours stay neighbours only by chance: 2 of 10,000 on average.
    order = np.array(epoch_order(0, 10_000, 0))
    assert (np.abs(np.diff(order)) == 1).sum() < 12


def test_random_numbers_belong_to_the_position() -> None:
    draws = {(seed, position): random_at(position, seed=seed).random() for seed in range(20) for position in range(50)}
    assert len(set(draws.values())) == 1000
    assert draws[3, 7] == random_at(7, seed=3).random()
    assert abs(np.mean(list(draws.values())) - 0.5) < 4.5 / np.sqrt(12 * 1000)
    assert 0 <= random_at(2**63, seed=2**70).random() < 1
