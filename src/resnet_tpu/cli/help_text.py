"""The parts of help texts: names with their explanations next to them, and what is said about an option."""

import functools
import textwrap
from collections.abc import Collection, Mapping, Sequence

from resnet_tpu.options.fields import FilePath, Option, Rgb
from resnet_tpu.options.lengths import Length

_COLUMN = 30
"""The rightmost column at which the texts next to names may begin."""

wrap = functools.partial(textwrap.fill, width=110, break_on_hyphens=False, break_long_words=False)
"""Breaks a text into the lines of a help text."""


def metavar(option: Option) -> str:
    """The placeholder for the option's value in the help."""
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    named = {bool: "[BOOL]", int: "N", float: "X", Length: "STEPS|EPOCHS", Rgb: "R,G,B", FilePath: "PATH"}
    return named.get(option.kinds[0], "TEXT")


def help_of(option: Option) -> str:
    """The option's help text with its default."""
    if option.default is None or option.default == "" or "default" in option.help.lower():
        return option.help
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    return f"{option.help} Default: {default}."


def entries(texts: Mapping[str, str], column: int = 0) -> str:
    """A part of a help text: names with their texts in a column next to them. column: 0 chooses one that fits."""
    column = column or column_of(texts)
    lines: list[str] = []
    for name, text in texts.items():
        head = f"  {name}"
        if len(name) > column - 4:  # the text begins on the next line
            lines.append(head)
            head = ""
        lines.append(wrap(text, initial_indent=head.ljust(column), subsequent_indent=" " * column))
    return "\n".join(lines)


def examples_of(commands: Sequence[str]) -> str:
    """The part of a help text that shows examples; empty if there are none."""
    return "\n".join(["examples:", *(f"  {command}" for command in commands)]) if commands else ""


def column_of(names: Collection[str]) -> int:
    """The column at which the texts next to these names begin."""
    return min(_COLUMN, 4 + max(map(len, names), default=0))
