"""Command lines: the spellings of options, help made from `config.Option`s, messages that name the nearest option."""

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options import Option, Rgb

Flags = Mapping[str, bool]
"""Names of options, with whether each is a bool, which needs no value."""

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


class Parser(argparse.ArgumentParser):
    """argparse with the spellings of `split_arguments`. What does not fit raises UserError."""

    def __init__(self, program: str, about: str, *, usage: str = "[options]", examples: Sequence[str]) -> None:
        super().__init__(
            prog=program,
            usage=f"{program} {usage}",
            description=about,
            epilog="\n".join(["examples:", *(f"  {example}" for example in examples), "", _SPELLINGS]),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110),
            allow_abbrev=False,
        )
        self._flags = {"help": True}
        self._other_names: dict[str, str] = {}

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
            self._flags |= dict.fromkeys((option.name, *others), bool in option.kinds)
            self._other_names |= dict.fromkeys(others, option.name)
            text = " ".join([describe(option), *(f"Also --{other}." for other in others)])
            group.add_argument(
                f"--{option.name}",
                metavar=metavar(option),
                help=text.replace("%", "%%"),
                default=argparse.SUPPRESS,
                action="append" if option.name in repeatable else "store",
            )

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The positional arguments and the given options by name. `--help` prints the help and exits."""
        options: list[str] = []
        others: list[str] = []
        arguments = ["--help" if argument == "-h" else argument for argument in arguments]
        for name, value in split_arguments(arguments, self._flags, program=self.prog):
            if name == "help":
                options.append("--help")
            elif name is None:
                others.append(value)
            else:
                options.append(f"--{self._other_names.get(name, name)}={value}")
        separator = ["--"] if any(other.startswith("-") for other in others) else []
        return vars(self.parse_args([*options, *separator, *others]))

    def error(self, message: str) -> NoReturn:
        """What argparse calls when positional arguments are missing or too many."""
        usage = self.format_usage().removeprefix("usage: ").strip()
        raise UserError(self.prog, f"arguments that do not fit ({message})", usage, f"See {self.prog} --help.")


def metavar(option: Option) -> str:
    """What stands for the option's value in the help."""
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    if option.is_length:
        return "STEPS|EPOCHS"
    return {bool: "[BOOL]", int: "N", float: "X", Rgb: "R,G,B"}.get(option.kinds[0], "TEXT")


def describe(option: Option) -> str:
    """The option's help text with its default."""
    if option.default is None or option.default == "" or "default" in option.help.lower():
        return option.help
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    return f"{option.help} Default: {default}."


def convert_options(values: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, Any]:
    """The values in the types of their options. Raises UserError for one that does not fit."""
    return {name: options[name].convert(value) for name, value in values.items()}
