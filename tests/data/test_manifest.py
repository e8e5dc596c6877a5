"""A manifest and its class names: anything that `prepare` would not write gives one error that names the file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu.data.findings import FindingGroup
from resnet_tpu.data.manifest import Manifest, ShardEntry, SplitEntry, Spread, read_class_names, read_manifest
from resnet_tpu.errors import UserError

SPREAD = Spread.of([1, 2])
MANIFEST = Manifest(
    class_names=["a", "b"],
    splits={"train": SplitEntry(2, {"a": 1, "b": 1}, 1, {"train-00000-of-00001": ShardEntry(2, 100, "00")})},
    image_height=SPREAD, image_width=SPREAD, image_bytes=SPREAD, seed=0, options={"split": [0.8, 0.2]},
    findings=[FindingGroup("what", "action", 1, ["path"])], version="0.1.0",
)  # fmt: skip


def test_reads_what_it_wrote() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


@pytest.mark.parametrize(
    "change",
    [
        {"class_names": "ab"}, {"class_names": [1]}, {"splits": []}, {"splits": {"train": {}}}, {"image_height": 3},
        {"splits": {"train": dataclasses.asdict(MANIFEST.splits["train"]) | {"num_images": "2"}}}, {"more": 1},
        {"splits": {"train": dataclasses.asdict(MANIFEST.splits["train"]) | {"files": {"x": {"num_bytes": 1}}}}},
        {"findings": [3]}, {"seed": None},
    ],
    ids=range(10),
)  # fmt: skip
def test_a_manifest_of_another_kind(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(dataclasses.asdict(MANIFEST) | change))
    with pytest.raises(UserError, match=r"manifest\.json: got manifest.*, expected what `prepare` wrote"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize("content", [b'{"splits":' * 5_000, b"[" * 5_000, b"1" * 5_000, b"\xff"], ids=range(4))
def test_a_manifest_that_no_program_wrote(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=r"manifest\.json: got .*, expected what `prepare` wrote"):
        read_manifest(str(tmp_path))


def test_class_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"daisy\n\xff\n")
    with pytest.raises(UserError, match=r"Names: got .*labels\.txt, which is not text, expected UTF-8"):
        read_class_names(str(tmp_path))
