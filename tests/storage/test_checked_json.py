"""JSON with a checksum: it reads back as written, changes are refused, and JSON without a checksum is accepted."""

import dataclasses
import json
from typing import Any

import pytest

from resnet_tpu.storage import checked_json

VALUES: dict[str, Any] = {"names": ["Gänseblümchen", "\udcff"], "deep": {"b": 0.1, "a": None}, "empty": {}}


@pytest.mark.parametrize("indent", [None, 1])
def test_reads_what_it_wrote(indent: int | None) -> None:
    text = checked_json.dumps(VALUES, indent=indent)
    assert checked_json.loads(text) == VALUES
    assert checked_json.loads(json.dumps(json.loads(text), indent=3, sort_keys=True)) == VALUES  # formatted differently


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
    with pytest.raises(ValueError, match="JSON that is not an object"):
        checked_json.loads("[]")


@pytest.mark.parametrize(
    "text", ["-9223372036854775808", "18446744073709551615", "1e308", '"\\udcff"', "[" * 64 + "]" * 64]
)
def test_what_is_bounded_is_read(text: str) -> None:
    assert checked_json.parse(text) == checked_json.parse(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "[" * 100_000, '{"a":' * 100_000, "9" * 10_000,
        "18446744073709551616", "-9223372036854775809", "1e309", "-1e309", "NaN", "Infinity", "-Infinity", "", "{",
        b"\xff", b'"\xff"',
    ],
    ids=range(16),
)  # fmt: skip
def test_what_would_harm_is_no_json(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        checked_json.parse(text)
    assert len(str(caught.value)) < 200


@dataclasses.dataclass(frozen=True)
class Leaf:
    size: int
    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Tree:
    names: list[str] | None
    leaves: dict[str, Leaf]
    other: Any


@pytest.mark.parametrize("tree", [Tree(None, {}, [1]), Tree(["a"], {"x": Leaf(1, 0.5), "y": Leaf(-1, 2)}, {"b": None})])
def test_a_value_of_the_kind_that_is_expected(tree: Tree) -> None:
    assert checked_json.as_kind(Tree, checked_json.parse(json.dumps(dataclasses.asdict(tree))), "tree") == tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": [1]}, r"tree\.names\[0\] 1, which is not of type str"),
        ({"names": "abc"}, r"tree\.names 'abc', which is not of type list"),
        ({"leaves": []}, r"tree\.leaves \[\], which is not of type dict"),
        ({"leaves": {"x": {"size": True, "share": 0}}}, r"tree\.leaves\.x\.size True, which is not of type int"),
        ({"leaves": {"x": {"size": 1.0, "share": 0}}}, r"tree\.leaves\.x\.size 1\.0, which is not of type int"),
        ({"leaves": {"x": {"size": 1}}}, r"tree\.leaves\.x without 'share'"),
        ({"leaves": {"x": {"size": 1, "share": 0, "sort": 0}}}, r"tree\.leaves\.x with 'sort'"),
        ({"leaves": {"x": None}}, r"tree\.leaves\.x None, which is not of type Leaf"),
    ],
)
def test_a_value_of_another_kind(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_json.as_kind(Tree, {"names": [], "leaves": {}, "other": None} | change, "tree")
