"""How photos become shards: the options of `prepare`."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from resnet_tpu.data.cleaning import Subsampling
from resnet_tpu.data.split import SPLIT_RATIOS, SPLIT_SEED, Split, parse_ratios
from resnet_tpu.options.fields import FilePath, convert_fields, option

_MOST_SHARDS = 99_999  # the number in their names has five digits
_NOT_DECIDING = ("max_bad_fraction", "workers", "overwrite", "bounding_boxes")  # of the last, only the content counts


@dataclass(frozen=True)
class PrepareOptions:
    """How photos become shards. Raises UserError for a value out of range."""

    split: str | None = option(
        None,
        "Fractions for train, validation and test (two numbers: no test) within each class, where the input does not "
        "assign splits or has photos for training only. Default: 0.8,0.1,0.1, and photos in train/ alone stay there.",
    )
    seed: int = option(
        SPLIT_SEED, "Determines which split an image goes to, and the order of training images.", at_least=0
    )
    train_shards: int | None = option(
        None,
        "Number of files with training records. Default: one per 100 MB, or one per 128 images up to 16 if that is "
        "more.",
        at_least=1,
        at_most=_MOST_SHARDS,
    )
    validation_shards: int | None = option(
        None, "Number of files with validation records. Default: as above.", at_least=1, at_most=_MOST_SHARDS
    )
    test_shards: int | None = option(
        None, "Number of files with test records. Default: as above.", at_least=1, at_most=_MOST_SHARDS
    )
    max_side: int | None = option(
        None, "Shrink photos whose longer side has more pixels than this. Default: never.", at_least=1
    )
    short_side: int | None = option(
        None, "Shrink photos whose shorter side has more pixels than this. Default: never.", at_least=1
    )
    quality: int | None = option(
        None,
        "JPEG quality, 1 to 100, of images that must be re-encoded. Default: 100 for CMYK images and formats other "
        "than JPEG, as in the original; 95 for photos that are turned upright, shrunk or recompressed.",
        at_least=1,
        at_most=100,
    )
    subsampling: Subsampling | None = option(
        None,
        "Colour resolution of images that must be re-encoded. 4:4:4: full. 4:2:2: half the columns. 4:2:0: half the "
        "columns and rows. Default: 4:2:0, and 4:4:4 below 128 pixels.",
    )
    recompress: bool = option(
        False, "Re-encode all photos, with quality and subsampling, where that makes the file smaller."
    )
    bounding_boxes: FilePath = option(
        "",
        "Bounding boxes to store with the images: a CSV file of FILE,xmin,ymin,xmax,ymax as fractions of the image, "
        "or a folder of ImageNet's XML files.",
    )
    max_bad_fraction: float = option(
        0.01,
        "Fraction of images that may be unreadable and left out; one is always allowed unless this is 0.",
        at_least=0,
        at_most=1,
    )
    workers: int | None = option(None, "Number of processes. Default: one per CPU core.", at_least=1)
    overwrite: bool = option(False, "Replace the shards of a finished run, or of one with other photos or options.")

    def __post_init__(self) -> None:
        convert_fields(self)
        self.ratios()

    def ratios(self) -> tuple[float, ...]:
        """The fractions for train, validation and, unless there are two, test."""
        return SPLIT_RATIOS if self.split is None else parse_ratios(self.split)

    def deciding(self) -> dict[str, Any]:
        """The options that decide what is in the shards."""
        values = dataclasses.asdict(self) | {"split": list(self.ratios())}
        # Options that are off are left out, as in folders prepared before such an option existed.
        return {name: value for name, value in values.items() if name not in _NOT_DECIDING and value is not False}

    def num_shards(self) -> dict[Split, int | None]:
        """Shards of each split; None: to be chosen."""
        return {"train": self.train_shards, "validation": self.validation_shards, "test": self.test_shards}

    def allowed_bad(self, num_images: int) -> int:
        """How many of `num_images` images may be left out."""
        return max(1, int(round(self.max_bad_fraction * num_images, 6))) if self.max_bad_fraction else 0
