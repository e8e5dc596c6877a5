"""The part of YAML that options need: scalars, lists and mappings, each as large as it is written."""

from typing import Any

import yaml

MAX_CHARACTERS = 100_000
"""Ten times a file of all options with a remark on each; PyYAML takes a second or two for so many."""

_MAX_DEPTH = 32


def parse(text: str) -> Any:
    """The value that `text` is as YAML 1.1; dates stay text.

    Raises ValueError for text that is none, for aliases, by which a few lines stand for gigabytes, for whole numbers
    beyond 64 bits, and for more than 100,000 characters or 32 levels.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"more than {MAX_CHARACTERS} characters")
    try:
        return yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    # what PyYAML's own constructors raise for `!!int x`, `!!bool x` and their like
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise ValueError(f"text that is not YAML ({error})") from None


class _Loader(yaml.SafeLoader):
    """Neither aliases nor dates, and an end to depth and to numbers."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise self._refusal("an alias, which options do not need", self.peek_event())
        if self.depth >= _MAX_DEPTH:
            raise self._refusal(f"more than {_MAX_DEPTH} levels", self.peek_event())
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_whole(self, node: Any) -> int:
        number = self.construct_yaml_int(node)
        if not -(2**63) <= number < 2**63:
            raise self._refusal("a number of more than 64 bits", node)
        return number

    @staticmethod
    def _refusal(problem: str, at: Any) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)
