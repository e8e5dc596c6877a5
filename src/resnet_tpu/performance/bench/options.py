"""The options that benchmarks have in common."""

from dataclasses import dataclass

from resnet_tpu import storage
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.performance.bench.figures import Format


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure, for how long, and what to do with the figures."""

    rounds: int = option(5, "Alternating rounds, each with one run of every program. Figures are medians.", at_least=1)
    seconds: float = option(5.0, "Roughly how long each run is timed for, after it has warmed up.", at_least=0)
    format: Format = option("table", "How to print the figures.")
    output: FilePath = option("", "Also write the figures to this JSON file, with machine, versions and command.")
    picture: FilePath = option("", "Also draw the figures to this PNG file.")

    def check_files(self) -> None:
        """Raises UserError for files that cannot be written."""
        for path in (self.output, self.picture):
            storage.check_file(path)


@dataclass(frozen=True)
class BenchOptions(MeasureOptions):
    """Options common to the benchmarks of the input."""

    batch_size: int = option(100, "Images in a batch.", at_least=1)
    num_images: int = option(1000, "Images in the records: photos are repeated to reach this number.", at_least=1)
