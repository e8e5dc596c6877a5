"""Writes commands.md, models.md, options.md, recipes.md and reference.md from the code: python docs/pages.py."""

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from resnet_tpu import api, cli
from resnet_tpu.checkpoints.pretrained import PRETRAINED
from resnet_tpu.checkpoints.timm_folder import architecture_of
from resnet_tpu.cli.command import Command, Verb
from resnet_tpu.cli.help_text import help_of
from resnet_tpu.cli.menu import Menu
from resnet_tpu.cli.run_options import BulkOptions, groups_for_trainings
from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import ARCHITECTURES, CIFAR_DEPTHS
from resnet_tpu.models.flops import forward_flops, parameter_shapes
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import OPTIONS, Config, ModelConfig
from resnet_tpu.options.fields import Option, options_of
from resnet_tpu.recipes import FAMILIES, find_recipe
from resnet_tpu.recipes.family import Family
from resnet_tpu.recipes.resnet_rs import RESNET_RS

HERE = Path(__file__).parent
WRITTEN_BY = "<!-- Written by `make pages` from {}: change that. -->\n"

ABOUT_COMMANDS = """
# Every command

A command is `resnet-tpu COMMAND` with arguments and options, or `python -m resnet_tpu COMMAND`. Below is what
`resnet-tpu COMMAND --help-all` says; `--help` leaves out the rarer options of the commands that have many. Training
options are only named here: [their own page](options.md) explains them. `--some_name=VALUE` can be written `--some-name
VALUE`. For an option that is true or false, `--some_name` means true and `--no-some-name` false.

"""

ABOUT_MODELS = """
# Every network

`--resnet_depth` chooses a network, and a few options vary it. *Parameters* are in millions. *GFLOP* counts the
operations of the convolutions and the classifier on one image of that size, two for each multiply-add; a training step
takes three times as many. If timm has the network, its name there follows: weights of such a network
[convert](convert.md) in both directions, and so do torchvision's. The last column lists weights that can be [downloaded
by name](finetune.md#weights-by-name).
"""

ABOUT_VARIANTS = """
These are the variants that timm has a name for. [The options of the network](options.md#the-network) make others: other
depths, `pre_activation`, another `resnet_width`.
"""

ABOUT_RESNET_RS = """
The networks of the [recipes of these names](regularisation.md#resnet-rs): `use_resnetd_stem`, `resnetd_shortcut` and
`replace_stem_max_pool`, with `se_ratio=0.25`.
"""

ABOUT_WEIGHTS = """
All are for the 1,000 classes of ImageNet; `resnet-tpu models --format=csv` lists them too, with their sources.
*Top-1* is the accuracy in % that was published with them, if it is known for certain. Other weights on the Hugging Face
hub, for the networks above that timm has, are named `hf:OWNER/NAME`.
"""

ABOUT_OPTIONS = """
# Every option

The options of `train`; each command that works on a run takes [some of them](commands.md). An option has the same name
on the command line (`--train_batch_size=64`), in a file (`--config_file=mine.yaml`, one `name: value` per line), in
`config.json` of a `model_dir` and in [Python](api.md). `--epochs=20` is short for `--train_steps=20epochs`,
`--batch_size`, `--lr` and `--init_from` for `train_batch_size`, `base_learning_rate` and `resnet_checkpoint`. The
defaults are for ImageNet, as in the original program; a [recipe](recipes.md) has others. *Steps or epochs* are written
`500` or `15epochs`. The flags of the original program have [a page of their own](flags.md).

## Options in bulk

Later sources override earlier ones: defaults, `recipe`, `config_file`, `params_override`, single options.

"""

ABOUT_RECIPES = """
# Every recipe

A recipe is a named set of [options](options.md): `resnet-tpu train PHOTOS --recipe=NAME`. Other options on the command
line override it. Without a recipe, `train` [chooses one](finetune.md#without-a-recipe) by the number of images and the
device. Options that a recipe does not name keep their defaults. `resnet-tpu recipes NAME` prints a recipe as a file for
`--config_file`.

"""

ABOUT_API = """
# Every function

The contents of `resnet_tpu.api`, from its docstrings; `import resnet_tpu` gives the same names. [From Python](api.md)
shows them in use. At the end come the classes of the objects that functions return and of those within them, and [the
names of types](#names-of-types).
"""

