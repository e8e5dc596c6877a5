"""Made-up images, for measuring speed and for tests."""

import numpy as np

from resnet_tpu.data.sources.labels import DEFAULT_CLASSES
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.data.split import SPLITS, Split
from resnet_tpu.options.config import DataConfig

_IMAGENET_SIZES = {"train": 1_281_167, "validation": 50_000, "test": 50_000}


class _MadeUp:
    """As many images as `data` asks for in a split, else as many as ImageNet has."""

    class_names = None
    honour_exif = False

    def __init__(self, data: DataConfig, split: Split) -> None:
        self.num_classes = data.num_label_classes or DEFAULT_CLASSES
        self._len = data.num_images(split) or _IMAGENET_SIZES[split]
        self._shape = (data.image_size, data.image_size, 3)

    def __len__(self) -> int:
        return self._len


class ZeroSource(_MadeUp):
    """Black images with label 0: input that costs nothing, for measuring everything else."""

    def __init__(self, data: DataConfig, split: Split) -> None:
        super().__init__(data, split)
        self._sample = Sample(np.zeros(self._shape, np.uint8), 0, "null")

    def __getitem__(self, i: int) -> Sample:
        return self._sample

    def where(self, i: int) -> str:
        """A name for image `i`."""
        return f"zeros {i}"


class NoiseSource(_MadeUp):
    """Noise around a colour that belongs to the class: learnable without any data. Labels cycle through the classes."""

    def __init__(self, data: DataConfig, split: Split) -> None:
        super().__init__(data, split)
        self._split = SPLITS.index(split)

    def __getitem__(self, i: int) -> Sample:
        label = i % self.num_classes
        rng = np.random.Generator(np.random.Philox(key=[self._split, i]))
        noise = rng.integers(0, 128, self._shape, np.uint8)
        return Sample(noise + _color(label), label, self.where(i))

    def where(self, i: int) -> str:
        """A name for image `i`."""
        return f"noise {i}"


def _color(label: int) -> np.ndarray:
    """The colour of a class, uint8 [3] up to 127: the classes fill the colour cube evenly (Roberts' R3 sequence)."""
    steps = np.array([0.8191725134, 0.6710436067, 0.5497004779])
    return ((0.5 + label * steps) % 1 * 128).astype(np.uint8)
