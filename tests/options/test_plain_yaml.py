"""YAML of options: values are never larger than their text, and anything else raises one kind of error."""

import itertools
from typing import Any

import pytest

from resnet_tpu.options import plain_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: [x, 0.5, true, null]\n", {"a": 1, "b": ["x", 0.5, True, None]}),
        ("a: 0x10", {"a": 16}),
        ("a: 1_000", {"a": 1000}),
        ("a: -9223372036854775808", {"a": -(2**63)}),
        ("a: 2020-01-02", {"a": "2020-01-02"}),
        ("a: 2020-13-45", {"a": "2020-13-45"}),
        ("a: 2020-01-02 25:61:61", {"a": "2020-01-02 25:61:61"}),
        ("<<: {a: 1, b: 2}\nb: 3", {"a": 1, "b": 3}),
        ("", None),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert plain_yaml.parse(text) == value


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: &a [x, x]\n"
            + "".join(f"{c}: &{c} [{'*' + p},{'*' + p}]\n" for p, c in itertools.pairwise("abcdefghi")),
            "alias",
        ),
        ("a: &a [*a]", "alias"),
        ("[" * 50_000, "more than 32 levels"),
        ("{a: " * 24_000, "more than 32 levels"),
        ("- " * 50_000, "more than 32 levels"),
        ("".join(" " * i + "a:\n" for i in range(400)), "more than 32 levels"),
        ("a: " + "9" * 10_000, "10000 digits"),
        ("a: " + "9" * 4_000, "more than 64 bits"),
        ("a: 0x" + "f" * 10_000, "more than 64 bits"),
        ("a: 0b1" + "0" * 64, "more than 64 bits"),
        ("a: " + "1:" * 30_000 + "1", "more than 64 bits"),
        ("a: " + "1:" * 30_000 + "1.5", "too large"),
        ("a: !!int x", "not YAML"),
        ("a: !!int ''", "not YAML"),
        ("a: !!bool x", "not YAML"),
        ("a: !!timestamp x", "not YAML"),
        ("a: !!python/name:os.system", "not YAML"),
        ("a: \x00", "not YAML"),
        ("a: [1", "not YAML"),
        ("a" * 100_001, "more than 100000 characters"),
    ],
    ids=range(20),
)
def test_invalid_deep_or_oversized_yaml_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_yaml.parse(text)