OPTION = ("option", "default", "what it does")
NETWORK = ("network", "px", "parameters", "GFLOP", "timm's name", "weights by name")

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "ResNet-{}-C": {"use_resnetd_stem": True},
    "ResNet-{}-D": {"use_resnetd_stem": True, "resnetd_shortcut": True},
    "SE-ResNet-{}": {"se_ratio": 1 / 16},
    "SE-ResNet-{}-D": {"se_ratio": 1 / 16, "use_resnetd_stem": True, "resnetd_shortcut": True},
}
"""The options of each variant, by the name of its networks."""

TRAINING = {name: option for group in groups_for_trainings() for name, option in group.options.items()}
"""The options of `train`, of which the page of options tells more."""


def commands_page() -> str:
    """Every verb: what it does, its arguments and options, and the names of those that training has."""
    overview = ((f"[{name}](#{name})", _as_markdown(verb.about.split("\n")[0])) for name, verb in cli.VERBS.items())
    parts = [WRITTEN_BY.format("src/resnet_tpu/cli/"), ABOUT_COMMANDS, _table(("command", "what it does"), overview)]
    return "".join([*parts, *(_verb_or_menu(name, verb) for name, verb in cli.VERBS.items())])


def models_page() -> str:
    """Every network, by depth, variant and recipe, and the weights that have a name."""
    depths = [depth for depth in ARCHITECTURES if depth not in CIFAR_DEPTHS]
    plain = (network_row(f"ResNet-{depth}", ModelConfig(resnet_depth=depth)) for depth in depths)
    small = (network_row(f"ResNet-{depth}", ModelConfig(resnet_depth=depth), 32, 10)[:4] for depth in CIFAR_DEPTHS)
    options = (
        (name.format("N"), ", ".join(f"`{k}={_value(v)}`" for k, v in it.items())) for name, it in VARIANTS.items()
    )
    models = {
        name.format(depth): ModelConfig(resnet_depth=depth, **given)
        for name, given in VARIANTS.items()
        for depth in depths
    }
    variants = (network_row(name, model) for name, model in models.items() if _timm_name(model))
    largest = ((f"`{name}`", *network_row(*_of_recipe(name))[1:]) for name in RESNET_RS)
    weights = (
        (
            f"`{name}`",
            found.network,
            f"{found.parameters:.1f}",
            f"{found.top_1:.1f}" if found.top_1 else "",
            found.licence,
        )
        for name, found in PRETRAINED.items()
    )
    return "".join([
        WRITTEN_BY.format("the tables of networks, recipes and published weights"),
        ABOUT_MODELS,
        f"\n## By depth\n\nFor photos, with 1,000 classes:\n\n{_table(NETWORK, plain)}",
        f"\nFor small images, with 10 classes, as CIFAR-10 has them:\n\n{_table(NETWORK[:4], small)}",
        f"\n## Variants\n{ABOUT_VARIANTS}\n{_table(('variant of depth N', 'options'), options)}",
        f"\nOf these, timm has:\n\n{_table(NETWORK, variants)}",
        f"\n## ResNet-RS\n{ABOUT_RESNET_RS}\n{_table(('recipe', *NETWORK[1:]), largest)}",
        f"\n## Weights by name\n{ABOUT_WEIGHTS}\n",
        _table(("name", "network", "parameters", "top-1", "licence"), weights),
    ])  # fmt: skip


def options_page() -> str:
    """Every option, with a table for each group of `Config`."""
    parts = [WRITTEN_BY.format("src/resnet_tpu/options/config.py"), ABOUT_OPTIONS]
    parts.append(_table(OPTION, map(_option_row, options_of(BulkOptions).values())))
    for group in dataclasses.fields(Config):
        title, _, more = (inspect.getdoc(group.default_factory) or "").rstrip(".").partition("; ")
        parts.append(f"\n## {title}\n\n" + (f"{more[0].upper()}{more[1:]}.\n\n" if more else ""))
        parts.append(_table(OPTION, (_option_row(option) for option in OPTIONS.values() if option.group == group.name)))
    return "".join(parts)


def recipes_page() -> str:
    """Every recipe: what it is for, and the options in which it differs from the defaults."""
    overview = ((_title(family), family.summary.rstrip(".")) for family in FAMILIES)
    parts = [WRITTEN_BY.format("src/resnet_tpu/recipes/"), ABOUT_RECIPES, _table(("recipe", "what it is"), overview)]
    return "".join([*parts, *map(_family, FAMILIES)])


