"""Names of classes: numbers where the data have none, and whether those of two data sets agree."""

import itertools

from resnet_tpu.errors import UserError, listed

_MOST_SHOWN = 10  # in an error


def numbered(count: int) -> list[str]:
    """Names for classes of which only the number is known."""
    return [str(label) for label in range(count)]


def completed(names: list[str], count: int) -> list[str]:
    """`names` completed to `count` classes: the missing names are numbers."""
    return [*names, *numbered(count)[len(names) :]]


def are_same_classes(found: list[str] | None, expected: list[str] | None) -> bool:
    """Whether the classes of some data can be those of a network, as far as both are known.

    Numbers from 0 on are expected by a network whose data had no names: any names will do, unless they are other
    numbers, or the same in another order.
    """
    if found is None or expected is None:
        return True
    is_unnamed = expected == numbered(len(expected)) and not all(name.isdecimal() for name in found)
    return is_unnamed or completed(found, len(expected)) == expected


def check_classes(where: str, found: list[str] | None, expected: list[str] | None) -> None:
    """Raises UserError when the classes of the data in `where` differ from those expected; see `are_same_classes`."""
    if found is None or expected is None or are_same_classes(found, expected):
        return
    do = "Use data with the same classes, or another model_dir."
    got, wanted = listed(found, _MOST_SHOWN), listed(expected, _MOST_SHOWN)
    if got == wanted:  # they differ only in what is not shown
        pairs = enumerate(itertools.zip_longest(found, expected, fillvalue="missing"))
        number, one, other = next((number, one, other) for number, (one, other) in pairs if one != other)
        got, wanted = f"{len(found)}, where {number} is {one}", f"{len(expected)}, where it is {other}"
    raise UserError(f"Classes of {where}", got, f"{wanted}, in this order", do)
