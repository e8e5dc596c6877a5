"""Command lines: the spellings of options, help made from `Option`s, and what was given as a dataclass of options."""

import argparse
import functools
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options import FilePath, Option, Rgb, options_of

T = TypeVar("T")

Flags = Mapping[str, bool]
"""Names of options, with whether each is a bool, which needs no value."""

_WIDTH = 110
_wrap = functools.partial(textwrap.fill, width=_WIDTH, break_on_hyphens=False, break_long_words=False)
_SPELLINGS = (
    "Also --some-name VALUE for --some_name=VALUE; and of a BOOL --some_name for true, --nosome_name for false."
)


def split_arguments(
    arguments: Sequence[str], flags: Flags, *, program: str, single_dash: bool = False
) -> Iterator[tuple[str | None, str]]:
    """(name, value) of each option and (None, text) of everything else, in order.

    Spellings: `--name=value`, `--name value`, `--na-me`, and for a bool `--name`, `--noname`, `--name false`; with
    `single_dash` also `-name`. After `--` nothing is an option.
    Raises UserError for an unknown option, with the nearest of `flags`, and for a value left out.
    """
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            yield from ((None, text) for text in rest)
            return
        if argument == "-" or not argument.startswith("-" if single_dash else "--"):
            yield None, argument
            continue
        written, equals, value = argument.partition("=")
        name = written.lstrip("-").replace("-", "_")
        if name not in flags and flags.get(name.removeprefix("no"), False) and not equals:
            yield name.removeprefix("no"), "false"
            continue
        if name not in flags:
            hint = nearest(written, [f"--{known}" for known in flags])
            raise UserError("Option", written, f"an option of {program}", f"See {program} --help.{hint}")
        if not equals and flags[name]:
            value = rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
        elif not equals:
            if not rest:
                raise UserError(written, "nothing", "a value", f"Write {written}=VALUE.")
            value = rest.pop(0)
        yield name, value


def cut_at_dashes(arguments: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """The arguments before the first `--`, and those after it, which are another program's."""
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    return arguments[:cut], tuple(arguments[cut + 1 :])


class Parser(argparse.ArgumentParser):
    """argparse with the spellings of `split_arguments`. What does not fit raises UserError."""

    def __init__(self, program: str, about: str, *, usage: str = "[options]", examples: Sequence[str]) -> None:
        super().__init__(
            prog=program,
            usage=f"{program} {usage}",
            description="\n".join(_wrap(line) for line in about.split("\n")),
            epilog="\n".join(["examples:", *(f"  {example}" for example in examples), "", _SPELLINGS]),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=_WIDTH),
            allow_abbrev=False,
        )
        self._options: dict[str, Option] = {}  # by all their names

    def add_options(
        self,
        title: str,
        options: Iterable[Option],
        *,
        repeatable: Collection[str] = (),
        other_names: Mapping[str, str] | None = None,
    ) -> None:
        """Adds options under a heading of the help. In what `parse` returns they are text, and absent when not given.

        repeatable: names of those that may be given several times and become a list of text; of others the last counts.
        other_names: names that also mean an option, with the option's own.
        """
        group = self.add_argument_group(title)
        for option in options:
            others = [other for other, name in (other_names or {}).items() if name == option.name]
            self._options |= dict.fromkeys((option.name, *others), option)
            text = " ".join([describe(option), *(f"Also --{other}." for other in others)])
            group.add_argument(
                f"--{option.name}",
                metavar=metavar(option),
                help=text.replace("%", "%%"),
                default=argparse.SUPPRESS,
                action="append" if option.name in repeatable else "store",
            )

    def has(self, argument: str) -> bool:
        """Whether an argument is one of the options, with its value or without."""
        return argument.startswith("--") and argument[2:].partition("=")[0].replace("-", "_") in self._options

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The positional arguments and the given options by name, the paths of these by `expand_home`.

        `--help` prints the help and exits.
        """
        if list(arguments) == _QUESTION:
            raise _Answer(self._options)
        flags = {"help": True} | {name: bool in option.kinds for name, option in self._options.items()}
        options: list[str] = []
        others: list[str] = []
        arguments = ["--help" if argument == "-h" else argument for argument in arguments]
        for name, value in split_arguments(arguments, flags, program=self.prog):
            if name == "help":
                options.append("--help")
            elif name is None:
                others.append(value)
            else:
                option = self._options[name]
                options.append(f"--{option.name}={option.convert(value) if option.is_path else value}")
        separator = ["--"] if any(other.startswith("-") for other in others) else []
        return vars(self.parse_args([*options, *separator, *others]))

    def error(self, message: str) -> NoReturn:
        """What argparse calls when positional arguments are missing or too many."""
        got = message.replace("the following arguments are required:", "no").replace("unrecognized arguments:", "also")
        usage = self.format_usage().removeprefix("usage: ").strip()
        raise UserError(self.prog, got, usage, f"See {self.prog} --help.")


_QUESTION = ["\0"]
"""Arguments that no command line can hold: `Parser.parse` answers with its options."""


class _Answer(BaseException):
    """Carries the options past everything that a verb would do with them."""

    def __init__(self, options: Mapping[str, Option]) -> None:
        self.options = options


def options_of_verb(verb: Callable[[Sequence[str]], None]) -> Mapping[str, Option]:
    """The options of a verb by all their names. Nothing else of it is done."""
    try:
        verb(_QUESTION)
    except _Answer as answer:
        return answer.options
    return {}


def metavar(option: Option) -> str:
    """What stands for the option's value in the help."""
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    if option.is_length:
        return "STEPS|EPOCHS"
    return {bool: "[BOOL]", int: "N", float: "X", Rgb: "R,G,B", FilePath: "PATH"}.get(option.kinds[0], "TEXT")


def describe(option: Option) -> str:
    """The option's help text with its default."""
    if option.default is None or option.default == "" or "default" in option.help.lower():
        return option.help
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    return f"{option.help} Default: {default}."


def entries(texts: Mapping[str, str]) -> str:
    """Names with their texts in a column beside them, as a part of a help."""
    column = 4 + max(map(len, texts))
    lines = [
        _wrap(text, initial_indent=f"  {name}".ljust(column), subsequent_indent=" " * column)
        for name, text in texts.items()
    ]
    return "\n".join(lines)


def fill(owner: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass `owner` with these values, given as text, in the types of its fields.

    Raises UserError for one that does not fit.
    """
    options = options_of("", owner)
    return owner(**{name: options[name].convert(value) for name, value in values.items()})


def dispatch(
    verb: str,
    about: str,
    whats: Mapping[str, Callable[[Sequence[str]], None]],
    arguments: Sequence[str],
    *,
    examples: Sequence[str],
) -> None:
    """Calls the one of `whats` that the first argument names with the others; without any, shows what there is."""
    what, *others = arguments or ["--help"]
    if what in ("--help", "-h", "help"):
        lines = entries({name: function.__doc__ or "" for name, function in whats.items()})
        shown = "\n".join(f"  {example}" for example in examples)
        print(f"usage: resnet-tpu {verb} WHAT [options]\n\n{about}\n\nwhat:\n{lines}\n\nexamples:\n{shown}\n")
        print(f"`resnet-tpu {verb} WHAT --help` lists the options of each.")
    elif what in whats:
        whats[what](others)
    else:
        do = f"See resnet-tpu {verb} --help.{nearest(what, whats)}"
        raise UserError(f"resnet-tpu {verb}", what, f"one of {', '.join(whats)}", do)
