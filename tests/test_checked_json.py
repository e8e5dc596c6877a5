"""JSON with a checksum: what was written is read, what was changed is refused, what has none is believed."""

import json
from typing import Any

import pytest

from resnet_tpu import checked_json

VALUES: dict[str, Any] = {"names": ["Gänseblümchen", "\udcff"], "deep": {"b": 0.1, "a": None}, "empty": {}}


@pytest.mark.parametrize("indent", [None, 1])
def test_what_is_written_is_read(indent: int | None) -> None:
    text = checked_json.dumps(VALUES, indent=indent)
    assert checked_json.loads(text) == VALUES
    assert checked_json.loads(json.dumps(json.loads(text), indent=3, sort_keys=True)) == VALUES  # laid out anew


def test_without_a_checksum_it_is_believed() -> None:
    assert checked_json.loads(json.dumps(VALUES)) == VALUES


def test_every_changed_character_is_noticed_or_harmless() -> None:
    text = checked_json.dumps(VALUES)
    for at, character in enumerate(text):
        changed = text[:at] + chr(ord(character) ^ 1) + text[at + 1 :]
        try:
            found = checked_json.loads(changed)
        except ValueError:
            continue
        assert {name: value for name, value in found.items() if name in VALUES} == VALUES


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON that is no object"):
        checked_json.loads("[]")
