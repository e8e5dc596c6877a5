"""`bench input` as typed, on records of generated photos: its table, record, picture and error messages."""

import csv
import dataclasses
import importlib.util
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg

from resnet_tpu import cli
from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.options.fields import options_of
from resnet_tpu.performance.bench import figures
from resnet_tpu.performance.bench.figures import Bar, Grid
from resnet_tpu.performance.bench.input import OURS, InputBenchOptions, bench_input
from resnet_tpu.performance.bench.peers import PEERS
from resnet_tpu.performance.bench.photos import draw_photos, find_jpegs, write_records
from resnet_tpu.performance.bench.task import Task, measure

HEADER = ["pipeline", "images/s", "times Grain, OpenCV", "range", "CPU ms/image", "kB/image"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five JPEGs."""
    folder = tmp_path_factory.mktemp("photos")
    draw_photos(folder, 5, height=60, width=80)
    return folder


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The rows of CSV that `bench input` prints."""
    assert cli.main(["bench", "input", *arguments, "--quick", "--format=csv", "--image_size=32"]) == 0
    return list(csv.reader(capsys.readouterr().out.splitlines()))


@pytest.mark.long
def test_ours_beside_grain(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, picture = tmp_path / "input.json", tmp_path / "input.png"
    files = [f"--output={output}", f"--picture={picture}"]
    rows = bench(capsys, str(photos), "--peers=grain", "--resize_method=bilinear", *files)
    assert rows[0] == HEADER
    assert [row[0] for row in rows[1:]] == [OURS, "Grain, OpenCV"]
    assert rows[2][2] == "1.00"
    assert picture.read_bytes().startswith(b"\x89PNG")
    record = json.loads(output.read_text())
    assert record["command"].startswith(f"resnet-tpu bench input {photos} --peers=grain")
    assert record["figures"]["task"]["resize_method"] == "bilinear"
    runs = record["figures"]["runs"]
    assert (
        {f"{run['bytes_per_image'] / 1000:.1f}" for name in runs for run in runs[name]} == {rows[1][5]} == {rows[2][5]}
    )
    assert all(run["images_per_sec"] > 0 and run["cpu_ms_per_image"] > 0 for name in runs for run in runs[name])


@pytest.mark.slow
def test_every_variant_and_every_peer_that_is_installed(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = bench(capsys, str(photos), "--variants")
    ours = [row[0] for row in rows[1:] if row[0].startswith(OURS)]
    assert len(ours) == 7
    kilobytes = {row[0].removeprefix(OURS): float(row[5]) for row in rows[1:]}
    assert kilobytes[", prepare --short_side=37"] < kilobytes[""] == kilobytes[", cache=decoded"]
    others = [row[0] for row in rows[1:] if not row[0].startswith(OURS)]
    assert "Grain, OpenCV" in others
    if importlib.util.find_spec("tensorflow"):
        assert others[:2] == ["tf.data, optimized", "tf.data, basic"]
        assert rows[0][2] == "times tf.data, optimized"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers=tensorflow"], "peers: got tensorflow, expected some of tf_optimized"),
        (["--peers=tf_optimised"], "Did you mean tf_optimized"),
        (["nowhere", "--peers=none"], "Photos to measure with: got nowhere, expected an existing folder."),
        ([".", "--peers=none"], "Photos to measure with: got no JPEG below ."),
        (["--rounds=0"], "rounds: got 0, expected at least 1."),
        (["--batch=3"], "Did you mean --batch_size"),
        (["a", "b"], "got also b, expected resnet-tpu bench input [DATA] [options]."),
    ],
)
def test_mistakes(arguments: list[str], message: str, refusal: Callable[..., str]) -> None:
    assert message in refusal("bench", "input", *arguments)


def test_bench_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "inptu"]) == 2
    assert "Did you mean input" in capsys.readouterr().err
    assert cli.main(["bench"]) == 0
    shown = capsys.readouterr().out
    assert "\n  input " in shown
    assert "\n  wait " in shown


