"""Shards written by Apache Beam equal those of a local run; parts that do not need Beam are tested without it."""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from resnet_tpu.cli.prepare import prepare as prepare_verb
from resnet_tpu.data.boxes import Box
from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.folders import find_photos
from resnet_tpu.data.photos import Photo
from resnet_tpu.data.prepare.assignment import assign
from resnet_tpu.data.prepare.beam import Span, describe_shards, described_shard, make_pipeline, parse_options
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.prepare.reservation import reserve
from resnet_tpu.data.prepare.shards import Shard, write_shard
from resnet_tpu.errors import UserError
from resnet_tpu.system.processes import CONTEXT

DATAFLOW = ("--runner=DataflowRunner", "--project=flowers", "--region=us-west4", "--temp_location=gs://bucket/temp")


@pytest.fixture
def odd_folders(class_folders: Path, draw) -> Path:
    """Class folders with a photo that is skipped, one that is shrunk and one that is repaired."""
    (class_folders / "cat" / "bad.jpg").write_bytes(b"")
    draw(class_folders / "dog" / "x.png", 7, size=(200, 300))
    draw(class_folders / "emu" / "cmyk.jpg", 8, mode="CMYK")
    return class_folders


def write(place: Span, out: str, limits: Limits) -> None:
    """One unit of work, to be run in a separate process."""
    write_shard(described_shard(place), out, limits, lambda: None)


def test_units_of_work_in_any_order_and_process_give_the_local_output(
    odd_folders: Path, tmp_path: Path, run, contents
) -> None:
    run(odd_folders, tmp_path / "local", train_shards=5, max_side=100)
    out = str(tmp_path / "out")
    options = PrepareOptions(train_shards=5, max_side=100)
    assignment = assign(find_photos(str(odd_folders)), (0.8, 0.1, 0.1), options.seed, options.num_shards())
    reserve(out, assignment, options.deciding(), overwrite=False)
    places = describe_shards(assignment.shards, str(tmp_path / "shards"))
    assert [described_shard(places[shard.name]) for shard in assignment.shards] == assignment.shards
    with ProcessPoolExecutor(2, CONTEXT) as pool:
        done = [pool.submit(write, places[shard.name], out, Limits(100)) for shard in reversed(assignment.shards)]
        assert [one.result() for one in done] == [None] * len(done)
    run(odd_folders, out, train_shards=5, max_side=100)
    assert contents(Path(out)) == contents(tmp_path / "local")


def test_a_described_shard_is_the_shard(tmp_path: Path) -> None:
    boxes = (Box(0.1, 1 / 3, 0.5, 1.0), Box(0.0, 0.0, 1.0, 1.0))
    names = ["plain", "ümläut \u2028", 'quote"', os.fsdecode(b"\xff\xfe not UTF-8"), "new\nline"]
    photos = [Photo(f"raw/{name}.jpg", f"{name}.jpg", name, None, boxes[:k]) for k, name in enumerate(names)]
    shards = [Shard(f"train-0000{k}-of-00005", "train", photos[:k], [*range(1, k + 1)], 10**12) for k in range(5)]
    places = describe_shards(shards, str(tmp_path / "shards"))
    assert [described_shard(places[shard.name]) for shard in shards] == shards
    assert [json.loads(line)[0] for line in (tmp_path / "shards").read_text().splitlines()] == [*places]


def test_without_beam_nothing_is_touched(class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"no package 'apache_beam'.*pip install 'resnet-tpu\[beam\]'"):
        prepare_verb.run(prepare_verb.command.parse([str(class_folders), str(tmp_path / "out"), "--beam"]))
    assert not (tmp_path / "out").exists()


