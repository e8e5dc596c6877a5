"""A family of recipes: what they train, and their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resnet_tpu.options.config import Config


@dataclass(frozen=True, kw_only=True)
class Family:
    """A recipe, or several that differ only in size.

    summary: what is trained, in a sentence. details: more about it. members: by name, the options of the run; all
    others keep their defaults. sets: options that the configuration file of each member sets, even to their defaults.
    """

    summary: str
    details: str = ""
    members: Mapping[str, Mapping[str, Any]]
    sets: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """The whole description."""
        return f"{self.summary} {self.details}".rstrip()

    def in_file(self, name: str) -> dict[str, Any]:
        """The options that the configuration file of the member called `name` sets."""
        config = Config().replace(**self.members[name])
        values = config.flat()
        return config.changed() | {option: values[option] for option in self.sets}
