"""The host that feeds the devices of one machine with images."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """How fast one machine of a slice supplies images to its devices."""

    images_per_sec: float
    """Images that all its workers together decode per second."""
    mb_per_sec: float | None = None
    """Megabytes that it reads per second; None for files in memory, or on a disk that is fast enough."""
    image_kb: float = 110.0
    """Mean size of a file; the default is that of ImageNet's files."""

    @property
    def images_read_per_sec(self) -> float:
        """Images whose files it reads per second."""
        return 1000 * self.mb_per_sec / self.image_kb if self.mb_per_sec else math.inf

    @property
    def most_images_per_sec(self) -> float:
        """Images that it supplies per second in the long run."""
        return min(self.images_per_sec, self.images_read_per_sec)

    @property
    def limit(self) -> str:
        """What limits it: 'reading' or 'decoding'."""
        return "reading" if self.images_read_per_sec < self.images_per_sec else "decoding"
