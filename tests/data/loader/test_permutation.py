"""The order of training images equals that of Grain's `index_shuffle`, number by number."""

import pytest
from grain.experimental import index_shuffle
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet_tpu.data.loader.permutation import record_at


@settings(max_examples=100)
@given(num_records=st.integers(1, 3000) | st.integers(1, 1 << 60), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_any_number_of_records(num_records: int, seed: int, data: st.DataObject) -> None:
    for i in data.draw(st.lists(st.integers(0, num_records - 1), max_size=4)):
        assert record_at(i, num_records=num_records, seed=seed) == index_shuffle(i, num_records - 1, seed, 4)


@pytest.mark.parametrize(
    "num_records", [1, 2, 3, 255, 256, 257, 16_384, 16_385, 65_536, 65_538, 2**18, 2**18 + 2, 2**32, 2**32 + 2]
)
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_edges(num_records: int, seed: int) -> None:
    for i in (0, 1, 16_383, 16_384, num_records // 2, num_records - 1):
        if i >= num_records:
            continue
        assert record_at(i, num_records=num_records, seed=seed) == index_shuffle(i, num_records - 1, seed, 4)


def test_where_grains_is_no_permutation() -> None:
    num_records = 65_537
    assert index_shuffle(0, num_records - 1, 5, 4) == index_shuffle(num_records - 1, num_records - 1, 5, 4)
    found = [record_at(i, num_records=num_records, seed=5) for i in range(num_records)]
    assert sorted(found) == list(range(num_records))


def test_one_record_fewer_than_a_power_of_two() -> None:
    num_records = 65_535
    found = [record_at(i, num_records=num_records, seed=5) for i in range(num_records)]
    assert found == [index_shuffle(i, num_records - 1, 5, 4) for i in range(num_records)]
