"""Looking up a recipe in a table."""

from collections.abc import Mapping
from typing import TypeVar

from resnet_tpu.errors import UserError, check_kind, nearest

T = TypeVar("T")


def look_up(what: str, name: str, table: Mapping[str, T]) -> T:
    """The entry called `name`. Raises UserError, about `what`, with the nearest names when there is none."""
    check_kind(what, name, str, f"Choose one of {', '.join(table)}.")
    if name not in table:
        raise UserError(what, name, f"one of {', '.join(table)}", f"Choose one.{nearest(name, table)}")
    return table[name]
