"""Writes options.md, recipes.md and reference.md from the code: python docs/pages.py."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from resnet_tpu import api
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import Option
from resnet_tpu.recipes import RECIPES, text_of

HERE = Path(__file__).parent
WRITTEN_BY = "<!-- Written by `make pages` from {}: change that. -->\n"

ABOUT_OPTIONS = """
# Every option

What `train` takes, and in parts every verb that works on a run. An option has one name, on the command line
(`--train_batch_size=64`), in a file (`--config_file=mine.yaml`, one `name: value` per line), in `config.json` of a
`model_dir` and in [Python](api.md). `--epochs=20` is short for `--train_steps=20epochs`, `--batch_size`, `--lr` and
`--init_from` for `train_batch_size`, `base_learning_rate` and `resnet_checkpoint`. The defaults are ImageNet's, as the
original program has them; a [recipe](recipes.md) has others. *Steps or epochs* are written `500` or `15epochs`.
`resnet-tpu VERB --help-all` has the options of one verb, [flags](flags.md) those of the original program.
"""

ABOUT_RECIPES = """
# Every recipe

A recipe is a set of [options](options.md) with a name: `resnet-tpu train PHOTOS --recipe=NAME`. Options after it change
it. Without one, `train` [chooses](finetune.md#without-a-recipe) by the number of images and the device. What a recipe
does not name is at its default. `resnet-tpu recipes NAME` prints one as a file for `--config_file`.

"""

ABOUT_API = """
# Every function

What `resnet_tpu.api` has, as its code says. [From Python](api.md) shows it at work.
"""


def options_page() -> str:
    """Every option, with a table for each group of `Config`."""
    parts = [WRITTEN_BY.format("src/resnet_tpu/options/config.py"), ABOUT_OPTIONS]
    for group in dataclasses.fields(Config):
        title, _, more = (inspect.getdoc(group.default_factory) or "").rstrip(".").partition("; ")
        parts.append(f"\n## {title}\n\n" + (f"{more[0].upper()}{more[1:]}.\n\n" if more else ""))
        rows = (_option_row(option) for option in OPTIONS.values() if option.group == group.name)
        parts.append(_table(("option", "default", "what it does"), rows))
    return "".join(parts)


def recipes_page() -> str:
    """Every recipe: what it is for, and the options in which it differs from the defaults."""
    families: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, recipe in RECIPES.items():
        families.setdefault(text_of(name), {})[name] = recipe().changed()
    overview = ((_title(recipes), text.partition(". ")[0].rstrip(".")) for text, recipes in families.items())
    parts = [WRITTEN_BY.format("src/resnet_tpu/recipes/"), ABOUT_RECIPES, _table(("recipe", "what it is"), overview)]
    return "".join([*parts, *(_family(text, recipes) for text, recipes in families.items())])


def api_page() -> str:
    """Every function and class of `resnet_tpu.api`, with the methods that the class itself defines."""
    parts = [WRITTEN_BY.format("the docstrings of resnet_tpu.api"), ABOUT_API]
    for name in api.__all__:
        found = getattr(api, name)
        parts.append(f"\n## {name}\n\n{_entry(name, found)}")
        for method, function in vars(found).items() if inspect.isclass(found) else ():
            if inspect.isfunction(function) and not method.startswith("_"):
                parts.append(f"\n{_entry(f'{name}.{method}', function)}")
    return "".join(parts)


PAGES = {"options.md": options_page, "recipes.md": recipes_page, "reference.md": api_page}
"""The function that makes each page, by file name."""


def _option_row(option: Option) -> tuple[str, str, str]:
    default = re.search(r" ?Default: (.+?)\.(?= |$)", option.help)
    text = option.help.replace(default[0], "") if default else option.help
    if option.choices:
        text += f" One of {', '.join(option.choices)}."
    kind = " *Steps or epochs.*" if option.is_length else ""
    return f"`{option.name}`", default[1] if default else _value(option.default), _as_markdown(text) + kind


def _family(text: str, recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """A recipe, or several of one kind, with a table of the options that differ between them."""
    names = list(dict.fromkeys(name for changed in recipes.values() for name in changed))
    values = {name: [changed.get(name, OPTIONS[name].default) for changed in recipes.values()] for name in names}
    common = [name for name in names if all(value == values[name][0] for value in values[name])]
    others = [name for name in names if name not in common]
    parts = [f"\n## {_title(recipes)}\n\n{_as_markdown(text)}\n"]
    if common:
        parts.append(f"\n{', '.join(f'`{name}={_value(values[name][0])}`' for name in common)}\n")
    if others:
        rows = ((f"`{recipe}`", *(_value(values[name][i]) for name in others)) for i, recipe in enumerate(recipes))
        parts.append("\n" + _table(("recipe", *(f"`{name}`" for name in others)), rows))
    return "".join(parts)


def _entry(name: str, found: Any) -> str:
    """The docstring, and for a function also its signature."""
    about = _as_markdown(inspect.getdoc(found) or "")
    if inspect.isclass(found):
        return f"{about}\n"
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(defined, ast.FunctionDef)
    returned = f" -> {ast.unparse(defined.returns)}" if defined.returns else ""
    return f"```python\n{name}({ast.unparse(defined.args)}){returned}\n```\n\n{about}\n"


def _title(recipes: Mapping[str, Any]) -> str:
    first, *rest = recipes
    return f"{first} to {rest[-1]}" if rest else first


def _value(value: Any) -> str:
    """The value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _as_markdown(text: str) -> str:
    code_or_special = re.compile(r"(`[^`]*`)|([<*])")
    return code_or_special.sub(lambda found: found[1] or {"<": "&lt;", "*": "\\*"}[found[2]], text)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(header)
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *rows))


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
