"""The ceiling of the input: what is measured without a decoder, and what is estimated from it."""

import json
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from benchmarks import ceiling
from benchmarks.ceiling import Run, tabulate
from benchmarks.undecoded import undecoded
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.preprocess import train_image
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.options.config import DataConfig
from resnet_tpu.performance.bench.photos import draw_photos, find_jpegs, write_records

needs_library = pytest.mark.skipif(native.load() is None, reason="without the library in C there is no stub")


def test_estimates_images_per_sec_by_cores() -> None:
    medians = {
        Run("stubbed", "threads", 2): (20_000.0, 50.0, 50.0),
        Run("real", "threads", 2): (3_000.0, 640.0, 640.0),
        Run("real", "processes", 2): (3_000.0, 20.0, 640.0),
    }
    rows = tabulate(medians)
    assert [list(row[1:4]) for row in rows] == [
        ["20,000", "50.0", "50.0"], ["3,000", "640.0", "640.0"], ["3,000", "20.0", "640.0"],
    ]  # fmt: skip
    assert list(rows[0][4:]) == ["20,000"] * 3  # limited by Python's GIL
    assert list(rows[1][4:]) == ["20,000"] * 3  # the same
    assert list(rows[2][4:]) == ["25,000", "50,000", "50,000"]  # limited by the cores, then by the parent


@needs_library
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_all_is_done_but_to_decode(workers: Literal["threads", "processes"], tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos", 4, height=40, width=40)
    write_records(find_jpegs(str(tmp_path / "photos")), tmp_path / "records", 8)
    data = DataConfig(
        data_dir=str(tmp_path / "records"), image_size=32, num_label_classes=2, num_parallel_calls=1,
        input_workers=workers,
    )  # fmt: skip
    with train_batches(open_source(data, "train"), data, batch_size=8, seed=0, train_image=undecoded) as made:
        batch = next(made)
    assert not batch["image"].any()
    np.testing.assert_array_equal(batch["label"], 0)
    np.testing.assert_array_equal(batch["weight"], 1)


@needs_library
def test_skipped_decoding_draws_the_same_random_numbers(tmp_path: Path) -> None:
    draw_photos(tmp_path, 1, height=40, width=60)
    (photo,) = find_jpegs(str(tmp_path))
    out, (one, other) = np.zeros((32, 32, 3), np.uint8), (np.random.default_rng(5) for _ in range(2))
    undecoded(photo.read(), 32, one, out)
    assert not out.any()
    train_image(photo.read(), 32, other, out)
    assert out.any()
    assert one.bit_generator.state == other.bit_generator.state


@needs_library
@pytest.mark.long
def test_quick_option_measures_every_case_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "ceiling.json"
    monkeypatch.setattr(sys, "argv", ["ceiling", "--quick", "--image_size=32", f"--output={output}"])
    ceiling.main()
    header, _, *rows = capsys.readouterr().out.splitlines()[:8]
    assert header.endswith("| 16 cores | 112 cores | 224 cores |")
    titles = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert titles == [f"{d}, {w}: 1" for d in ("stubbed", "memcpy", "real") for w in ("threads", "processes")]
    runs = json.loads(output.read_text())["figures"]["runs"]
    assert all(
        0 < run["parent_us_per_image"] < 1e6 and run["images_per_sec"] > 0 for one in runs.values() for run in one
    )