def api_page() -> str:
    """Every function and class of `resnet_tpu.api`, with what the classes themselves define; then what is returned."""
    found = {name: getattr(api, name) for name in api.__all__}
    found |= {returned.__name__: returned for returned in _returned_by(found.values())}
    parts = [WRITTEN_BY.format("the docstrings of resnet_tpu.api"), ABOUT_API]
    types: dict[str, tuple[str, str]] = {}
    for name, it in found.items():
        section = f"\n## {name}\n\n{_class(it) if inspect.isclass(it) else _function(name, it)}"
        section += "".join(f"\n{_function(f'{name}.{method}', function)}" for method, function in _methods(it))
        parts.append(section)
        for word in re.findall(r"\b[A-Z]\w*[a-z]\w*", section):
            if defined := _defined(word, inspect.getmodule(it)):
                types[word] = defined
    rows = ((f"`{name}`", f"`{kind}`", _as_markdown(text)) for name, (kind, text) in sorted(types.items()))
    return "".join([*parts, f"\n## Names of types\n\n{_table(('name', 'stands for', 'what it is'), rows)}"])


PAGES = {
    "commands.md": commands_page,
    "models.md": models_page,
    "options.md": options_page,
    "recipes.md": recipes_page,
    "reference.md": api_page,
}
"""The function that makes each page, by file name."""


def _verb_or_menu(name: str, verb: Verb | Menu) -> str:
    """A verb; or a menu, with the options that several of its commands have, and these commands."""
    if isinstance(verb, Verb):
        return f"\n## {name}\n\n{_command(verb.command)}"
    commands = {what: each.command for what, each in verb.verbs.items() if isinstance(each, Verb)}
    own = [option for command in commands.values() for option in _own_options(command)]
    several = list(dict.fromkeys(option for option in own if own.count(option) > 1))
    text = f"\n## {name}\n\n{_as_markdown(f'{verb.about} {verb.details}'.strip())}\n"
    if several:
        text += f"\nOptions shared by several of its commands:\n\n{_table(OPTION, map(_option_row, several))}"
    return text + "".join(f"\n### {name} {what}\n\n{_command(each, several)}" for what, each in commands.items())


def _command(command: Command, above: Sequence[Option] = ()) -> str:
    """A command: what it does, its usage, arguments, options and examples. above: options already told of."""
    own = _own_options(command)
    usage = command.help(whole=False).partition("\n")[0]
    parts = [_as_markdown(command.about.replace("\n", "\n\n")).replace("\n\n\n\n", "\n\n"), f"```text\n{usage}\n```"]
    if command.arguments:
        parts.append(
            _table(("argument", ""), ((f"`{each.metavar}`", _as_markdown(each.help)) for each in command.arguments))
        )
    for group in command.groups:
        if notes := {name: text for name, text in group.entries(whole=True).items() if not name.startswith("--")}:
            rows = ((f"`{name}`", _as_markdown(text)) for name, text in notes.items())
            parts.append(_table((group.title, ""), rows))
    if rest := [option for option in own if option not in above]:
        parts.append(_table(OPTION, map(_option_row, rest)))
    parts += _named_options(command, [option.name for option in own if option in above])
    if command.examples:
        parts.append("```\n" + "\n".join(command.examples) + "\n```")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _named_options(command: Command, above: Sequence[str]) -> Iterator[str]:
    """Sentences with the names of the options that are explained elsewhere, and with the short names of some."""
    if above:
        yield f"It also takes these options, [explained above](#{command.program.split()[1]}): {_listed(above)}."
    names = [name for group in command.groups for name, option in group.options.items() if TRAINING.get(name) == option]
    if len(names) == len(TRAINING):
        yield "It also takes every [training option](options.md)."
    elif names:
        yield f"It also takes these [training options](options.md): {_listed(names)}."
    aliases = {name: alias for group in command.groups for name, alias in group.own_aliases.items()}
    if aliases and len(names) < len(TRAINING):
        yield f"{', '.join(f'`{name}` is short for `{alias.option}`' for name, alias in aliases.items())}."


def _own_options(command: Command) -> list[Option]:
    """The options of a command that trainings do not have, or have in another form."""
    return [
        option for group in command.groups for name, option in group.options.items() if TRAINING.get(name) != option
    ]


