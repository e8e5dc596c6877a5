"""Names of classes: which of two data sets agree, and how those are told that do not."""

import contextlib

import pytest

from resnet_tpu.data.class_names import check_classes
from resnet_tpu.errors import UserError


@pytest.mark.parametrize(
    ("found", "expected", "fits"),
    [
        (["cat", "dog"], ["0", "1"], True),  # names for what was trained without
        (["0", "1"], ["0", "1"], True),
        (["1", "2"], ["0", "1"], False),
        (["0", "10", "2"], ["0", "1", "2"], False),
        (["cat"], ["cat", "1"], True),  # a class without photos
        (["dog"], ["cat", "1"], False),
        (["0", "1"], ["cat", "dog"], False),
        (["mu\u0308sli", "oats"], ["m\u00fcsli", "oats"], True),  # one name in two forms of Unicode
    ],
)
def test_numbers_stand_for_names_that_are_not_known(
    found: list[str], expected: list[str], fits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = pytest.raises(UserError, match=f"Classes of data: got {', '.join(found)}, expected {', '.join(expected)}")
    with contextlib.nullcontext() if fits else refusal:
        check_classes("data", found, expected)
    told = "The network knows its classes only by number. In the order of data, 0 is cat, 1 is dog"
    assert caplog.messages == ([told] if found == ["cat", "dog"] and expected == ["0", "1"] else [])


def test_error_shows_the_first_difference_in_long_lists() -> None:
    names = [f"class{number}" for number in range(12)]
    for found, got, expected in (
        (names[:-1], "11, where 11 is missing", "12, where it is class11"),
        ([*names[:-1], "other"], "12, where 11 is other", "12, where it is class11"),
        ([*names, "more"], "13, where 12 is more", "12, where it is missing"),
    ):
        with pytest.raises(UserError, match=f"Classes of data: got {got}, expected {expected}, in this order"):
            check_classes("data", found, names)


def test_error_shows_no_difference_that_does_not_count() -> None:
    names = ["m\u00fcsli", *(f"class{number}" for number in range(11))]
    with pytest.raises(UserError, match="got 12, where 11 is other, expected 12, where it is class10"):
        check_classes("data", ["mu\u0308sli", *names[1:-1], "other"], names)
