"""A program whose first word selects one of several verbs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resnet_tpu.cli.command import Verb
from resnet_tpu.cli.help_text import entries, examples_of
from resnet_tpu.errors import UserError, nearest


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
            if isinstance(verb, Verb):
                verb.run(verb.command.parse(rest))
            else:
                verb(rest)
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
