"""Class names: fills in numbers for missing ones, and compares the names of two data sets."""

import itertools
import logging
import unicodedata

from resnet_tpu.errors import UserError, listed

log = logging.getLogger(__name__)

_MOST_SHOWN = 10  # names in an error message


def numbers_as_names(count: int) -> list[str]:
    """Names for `count` classes that have none: the numbers from 0."""
    return [str(label) for label in range(count)]


def completed(names: list[str], count: int) -> list[str]:
    """`names`, followed by numbers for the classes up to `count` that have no name."""
    return [*names, *numbers_as_names(count)[len(names) :]]


def normalize_name(name: str) -> str:
    """`name` in the Unicode form in which names are compared: macOS decomposes accented letters in folder names."""
    return unicodedata.normalize("NFC", name)


def are_same_classes(found: list[str] | None, expected: list[str] | None) -> bool:
    """Whether the classes `found` in data can be those that a network expects; True if either is unknown."""
    if found is None or expected is None or are_names_for_numbers(found, expected):
        return True
    return [normalize_name(name) for name in completed(found, len(expected))] == [
        normalize_name(name) for name in expected
    ]


def are_names_for_numbers(found: list[str], expected: list[str]) -> bool:
    """Whether `expected` are the numbers from 0, as in a network trained without names, and `found` are names.

    Any names then match. If all of `found` are numbers, they are compared as names: see `are_same_classes`.
    """
    return expected == numbers_as_names(len(expected)) and not all(name.isdecimal() for name in found)


def numbering(found: list[str]) -> str:
    """Which name each number stands for, for messages."""
    return listed([f"{label} is {name}" for label, name in enumerate(found)], _MOST_SHOWN)


def check_classes(where: str, found: list[str] | None, expected: list[str] | None) -> None:
    """Raises UserError when the classes of the data in `where` differ from those expected; see `are_same_classes`."""
    if found is None or expected is None:
        return
    if are_names_for_numbers(found, expected):
        log.warning("The network knows its classes only by number. In the order of %s, %s", where, numbering(found))
    if are_same_classes(found, expected):
        return
    found, expected = ([normalize_name(name) for name in names] for names in (found, expected))
    do = "Use data with the same classes, or another model_dir."
    got, wanted = listed(found, _MOST_SHOWN), listed(expected, _MOST_SHOWN)
    if got == wanted:  # they differ only in names that are not shown
        pairs = enumerate(itertools.zip_longest(found, expected, fillvalue="missing"))
        number, one, other = next((number, one, other) for number, (one, other) in pairs if one != other)
        got, wanted = f"{len(found)}, where {number} is {one}", f"{len(expected)}, where it is {other}"
    raise UserError(f"Classes of {where}", got, f"{wanted}, in this order", do)
