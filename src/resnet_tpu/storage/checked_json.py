"""JSON that others may have written, read with limits and type checks; it may hold its own checksum.

The checksum reveals changed content. Whatever the text is, reading it takes little time, and either gives plain values,
whose numbers fit in 64 bits and whose nesting is limited, or raises ValueError.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import google_crc32c

_CHECKSUM = "checksum"
_MAX_DEPTH = 64


def dumps(values: Mapping[str, Any], *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """The JSON text of an object, with its checksum under a last key, `checksum`."""
    return json.dumps({**values, _CHECKSUM: _checksum(values)}, indent=indent, ensure_ascii=ensure_ascii) + "\n"


def loads(text: str) -> dict[str, Any]:
    """The object in text from `dumps`, or in JSON without a checksum, which is trusted.

    Raises ValueError when the text is not a valid object (see `parse`), or the checksum does not match.
    """
    values = parse(text)
    if not isinstance(values, dict):
        raise ValueError("JSON that is not an object")
    found = values.pop(_CHECKSUM, None)
    if found is not None and found != (expected := _checksum(values)):
        raise ValueError(f"content with checksum {expected}, and {found} written beside it")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    # of the values, not of the text, which anyone may reformat
    return f"{google_crc32c.value(json.dumps(values, sort_keys=True).encode()):08x}"


def parse(text: str | bytes) -> Any:
    """The value of a JSON text; bytes are UTF-8.

    Raises ValueError for anything else, for numbers that are not finite, for whole numbers beyond 64 bits, and for
    nesting of more than 64 levels.
    """
    try:
        value = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"JSON nested more than {_MAX_DEPTH} levels deep"


def _children(value: Any) -> typing.Iterable[Any]:
    """The lists and objects directly inside a value."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (inner for inner in values if isinstance(inner, dict | list))


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**64:
        raise ValueError(f"a number of {len(text)} digits, which does not fit in 64 bits")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:60]}, which is not a finite number")
    return number


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def as_kind(kind: Any, value: Any, where: str) -> Any:
    """A parsed value as `kind`: a plain type, a list, a dict with str keys, one of these or None, or a dataclass.

    Raises ValueError, whose message begins with `where`, for a value of another type and for an unknown or missing key.
    """
    outer, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or type(value) is kind or (kind is float and type(value) is int):
        return value
    if outer is types.UnionType:
        return None if value is None else as_kind(inner[0], value, where)
    if outer is list and isinstance(value, list):
        return [as_kind(inner[0], one, f"{where}[{number}]") for number, one in enumerate(value)]
    if outer is dict and isinstance(value, dict):
        return {name: as_kind(inner[1], one, f"{where}.{name}") for name, one in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        kinds = typing.get_type_hints(kind)
        if odd := kinds.keys() ^ value.keys():
            raise ValueError(f"{where} {'without' if min(odd) in kinds else 'with'} {min(odd)!r}")
        return typing.cast("type", kind)(
            **{name: as_kind(kinds[name], value[name], f"{where}.{name}") for name in kinds}
        )
    raise ValueError(f"{where} {value!r:.60}, which is not of type {getattr(kind, '__name__', kind)}")
