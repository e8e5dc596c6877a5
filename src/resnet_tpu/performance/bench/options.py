"""What the benchmarks have in common."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from resnet_tpu import storage
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.performance.bench.figures import Format


@dataclass(frozen=True)
class MeasureOptions:
    """What is measured for how long, and what becomes of the figures."""

    rounds: int = option(5, "Alternating rounds, each with one run of everyone. Figures are medians.", at_least=1)
    seconds: float = option(5.0, "About how long a run is timed for, after it has warmed up.", at_least=0)
    quick: bool = option(False, "One short round with few images: shows that it works, the figures mean nothing.")
    format: Format = option("table", "How to print the figures.")
    output: FilePath = option("", "Also write them into this JSON file, with machine, versions and command.")
    picture: FilePath = option("", "Also draw them into this PNG file.")

    def resolved(self) -> Self:
        """These options, with little work if `quick` is set. Raises UserError for files that cannot be written."""
        for path in (self.output, self.picture):
            storage.check_file(path)
        return self.unless_given(rounds=1, seconds=0.2) if self.quick else self

    def unless_given(self, **values: Any) -> Self:
        """These options, with `values` for those that have their defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        new = {name: value for name, value in values.items() if getattr(self, name) == defaults[name]}
        return dataclasses.replace(self, **new)


@dataclass(frozen=True)
class BenchOptions(MeasureOptions):
    """The same for the benchmarks of the input."""

    batch_size: int = option(100, "Images in a batch.", at_least=1)
    num_images: int = option(1000, "Images in the records: photos are repeated up to that.", at_least=1)

    def resolved(self) -> Self:
        """These options, with little work if `quick` is set."""
        resolved = super().resolved()
        return resolved.unless_given(batch_size=8, num_images=32) if self.quick else resolved
