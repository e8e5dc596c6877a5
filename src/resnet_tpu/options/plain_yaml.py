"""The subset of YAML that options need: scalars, lists and mappings, which cannot expand beyond their text."""

import math
from collections.abc import Mapping
from typing import Any

import yaml

from resnet_tpu.errors import first_line

MAX_CHARACTERS = 100_000
"""Ten times the size of a file with all options and a comment on each. PyYAML parses it in a second or two."""

_MAX_DEPTH = 32


def parse(text: str) -> Any:
    """The value of `text`, parsed as YAML 1.1. Dates stay text; `str` of a number returns it as written.

    Raises ValueError for invalid YAML, for aliases (with which a few lines can expand to gigabytes), for integers
    beyond 64 bits, and for more than 100,000 characters or 32 levels of nesting.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"more than {MAX_CHARACTERS} characters")
    try:
        return yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"text that is not YAML of options: {error.problem}{line}") from None
    # PyYAML's own constructors raise these for `!!int x`, `!!bool x` and the like
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise ValueError(f"text that is not YAML of options: {first_line(error)}") from None


def dump(values: Mapping[str, Any]) -> str:
    """The mapping as text that `parse` reads, one line per name."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=math.inf)


class _Loader(yaml.SafeLoader):
    """A loader without aliases and dates, and with limits on depth and numbers."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="an alias", problem_mark=mark)
        self._check_depth(self.depth, self.peek_event().start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803  PyYAML's name
        self._check_depth(self.flow_level, self.get_mark())  # before it looks ahead for keys, at each level
        super().fetch_flow_collection_start(TokenClass)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_whole(self, node: Any) -> int:
        number = _Whole(self.construct_yaml_int(node))
        if not -(2**63) <= number < 2**63:
            raise yaml.MarkedYAMLError(problem="a number of more than 64 bits", problem_mark=node.start_mark)
        number.written = node.value
        return number

    def construct_fraction(self, node: Any) -> float:
        number = _Fraction(self.construct_yaml_float(node))
        number.written = node.value
        return number

    @staticmethod
    def _check_depth(depth: int, mark: Any) -> None:
        if depth >= _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {_MAX_DEPTH} levels", problem_mark=mark)


class _Written:
    """A number that may be meant as text, as in `model_dir: 2024_06` and `model_name: 1.10`."""

    written: str

    def __str__(self) -> str:
        return self.written


class _Whole(_Written, int):
    pass


class _Fraction(_Written, float):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_fraction)
