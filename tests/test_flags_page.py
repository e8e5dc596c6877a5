"""The page of the original's flags lists each flag once, with its true default and whether it has an effect."""

import re
from pathlib import Path

import pytest

from resnet_tpu.options.config import OPTIONS
from resnet_tpu.resnet_main import ALIASES, SHORTHANDS, SINGLE_FLAGS, TEXT_FLAGS, WITHOUT_EFFECT, YAML_FLAGS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "flags.md").read_text()
FLAGS = PAGE.partition("\n## Its other programs")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in FLAGS.splitlines() if line.startswith("| `")]
LISTS = {
    title: set(re.findall(r"`(\w+)`", text))
    for title, text in re.findall(r"^(Other names|- \w+)[:,](.*?)$(?=\n\n|\n-)", FLAGS, re.M | re.S)
}

names_of = re.compile(r"`(\w+)`").findall


def test_every_flag_has_its_place_and_every_name_is_a_flag() -> None:
    known = [*SINGLE_FLAGS, *ALIASES, *YAML_FLAGS, *TEXT_FLAGS]
    in_rows = [name for row in ROWS for name in names_of(row[0])]
    assert len(in_rows) == len(set(in_rows))
    assert set(in_rows).union(*LISTS.values()) == set(known)


def test_other_names() -> None:
    assert LISTS["Other names"] == {*ALIASES, *ALIASES.values(), *SHORTHANDS}


def test_flags_documented_as_inert_have_no_effect() -> None:
    spent = {name for row in ROWS for name in names_of(row[0]) if row[2].startswith("no effect")}
    assert spent == set(WITHOUT_EFFECT)


@pytest.mark.parametrize("row", [row for row in ROWS if row[0].strip("`") in OPTIONS], ids=lambda row: row[0])
def test_defaults(row: list[str]) -> None:
    default = OPTIONS[row[0].strip("`")].default
    assert row[1] == f"`{default}`" if default not in (None, "") else not row[1].startswith("`")
