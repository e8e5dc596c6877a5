"""A family of recipes: what they train, and their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from resnet_tpu.options.config import Config


@dataclass(frozen=True, kw_only=True)
class Family:
    """A recipe, or several that differ only in size.

    summary: what is trained, in a sentence. details: more about it. members: by name, the function that returns every
    option of the run.
    """

    summary: str
    details: str = ""
    members: Mapping[str, Callable[[], Config]]

    @property
    def about(self) -> str:
        """The whole description."""
        return f"{self.summary} {self.details}".rstrip()
