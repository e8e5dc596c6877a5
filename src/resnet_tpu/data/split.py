"""How the photos of one class are split at random into training, validation and test."""

import os
import random
from collections.abc import Sequence
from typing import Literal

from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import numbers_in

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SPLIT_RATIOS = (0.8, 0.1, 0.1)
SPLIT_SEED = 1337


class NoSplitError(UserError):
    """Data without images in the split that is asked for."""


def split_files(
    names: Sequence[str], ratios: Sequence[float] = SPLIT_RATIOS, seed: int = SPLIT_SEED
) -> tuple[list[str], list[str], list[str]]:
    """The names of one class as (train, validation, test).

    Sorted by byte order, shuffled by `seed`, cut at int(ratio * n); the last split takes the rest. With two ratios
    there is no test split. The same names, ratios and seed always give the same lists: those of split-folders, which
    the original used.
    """
    shuffled = sorted(names, key=os.fsencode)
    random.Random(seed).shuffle(shuffled)
    train = int(ratios[0] * len(shuffled))
    validation = train + int(ratios[1] * len(shuffled)) if len(ratios) == 3 else len(shuffled)
    return shuffled[:train], shuffled[train:validation], shuffled[validation:]


def other_split_advice(split: Split) -> str:
    """Advice for data without images in `split`: what to do instead of adding some."""
    training = ", or train with --mode=train, which evaluates nothing" if split == "validation" else ""
    return f"choose another split{training}."


def parse_ratios(text: str) -> tuple[float, ...]:
    """Two or three ratios in text such as `0.8,0.1,0.1`. Raises UserError unless each is positive and they sum to 1."""
    ratios = numbers_in(text, float) or []
    if len(ratios) not in (2, 3) or not all(ratio > 0 for ratio in ratios) or round(sum(ratios), 5) != 1:
        expected = "train,validation or train,validation,test as positive numbers that sum to 1"
        raise UserError("split", repr(text), expected, "For example --split 0.8,0.1,0.1.")
    return tuple(ratios)
