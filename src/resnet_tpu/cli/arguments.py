"""Command lines: the spellings of options, help made from `Option`s, and what was given as a dataclass of options."""

import argparse
import functools
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.fields import FilePath, Option, Rgb, options_of

T = TypeVar("T")

Flags = Mapping[str, bool]
"""Names of options, with whether each is a bool, which needs no value."""

ASKING_FOR_HELP = ("--help", "-h", "--help-all", "help")
"""What, in place of a verb or a part of one, asks what there is."""

_WIDTH = 110
_wrap = functools.partial(textwrap.fill, width=_WIDTH, break_on_hyphens=False, break_long_words=False)
_SPELLINGS = (
    "Also --some-name VALUE for --some_name=VALUE; and of a BOOL --some_name for true, --no-some-name for false."
)


class OtherName(NamedTuple):
    """What another name of an option means: which one, and what is added to the value: `epochs` to that of --epochs."""

    option: str
    unit: str = ""

    def describe(self, name: str) -> str:
        """For the help, of the option."""
        return f"Also --{name}=20 for 20{self.unit}." if self.unit else f"Also --{name}."


def split_arguments(
    arguments: Sequence[str], flags: Flags, *, program: str, single_dash: bool = False
) -> Iterator[tuple[str | None, str]]:
    """(name, value) of each option and (None, text) of everything else, in order.

    Spellings: `--name=value`, `--name value`, `--na-me`, and for a bool `--name`, `--no-name`, `--noname`,
    `--name false`; with `single_dash` also `-name`. After `--` nothing is an option.
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
        negated = name.removeprefix("no").removeprefix("_")
        if name not in flags and name.startswith("no") and flags.get(negated, False) and not equals:
            yield negated, "false"
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
            add_help=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=_WIDTH),
            allow_abbrev=False,
        )
        self._options: dict[str, Option] = {}  # by all their names
        self._other_names: dict[str, OtherName] = {}
        self._rare: list[argparse.Action] = []

    def add_options(
        self,
        title: str,
        options: Iterable[Option],
        *,
        repeatable: Collection[str] = (),
        other_names: Mapping[str, OtherName] | None = None,
        common: Collection[str] | None = None,
    ) -> None:
        """Adds options under a heading of the help. In what `parse` returns they are text, and absent when not given.

        repeatable: names of those that may be given several times and become a list of text; of others the last counts.
        other_names: what other names mean. common: names of those that --help shows; the others are for --help-all.
        None: all.
        """
        group = self.add_argument_group(title)
        for option in options:
            others = {name: other for name, other in (other_names or {}).items() if other.option == option.name}
            self._other_names |= others
            self._options |= dict.fromkeys((option.name, *others), option)
            text = " ".join([describe(option), *(other.describe(name) for name, other in others.items())])
            action = group.add_argument(
                f"--{option.name}",
                metavar=metavar(option),
                help=text.replace("%", "%%"),
                default=argparse.SUPPRESS,
                action="append" if option.name in repeatable else "store",
            )
            if common is not None and option.name not in common:
                self._rare.append(action)

    def has(self, argument: str) -> bool:
        """Whether an argument is one of the options, with its value or without."""
        return argument.startswith("--") and argument[2:].partition("=")[0].replace("-", "_") in self._options

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The positional arguments and the given options by name, the paths of these by `expand_home`.

        `--help` and `--help-all` print the help and exit.
        """
        if list(arguments) == _QUESTION:
            raise _Answer(self._options)
        flags = dict.fromkeys(_HELPS, True) | {name: bool in option.kinds for name, option in self._options.items()}
        options: list[str] = []
        others: list[str] = []
        arguments = ["--help" if argument == "-h" else argument for argument in arguments]
        for name, value in split_arguments(arguments, flags, program=self.prog):
            if name in _HELPS:
                self._show_help(whole=name == "help_all")
            elif name is None:
                others.append(value)
            else:
                option, unit = self._options[name], self._other_names.get(name, OtherName(name)).unit
                options.append(f"--{option.name}={option.convert(value) if option.is_path else value + unit}")
        separator = ["--"] if any(other.startswith("-") for other in others) else []
        return vars(self.parse_args([*options, *separator, *others]))

    def _show_help(self, *, whole: bool) -> NoReturn:
        """Prints the help, with the options that are not common only when it is to be the whole one, and exits."""
        if self._rare and not whole:
            for action in self._rare:
                action.help = argparse.SUPPRESS
            self.epilog = f"{self.prog} --help-all shows {len(self._rare)} more options.\n\n{self.epilog}"
        self.print_help()
        self.exit()

    def error(self, message: str) -> NoReturn:
        """What argparse calls when positional arguments are missing or too many."""
        got = message.replace("the following arguments are required:", "no").replace("unrecognized arguments:", "also")
        usage = self.format_usage().removeprefix("usage: ").strip()
        raise UserError(self.prog, got, usage, f"See {self.prog} --help.")


_HELPS = ("help", "help_all")

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
    if what in ASKING_FOR_HELP:
        lines = entries({name: function.__doc__ or "" for name, function in whats.items()})
        shown = "\n".join(f"  {example}" for example in examples)
        print(f"usage: resnet-tpu {verb} WHAT [options]\n\n{about}\n\nwhat:\n{lines}\n\nexamples:\n{shown}\n")
        print(f"`resnet-tpu {verb} WHAT --help` lists the options of each.")
    elif what in whats:
        whats[what](others)
    else:
        do = f"See resnet-tpu {verb} --help.{nearest(what, whats)}"
        raise UserError(f"resnet-tpu {verb}", what, f"one of {', '.join(whats)}", do)
