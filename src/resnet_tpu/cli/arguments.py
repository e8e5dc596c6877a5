"""Command lines: the arguments and options of a verb, its help text, and the parsed values."""

import dataclasses
import functools
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from resnet_tpu.cli.help_text import column_of, entries, examples_of, help_of, metavar, wrap
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.options.fields import Option, expand_home, options_of

T = TypeVar("T")

_SPELLINGS = (
    "--some_name=VALUE may be written --some-name VALUE. A BOOL: --some_name for true, --no-some-name for false."
)
_HELPS = ("help", "help_all")


class Argument(NamedTuple):
    """A positional argument: one word or, with `many`, all remaining words."""

    name: str
    metavar: str
    help: str
    is_required: bool = True
    many: bool = False
    is_path: bool = True

    def usage(self) -> str:
        """The argument as shown in the usage line."""
        text = f"{self.metavar} ..." if self.many else self.metavar
        return text if self.is_required else f"[{text}]"


class Alias(NamedTuple):
    """An alias of an option, and a unit added to its value: `--epochs=20` stands for `--train_steps=20epochs`."""

    option: str
    unit: str = ""

    def describe(self, name: str) -> str:
        """The note on this alias in the option's help."""
        return f"Also --{name}=20 for 20{self.unit}." if self.unit else f"Also --{name}."


@dataclass(frozen=True)
class Group:
    """Options under one heading of the help.

    owner: a dataclass of options, or the options themselves by name. notes: names with explanations, shown above the
    options. Either may be given as `package.module:name`, which is imported only when needed. without: names of options
    to leave out. aliases: other names of options; those of options outside this group are ignored. common: names of the
    options that --help shows, while --help-all shows every one. None: --help shows every one too.
    """

    title: str
    owner: type | Mapping[str, Option] | str
    without: Collection[str] = ()
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    common: Collection[str] | None = None
    notes: Mapping[str, str] | str = field(default_factory=dict)

    @functools.cached_property
    def options(self) -> Mapping[str, Option]:
        """The options by name."""
        owner = _imported(self.owner)
        options = options_of(owner) if isinstance(owner, type) else owner
        return {name: option for name, option in options.items() if name not in self.without}

    @property
    def own_aliases(self) -> dict[str, Alias]:
        """The aliases of these options."""
        return {name: alias for name, alias in self.aliases.items() if alias.option in self.options}

    def entries(self, *, whole: bool) -> dict[str, str]:
        """The text of each note and option, by its spelling; without `whole`, only the common options."""
        texts = dict(_imported(self.notes))
        for name, option in self.options.items():
            if whole or self.common is None or name in self.common:
                also = [alias.describe(other) for other, alias in self.own_aliases.items() if alias.option == name]
                texts[f"--{name} {metavar(option)}"] = " ".join([help_of(option), *also])
        return texts


def _imported(named: Any) -> Any:
    return pkgutil.resolve_name(named) if isinstance(named, str) else named


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


@dataclass(frozen=True)
class Menu:
    """A program with several verbs; the first word of the command line selects one.

    about: the purpose of the program, in a sentence. details: more about it. what: the placeholder for a verb in the
    usage line. version: the text that `--version` prints; empty: there is no such option.
    """

    program: str
    about: str
    verbs: "Mapping[str, Verb | Menu]"
    examples: Sequence[str]
    details: str = ""
    what: str = "WHAT"
    version: str = ""

    def __call__(self, words: Sequence[str]) -> None:
        """Runs the verb that the words name; without words, prints the help."""
        name, *rest = words or ["help"]
        if name == "help" and rest:
            name, *rest = *rest, "--help"
        if name in ("help", "--help", "--help-all", "-h"):
            print(self.help())
        elif self.version and name in ("--version", "-V"):
            print(self.version)
        elif name in self.verbs:
            verb = self.verbs[name]
            if isinstance(verb, Menu):
                verb(rest)
            else:
                verb.run(verb.command.parse(rest))
        else:
            do = f"See {self.program} --help.{nearest(name, self.verbs)}"
            raise UserError(self.program, name, f"one of {', '.join(self.verbs)}", do)

    def help(self) -> str:
        """The help text, with all verbs."""
        texts = [
            f"usage: {self.program} {self.what} [options]",
            self.about,
            self.details,
            f"{self.what} is one of:\n{entries({name: verb.about for name, verb in self.verbs.items()})}",
            examples_of(self.examples),
            f"`{self.program} {self.what} --help` lists the options of each.",
        ]
        return "\n\n".join(filter(None, texts))