def network_row(title: str, model: ModelConfig, image_size: int = 224, num_classes: int = 1000) -> Sequence[str]:
    """The cells of `NETWORK`. title: what the network is called, also among the published weights."""
    network = create_network(model, num_classes=num_classes, image_size=image_size)
    parameters = sum(map(math.prod, parameter_shapes(network).values()))
    millions = f"{parameters / 1e6:.1f}" if parameters > 1e7 else f"{parameters / 1e6:.2f}"
    work = forward_flops(network) / 1e9
    timm = _timm_name(model) if num_classes == 1000 else ""
    weights = ", ".join(f"`{name}`" for name, found in PRETRAINED.items() if found.network == title)
    return title, str(image_size), millions, f"{work:.1f}" if work > 1 else f"{work:.3f}", timm and f"`{timm}`", weights


def _of_recipe(name: str) -> tuple[str, ModelConfig, int]:
    """What a network of ResNet-RS is called, its options and the side of its images in px."""
    config = find_recipe(name)
    return f"ResNet-RS-{config.model.resnet_depth}", config.model, config.data.image_size


def _timm_name(model: ModelConfig) -> str:
    """What timm calls the network; nothing where it has none."""
    try:
        return architecture_of(model)
    except UserError:
        return ""


def _option_row(option: Option) -> tuple[str, str, str]:
    default = re.search(r" ?Default: (.+?)\.(?= |$)", option.help)
    text = option.help.replace(default[0], "") if default else option.help
    if option.choices:
        text += f" One of {', '.join(option.choices)}."
    kind = " *Steps or epochs.*" if option.is_length else ""
    return f"`{option.name}`", default[1] if default else _value(option.default), _as_markdown(text) + kind


def _family(family: Family) -> str:
    """A recipe, or several of one kind, with a table of the options that differ between them."""
    recipes = {name: Config().replace(**recipe).changed() for name, recipe in family.members.items()}
    names = list(dict.fromkeys(name for changed in recipes.values() for name in changed))
    values = {name: [changed.get(name, OPTIONS[name].default) for changed in recipes.values()] for name in names}
    common = [name for name in names if all(value == values[name][0] for value in values[name])]
    others = [name for name in names if name not in common]
    parts = [f"\n## {_title(family)}\n\n{_as_markdown(family.about)}\n"]
    if common:
        parts.append(f"\n{', '.join(f'`{name}={_value(values[name][0])}`' for name in common)}\n")
    if others:
        rows = ((f"`{recipe}`", *(_value(values[name][i]) for name in others)) for i, recipe in enumerate(recipes))
        parts.append("\n" + _table(("recipe", *(f"`{name}`" for name in others)), rows))
    return "".join(parts)


def _returned_by(found: Iterable[Any]) -> list[type]:
    """The other classes of this package of which these functions return objects, and of what is in such objects."""
    known = list(found)
    returned: list[type] = []
    hints = [typing.get_type_hints(function).get("return") for function in filter(inspect.isfunction, known)]
    while hints:
        hint = hints.pop(0)
        hints += typing.get_args(hint)
        if isinstance(hint, type) and hint.__module__.startswith("resnet_tpu.") and hint not in (*known, *returned):
            returned.append(hint)
            hints += typing.get_type_hints(hint).values() if dataclasses.is_dataclass(hint) else ()
    return returned


@functools.cache
def _defined(name: str, module: Any) -> tuple[str, str] | None:
    """What a name of a type stands for in a module of this package or where that imports it from, and what it is."""
    for statement, following in itertools.pairwise(_statements(module)):
        if isinstance(statement, ast.ImportFrom) and name in [each.name for each in statement.names]:
            source = importlib.import_module(str(statement.module))
            return _defined(name, source) if source.__name__.startswith("resnet_tpu.") else None
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return _plain(statement.value), _string(following)
    return None


def _plain(kind: ast.expr) -> str:
    """A type as text, without what `Annotated` says of it to the code that parses options."""
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated" and isinstance(kind.slice, ast.Tuple):
        kind = kind.slice.elts[0]
    return ast.unparse(kind)


@functools.cache
def _statements(module: Any) -> Sequence[ast.stmt]:
    """The statements of a module, and one more that says nothing."""
    return *ast.parse(inspect.getsource(module)).body, ast.Pass()


def _methods(found: Any) -> list[tuple[str, Any]]:
    """The public methods that a class itself defines; none of anything else."""
    defined = vars(found).items() if inspect.isclass(found) else ()
    return [(name, it) for name, it in defined if inspect.isfunction(it) and not name.startswith("_")]


