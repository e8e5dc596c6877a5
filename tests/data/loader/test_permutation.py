"""The order of small sets is Grain's, number by number."""

import pytest
from grain.experimental import index_shuffle
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet_tpu.data.loader.permutation import MOST, permutation


@settings(max_examples=40)
@given(num_records=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_small_sets(num_records: int, seed: int, data: st.DataObject) -> None:
    found = permutation(num_records, seed)
    for i in data.draw(st.lists(st.integers(0, num_records - 1), max_size=10)):
        assert found[i] == index_shuffle(i, num_records - 1, seed, 4)


@pytest.mark.parametrize("num_records", [1, 2, 3, 255, 256, 257, 32_768, 32_769, MOST - 1, MOST])
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_edges(num_records: int, seed: int) -> None:
    found = permutation(num_records, seed)
    assert sorted(found.tolist()) == list(range(num_records))
    for i in {0, 1, num_records // 2, num_records - 1} & set(range(num_records)):
        assert found[i] == index_shuffle(i, num_records - 1, seed, 4)
