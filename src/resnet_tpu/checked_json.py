"""JSON objects that carry a checksum of their own: a changed character is noticed, not believed."""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c

_CHECKSUM = "checksum"


def dumps(values: Mapping[str, Any], *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """The text of an object, its checksum under the last key, `checksum`."""
    return json.dumps({**values, _CHECKSUM: _checksum(values)}, indent=indent, ensure_ascii=ensure_ascii) + "\n"


def loads(text: str) -> dict[str, Any]:
    """The object in what `dumps` wrote, or in JSON without a checksum, which is believed.

    Raises ValueError when it is no object, or not the one that was written.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("JSON that is no object")
    found = values.pop(_CHECKSUM, None)
    if found is not None and found != (expected := _checksum(values)):
        raise ValueError(f"content with checksum {expected}, and {found} written beside it")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    # of what is read, not of the text, which anyone may lay out anew
    return f"{google_crc32c.value(json.dumps(values, sort_keys=True).encode()):08x}"
