"""A command: how its command line is parsed, what its help says, and the function that runs it."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.help_text import column_of, entries, examples_of, wrap
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.fields import Option, expand_home, options_of

T = TypeVar("T")

_SPELLINGS = (
    "--some_name=VALUE may be written --some-name VALUE. A BOOL: --some_name for true, --no-some-name for false."
)
_HELPS = ("help", "help_all")


@dataclass(frozen=True)
class Given:
    """A parsed command line: its words, and the values of arguments and options by name.

    Values are text or lists of text. An option that was not given has no entry. Paths are expanded by `expand_home`.
    rest: the words after `--`, if they belong to another program.
    """

    words: Sequence[str]
    values: dict[str, Any]
    rest: tuple[str, ...] = ()

    def fill(self, owner: type[T]) -> T:
        """The dataclass `owner` of options with the given values. Raises UserError for an invalid value."""
        options = options_of(owner)
        return owner(**{name: options[name].convert(self.values[name]) for name in options if name in self.values})


def _option_name(written: str) -> str:
    return written.lstrip("-").replace("-", "_")


def _negated(name: str) -> str:
    """The option that `noname` or `no_name` turns off, if it is one."""
    return name.removeprefix("no").removeprefix("_")


@dataclass(frozen=True)
class Command:
    """A command: its positional arguments and its options. As a decorator, it turns a function into a verb.

    about: the beginning of the help. usage: replaces the usage line made from arguments and options. other_program: the
    names of the options of a program that this one runs, and whose words follow `--`. None: there is no such program;
    all words after `--` are arguments, even if they look like options. single_dash: options may also begin with a
    single dash.
    """

    program: str
    about: str = ""
    groups: Sequence[Group] = ()
    usage: str = ""
    examples: Sequence[str] = ()
    arguments: Sequence[Argument] = ()
    other_program: Collection[str] | None = None
    single_dash: bool = False

    def __call__(self, run: Callable[[Given], None]) -> "Verb":
        """Makes `run` a verb; its docstring says what it does and begins the help."""
        does = str(run.__doc__)
        return Verb(does, dataclasses.replace(self, about=f"{does}\n\n{self.about}".strip()), run)

    @functools.cached_property
    def options(self) -> Mapping[str, Option]:
        """The options by name, including aliases."""
        found: dict[str, Option] = {}
        for group in self.groups:
            found |= group.options
            found |= {name: found[alias.option] for name, alias in group.own_aliases.items()}
        return found

    def parse(self, words: Sequence[str]) -> Given:
        """Parses the words. `--help` and `--help-all` print the help and exit.

        Spellings: `--name=value`, `--name value`, `--na-me`, and for a bool `--name`, `--no-name`, `--noname`,
        `--name false`. If an option is given several times, the last value counts, unless it is repeatable. Raises
        UserError for an unknown option (naming the nearest), a missing value, and too few or too many arguments.
        """
        own, rest = (*words,), ()
        if self.other_program is not None and "--" in own:
            cut = own.index("--")
            own, rest = own[:cut], own[cut + 1 :]
        units = {name: alias.unit for group in self.groups for name, alias in group.own_aliases.items()}
        values: dict[str, Any] = {}
        positional: list[str] = []
        for name, text in self._split(own):
            if name in _HELPS:
                print(self.help(whole=name == "help_all"))
                sys.exit(0)
            elif name is None:
                positional.append(text)
            else:
                option = self.options[name]
                if option.is_path:
                    value = option.convert(text)
                else:  # add the alias's unit to a number without a unit
                    value = text if text[-1:].isalpha() else text + units.get(name, "")
                values[option.name] = [*values.get(option.name, ()), value] if option.is_repeatable else value
        return Given(words, self._place(positional) | values, rest)

    def _split(self, words: Sequence[str]) -> Iterator[tuple[str | None, str]]:
        """(name, value) of each option and (None, text) of everything else, in order."""
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                yield from ((None, text) for text in left)
                return
            if word == "-" or not word.startswith("-" if self.single_dash or word == "-h" else "--"):
                yield None, word
                continue
            written, equals, value = word.partition("=")
            name = "help" if written == "-h" else _option_name(written)
            if name not in self.options and name not in _HELPS:
                negated = _negated(name)
                if equals or not name.startswith("no") or not self._is_bool(negated):
                    raise self._unknown(word)
                yield negated, "false"
            elif equals:
                yield name, value
            elif self._is_bool(name):
                yield name, left.pop(0) if left and left[0].lower() in ("true", "false") else "true"
            elif left and not left[0].startswith("--"):
                yield name, left.pop(0)
            else:
                raise UserError(written, "nothing", "a value", f"Write {written}=VALUE.")

    def _unknown(self, word: str) -> UserError:
        """The error for a word that looks like an option but is not an option of this command."""
        written = word.partition("=")[0]
        if _option_name(written) in (self.other_program or ()):
            expected = f"options of {self.program} before --, and after it those of the program it runs"
            return UserError("Option", word, expected, f"Write {self.program} [options] -- {word}")
        hint = nearest(written, [f"--{known}" for known in self.options])
        return UserError("Option", written, f"an option of {self.program}", f"See {self.program} --help.{hint}")

    def _is_bool(self, name: str) -> bool:
        return name in _HELPS or (name in self.options and bool in self.options[name].kinds)

    def _place(self, texts: Sequence[str]) -> dict[str, Any]:
        """The positional arguments by name; an omitted one is empty. Raises UserError for too few or too many."""
        left = [*texts]
        values: dict[str, Any] = {}
        missing: list[str] = []
        for argument in self.arguments:
            taken = left if argument.many else left[:1]
            left = left[len(taken) :]
            if argument.is_required and not taken:
                missing.append(argument.metavar)
            found = [expand_home(text) if argument.is_path else text for text in taken]
            values[argument.name] = found if argument.many else "".join(found)
        if missing or left:
            got = f"no {', '.join(missing)}" if missing else f"also {' '.join(left)}"
            raise UserError(self.program, got, self._usage(), f"See {self.program} --help.")
        return values

    def _usage(self) -> str:
        words = [argument.usage() for argument in self.arguments] + ["[options]"] * bool(self.groups)
        return " ".join([self.program, *([self.usage] if self.usage else words)])

    def help(self, *, whole: bool) -> str:
        """The help text; options that are not common are included only if `whole`."""
        parts = {"positional arguments": {argument.metavar: argument.help for argument in self.arguments}}
        parts |= {group.title: group.entries(whole=whole) for group in self.groups}
        more = sum(len(group.entries(whole=True)) - len(parts[group.title]) for group in self.groups)
        column = column_of([name for texts in parts.values() for name in texts])
        texts = [
            f"usage: {self._usage()}",
            "\n".join(map(wrap, self.about.split("\n"))),
            *(f"{title}:\n{entries(texts, column)}" for title, texts in parts.items() if texts),
            f"{self.program} --help-all shows {more} more options." if more else "",
            examples_of(self.examples),
            _SPELLINGS,
        ]
        return "\n\n".join(filter(None, texts))


@dataclass(frozen=True)
class Verb:
    """A verb of a program: a sentence about it, its arguments and options, and the function that runs it."""

    about: str
    command: Command
    run: Callable[[Given], None]