def _function(name: str, function: Any) -> str:
    """The signature, and the docstring."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(defined, ast.FunctionDef)
    returned = f" -> {ast.unparse(defined.returns)}" if defined.returns else ""
    about = _as_markdown(inspect.getdoc(function) or "")
    return f"```python\n{name}({ast.unparse(defined.args)}){returned}\n```\n\n{about}\n"


def _class(found: type) -> str:
    """The docstring, and a table of what its objects have: fields, or what `__init__` assigns, and properties."""
    source = textwrap.dedent(inspect.getsource(found))
    (defined,) = ast.parse(source).body
    assert isinstance(defined, ast.ClassDef)
    fields = list(_fields(found, defined, source.splitlines()))
    about, told = _taken_apart(inspect.getdoc(found) or "", [name for name, _, text in fields if not text])
    rows = [(f"`{name}`", f"`{kind}`", _as_markdown(text or told.get(name, ""))) for name, kind, text in fields]
    rows += [(f"`{name}`", f"`{kind}`", _as_markdown(text)) for name, kind, text in _properties(defined)]
    table = f"\n{_table(('attribute', 'type', 'what it is'), rows)}" if rows else ""
    return f"{_as_markdown(about)}\n{table}"


def _fields(found: type, defined: ast.ClassDef, lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(name, type, text) of each field, or of what `__init__` assigns to `self`. The text may be empty.

    It is the help of an option, the docstring of a group of options, a string below the field, or a comment beside it.
    """
    options = options_of(found) if found in (api.PrepareOptions, api.Experiment) else {}
    parts = dataclasses.fields(Config) if found is Config else ()
    groups = {part.name: inspect.getdoc(part.default_factory) or "" for part in parts}
    init = next((it for it in defined.body if isinstance(it, ast.FunctionDef) and it.name == "__init__"), None)
    given = {each.arg: each.annotation for each in init.args.args} if init else {}
    body = init.body if init else defined.body
    for statement, next_one in zip(body, [*body[1:], ast.Pass()], strict=True):
        for name, kind in _assigned(statement, given):
            text = help_of(options[name]) if name in options else groups.get(name, "")
            comment = lines[(statement.end_lineno or 1) - 1].partition("  # ")[2]
            yield name, kind, text or _string(next_one) or comment


def _string(statement: ast.stmt) -> str:
    """The string of which a statement consists; nothing if it is another."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _assigned(statement: ast.stmt, given: Mapping[str, ast.expr | None]) -> Iterator[tuple[str, str]]:
    """(name, type) of each public field that a statement makes. given: types of the parameters of `__init__`."""
    if isinstance(statement, ast.AnnAssign):
        targets, kinds = [statement.target], [statement.annotation]
    elif isinstance(statement, ast.Assign):
        (target,), value = statement.targets, statement.value
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        kinds = [given.get(each.id) if isinstance(each, ast.Name) else None for each in values]
    else:
        return
    for target, kind in zip(targets, kinds, strict=True):
        name = ast.unparse(target).removeprefix("self.")
        if kind is not None and not name.startswith("_"):
            yield name, ast.unparse(kind).strip("'")


def _properties(defined: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """(name, type, docstring) of each public property."""
    for it in defined.body:
        if not isinstance(it, ast.FunctionDef) or not it.returns or it.name.startswith("_"):
            continue
        if {"property", "functools.cached_property"} & {*map(ast.unparse, it.decorator_list)}:
            yield it.name, ast.unparse(it.returns), " ".join((ast.get_docstring(it) or "").split())


def _taken_apart(about: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A docstring without the sentences that are about one attribute, `name: what it is.`, and these by name."""
    if not names:
        return about, {}
    sentence = re.compile(rf"(?:^|(?<=\.)\s+)`?({'|'.join(names)})`?:\s+(.+?\.)(?=\s|$)", re.DOTALL | re.MULTILINE)
    told = {name: " ".join(text.split()) for name, text in sentence.findall(about)}
    return re.sub(r"\n{3,}", "\n\n", sentence.sub("", about)).strip(), told


def _title(family: Family) -> str:
    first, *rest = family.members
    return f"{first} to {rest[-1]}" if rest else first


def _value(value: Any) -> str:
    """The value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _as_markdown(text: str) -> str:
    code_or_special = re.compile(r"(`[^`]*`)|([<*])")
    return code_or_special.sub(lambda found: found[1] or {"<": "&lt;", "*": "\\*"}[found[2]], text)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(header)
    lines = (names, ["---"] * len(names), *([cell.replace("|", r"\|") for cell in row] for row in rows))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
