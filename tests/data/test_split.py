"""The split by class: it follows split-folders' rule, gives the flowers' known counts, and loses nothing."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet_tpu.data.split import parse_ratios, split_files
from resnet_tpu.errors import UserError

FLOWERS = {  # photos -> (train, validation, test), as in the original's tutorial
    633: (506, 63, 64), 898: (718, 89, 91), 641: (512, 64, 65), 699: (559, 69, 71), 799: (639, 79, 81)
}  # fmt: skip
NAMES = st.lists(st.text(min_size=1), unique=True, max_size=60)


def test_flowers() -> None:
    parts = {n: split_files([f"{i}.jpg" for i in range(n)]) for n in FLOWERS}
    assert {n: tuple(map(len, part)) for n, part in parts.items()} == FLOWERS
    assert [sum(column) for column in zip(*FLOWERS.values(), strict=True)] == [2934, 364, 372]


def test_the_order_is_that_of_split_folders() -> None:
    names = [f"{i:02d}.jpg" for i in range(20)]
    shuffled = sorted(names)
    random.seed(1337)
    random.shuffle(shuffled)
    assert split_files(names) == (shuffled[:16], shuffled[16:18], shuffled[18:])
    # Must never change: another order would put training photos of old runs into new test sets.
    assert split_files(names)[2] == ["17.jpg", "19.jpg"]


@given(NAMES, st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.9, 0.1)]), st.integers(0, 5), st.randoms())
def test_every_name_is_in_one_split_whatever_the_order(names, ratios, seed, rng) -> None:
    parts = split_files(names, ratios, seed)
    assert sorted(parts[0] + parts[1] + parts[2]) == sorted(names)
    assert len(parts[0]) == int(ratios[0] * len(names))
    assert len(ratios) == 3 or parts[2] == []
    mixed = list(names)
    rng.shuffle(mixed)
    assert split_files(mixed, ratios, seed) == parts


def test_ratios() -> None:
    assert parse_ratios("0.8,0.1,0.1") == (0.8, 0.1, 0.1)
    assert parse_ratios(" 0.75 , .25") == (0.75, 0.25)


@pytest.mark.parametrize("text", ["", "1", "0.8,0.1", "0.8,0.3,-0.1", "1,0,0", "0.25,0.25,0.25,0.25", "a,b", "nan,1"])
def test_bad_ratios(text: str) -> None:
    with pytest.raises(UserError, match=r"split: got .* expected train,validation"):
        parse_ratios(text)
