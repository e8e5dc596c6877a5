"""What a command accepts: positional arguments, and options in groups under the headings of its help."""

import functools
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resnet_tpu.cli.help_text import help_of, metavar
from resnet_tpu.options.fields import Option, options_of


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