def test_a_peer_that_is_missing_is_left_out_or_an_error(
    monkeypatch: pytest.MonkeyPatch, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(name: str) -> object:
        return None if name in {peer.module for peer in PEERS.values()} else object()

    monkeypatch.setattr("importlib.util.find_spec", find)
    assert cli.main(["bench", "input", "--peers=torch"]) == 2
    assert "PyTorch DataLoader, the peer of this benchmark: got no module 'torchvision'" in capsys.readouterr().err
    assert cli.main(["bench", "input", str(photos), "--quick", "--format=markdown", "--image_size=32"]) == 0
    shown = capsys.readouterr().out
    assert f"times {OURS} |" in shown
    assert "Left out: tf.data, optimized, not installed (pip install tensorflow)." in shown


def test_one_photo_is_no_folder_to_measure_with(photos: Path) -> None:
    with pytest.raises(UserError, match=r"^Photos to measure with: got .*, expected an existing folder"):
        find_jpegs(str(next(photos.rglob("*.jpg"))))


def test_records_hold_the_photos_in_turn_shrunk_as_prepare_does(photos: Path, tmp_path: Path) -> None:
    (photos / "train-station").mkdir(exist_ok=True)  # a class
    whole = [photo.read() for photo in find_jpegs(str(photos))]
    assert len(whole) == 5
    write_records(find_jpegs(str(photos)), tmp_path / "all", 13)
    found = [photo.read() for photo in find_jpegs(str(tmp_path / "all"))]
    assert sorted(found) == sorted(itertools.islice(itertools.cycle(whole), 13))
    write_records(find_jpegs(str(tmp_path / "all")), tmp_path / "short", 13, Limits(short_side=30))
    source = open_source(DataConfig(data_dir=str(tmp_path / "short")), "train")
    headers = [simplejpeg.decode_jpeg_header(bytes(source[i].encoded)) for i in range(len(source))]
    assert {header[:2] for header in headers} == {(30, 40)}


@pytest.mark.parametrize("content", [b"no image", None])
def test_a_damaged_photo_is_named(photos: Path, tmp_path: Path, content: bytes | None) -> None:
    half = next(photos.rglob("*.jpg")).read_bytes()[:300]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "z.JPG").write_bytes(content or half)
    with pytest.raises(UserError, match=r"^Photos to measure with: got .*z\.JPG, expected a whole image"):
        write_records(find_jpegs(str(tmp_path / "photos")), tmp_path / "records", 8, Limits())


def _task(records: Path, **changes: Any) -> Task:
    """Eight images in batches of four, by two threads or processes."""
    settings: dict[str, Any] = {
        "num_images": 8, "image_size": 32, "resize_method": "bilinear", "num_parallel_calls": 2, "batch_size": 4,
        "seconds": 1.0, "options": {},
    }  # fmt: skip
    return Task(records=str(records), **(settings | changes))


def test_measuring_leaves_the_first_epoch_out(tmp_path: Path) -> None:
    task = _task(tmp_path, num_images=10, seconds=0.0)
    batches = itertools.count()
    assert measure(batches, task)["images_per_sec"] > 0
    assert next(batches) == 10 // 4 + 2 + 1


@pytest.mark.parametrize(
    "peer",
    [
        "grain",
        pytest.param("spdl", marks=pytest.mark.peer("spdl-core")),
        pytest.param("dali", marks=pytest.mark.peer("nvidia-dali-cuda120")),
        pytest.param(  # its writer forks, of which JAX warns if other tests have initialised it
            "ffcv", marks=[pytest.mark.peer("ffcv"), pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")]
        ),
    ],
)
def test_peers_give_whole_batches_of_different_crops(peer: str, photos: Path, tmp_path: Path) -> None:
    write_records(find_jpegs(str(photos)), tmp_path / "records", 8)
    task = _task(tmp_path / "records")
    if write := PEERS[peer].write:
        task = dataclasses.replace(task, records=write(task))
    batches = PEERS[peer].open(task)
    first, second = np.asarray(next(batches)), np.asarray(next(batches))
    assert first.shape == second.shape == (4, 32, 32, 3)
    assert first.dtype == np.uint8
    assert (first != second).any()


def test_options_of_ours_reach_the_loader(tmp_path: Path) -> None:
    task = _task(tmp_path, options={"cache": "decoded"})
    wanted = {"data_dir": str(tmp_path), "image_size": 32, "resize_method": "bilinear", "num_parallel_calls": 2}
    assert task.data() == Config().replace(**wanted, cache="decoded").data


def test_no_option_has_two_meanings() -> None:
    assert not set(options_of(InputBenchOptions)) & set(Config().flat())


def test_a_grid_in_all_forms(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid("[t]", ("name", "a,b"), [("[x]", "1"), ("y", "2")], ["a note"])
    figures.show(grid, "markdown")
    assert capsys.readouterr().out == "| name | a,b |\n|---|---|\n| [x] | 1 |\n| y | 2 |\n\na note\n"
    figures.show(grid, "csv")
    assert capsys.readouterr().out == 'name,"a,b"\n[x],1\ny,2\n'
    figures.show(grid, "table")
    shown = capsys.readouterr().out
    assert [text for text in ("[t]", "[x]", "a,b", "a note") if text not in shown] == []


def test_bars_are_as_long_as_their_values(tmp_path: Path) -> None:
    path = tmp_path / "bars.png"
    figures.write_bars(str(path), "title", [Bar("ours", 4.0, "4", True), Bar("peer", 1.0, "1", False)], "images/s")
    pixels = cv2.imread(str(path))
    assert pixels is not None
    blue, grey = ((pixels == colour).all(-1).sum(1) for colour in ((0xC4, 0x62, 0x0B), (0x76, 0x6D, 0x65)))
    ours, peer = (np.median(row[row > 20]) for row in (blue, grey))  # the frame is grey too, but thin
    assert ours == pytest.approx(4 * peer, rel=0.02)


def test_a_photo_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    draw_photos(tmp_path, 1)
    (photo,) = tmp_path.rglob("*.jpg")
    photo.write_bytes(photo.read_bytes()[:50_000])
    with pytest.raises(UserError, match="Benchmark of resnet-tpu: got exit code 2"):
        bench_input(str(tmp_path), Config(), InputBenchOptions(num_images=32, peers="none"), ["resnet-tpu"])