def test_photos_are_looked_at_before_beam(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Photos: got .*nowhere"):
        prepare(str(tmp_path / "nowhere"), str(tmp_path / "out"), beam=["--runner=Unheard"])


def test_options_of_beam_without_beam_are_refused() -> None:
    with pytest.raises(UserError, match=r"got --runner=DirectRunner, expected nothing after -- without --beam"):
        prepare_verb.run(prepare_verb.command.parse(["raw", "out", "--", "--runner=DirectRunner"]))


# The rest needs Beam itself, which requires older packages than those pinned for the tests: `make test-peers`.


@pytest.mark.peer("apache-beam")
@pytest.mark.parametrize("workers", [1, 4])
def test_beam_gives_the_local_output(odd_folders: Path, tmp_path: Path, run, contents, workers: int) -> None:
    options = {"train_shards": 5, "max_side": 100}
    manifest = run(odd_folders, tmp_path / "local", **options)
    words = [f"--{name}={value}" for name, value in {**options, "workers": workers}.items()]
    command = ["prepare", str(odd_folders), str(tmp_path / "beam"), *words, "--beam", "--", "--runner=DirectRunner"]
    done = subprocess.run([sys.executable, "-m", "resnet_tpu", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    assert [found.what for found in manifest.findings if found.what in done.stdout] == [
        found.what for found in manifest.findings
    ]
    assert sorted(path.name for path in (tmp_path / "beam" / "_prepare").iterdir()) == sorted(
        path.name for path in (tmp_path / "local" / "_prepare").iterdir()
    )


@pytest.mark.peer("apache-beam")
def test_an_interrupted_pipeline_is_continued(odd_folders: Path, tmp_path: Path, run, contents) -> None:
    out, options = tmp_path / "out", PrepareOptions(train_shards=5, workers=1)
    run(odd_folders, out, train_shards=5)
    before = contents(out)
    lost = [out / "train-00001-of-00005", out / "_prepare" / "validation-00000-of-00001.json", out / "manifest.json"]
    for path in lost:
        path.unlink()
    times = {path: path.stat().st_mtime_ns for path in out.glob("*-of-*")}
    prepare(str(odd_folders), str(out), options, beam=[], console=Console(quiet=True))
    assert contents(out) == before
    changed = {path.name for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert changed == {"validation-00000-of-00001"}


@pytest.mark.peer("apache-beam")
def test_what_a_worker_cannot_write_is_named(class_folders: Path, tmp_path: Path, run, contents) -> None:
    out = tmp_path / "out"
    code = (
        "import resource, sys\nfrom resnet_tpu.data.prepare.options import PrepareOptions\n"
        "from resnet_tpu.data.prepare.prepare import prepare\n"
        "from resnet_tpu.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))\n"
        "try: prepare(*sys.argv[1:], PrepareOptions(workers=1, train_shards=4), beam=[])\n"
        "except UserError as error: sys.exit(str(error))\n"
    )
    command = [sys.executable, "-c", code, str(class_folders), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "got File too large, expected a folder with free space that can be written to. Free space" in done.stderr
    assert "while running" not in done.stderr.splitlines()[-1]
    prepare(
        str(class_folders), str(out), PrepareOptions(workers=1, train_shards=4), beam=[], console=Console(quiet=True)
    )
    run(class_folders, tmp_path / "fresh", train_shards=4)
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.peer("apache-beam")
@pytest.mark.parametrize(
    ("arguments", "raw", "workers", "message"),
    [
        (["--runner=Unheard"], "raw", None, "Unexpected pipeline runner: Unheard. Valid values are"),
        (["--direct_running_mode=fast"], "raw", None, "argument --direct_running_mode: invalid choice: 'fast'"),
        (
            ["--direct_runing_mode=in_memory"],
            "raw",
            None,
            "got --direct_runing_mode, expected an option of Apache Beam",
        ),
        (DATAFLOW, "raw", None, "Path raw: got a path on this machine, expected one in a bucket"),
        (DATAFLOW, "gs://bucket/raw", 4, "--workers: got 4, expected nothing, as another runner does the work"),
    ],
)
def test_refuses_arguments_that_beam_or_a_runner_cannot_use(
    arguments: list[str], raw: str, workers: int | None, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        make_pipeline(arguments, raw, "out", workers=workers, most_workers=1)
    assert message in str(caught.value)


@pytest.mark.peer("apache-beam")
def test_options_reach_beam_and_dataflow() -> None:
    options = pytest.importorskip("apache_beam.options.pipeline_options")
    found = parse_options([*DATAFLOW, "--max_num_workers=50", "--sdk_container_image=image", "--experiments=fast"])
    cloud = found.view_as(options.GoogleCloudOptions)
    assert (cloud.project, cloud.region, cloud.temp_location) == ("flowers", "us-west4", "gs://bucket/temp")
    workers = found.view_as(options.WorkerOptions)
    assert (workers.max_num_workers, workers.sdk_container_image) == (50, "image")
    assert found.view_as(options.StandardOptions).runner == "DataflowRunner"
    assert found.view_as(options.DebugOptions).experiments == ["fast"]


@pytest.mark.peer("apache-beam")
def test_options_in_the_docs_are_known() -> None:
    page = (Path(__file__).parents[3] / "docs" / "beam.md").read_text()
    commands = re.findall(r"^resnet-tpu .* --beam -- (.*)$", page.replace("\\\n", " "), re.MULTILINE)
    assert commands
    for command in commands:
        options = parse_options(shlex.split(command))
        assert options.get_all_options(retain_unknown_options=True) == options.get_all_options()


@pytest.mark.peer("apache-beam")
@pytest.mark.parametrize(
    ("arguments", "workers", "expected"),
    [
        ([], None, (3, "multi_processing")),
        ([], 1, (1, "in_memory")),
        (["--runner=DirectRunner"], 4, (4, "multi_processing")),
        (["--direct_num_workers=2", "--direct_running_mode=multi_threading"], 4, (2, "multi_threading")),
    ],
)
def test_processes_here(arguments: list[str], workers: int | None, expected: tuple[int, str]) -> None:
    options = pytest.importorskip("apache_beam.options.pipeline_options")
    pipeline = make_pipeline(arguments, "raw", "out", workers=workers, most_workers=3)
    direct = pipeline.options.view_as(options.DirectOptions)
    assert (direct.direct_num_workers, direct.direct_running_mode) == expected
