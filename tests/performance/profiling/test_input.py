"""`profile input` on real records, from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu import cli
from resnet_tpu.reports.metrics import MetricsWriter

SMALL = (
    "--image_size=32", "--num_label_classes=4", "--resnet_depth=8", "--resnet_width=4", "--train_batch_size=8",
    "--num_cores=1", "--precision=float32", "--num_images=12", "--seconds=0.2",
)  # fmt: skip


def profile(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `profile input` prints as JSON."""
    assert cli.main(["profile", "input", *SMALL, *arguments, "--format=json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_all_stages_of_records_are_there_and_add_up(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = profile(capsys, f"--data_dir={records}", "--augment_name=randaugment", "--num_parallel_calls=2")
    figures = found["figures"]
    names = [stage["name"] for stage in figures["stages"]]
    assert names == [
        "order and random numbers", "read", "parse", "crop decision", "decode", "resize", "augment: randaugment",
        "workers and batch", "hand-over to device",
    ]  # fmt: skip
    assert all(stage["cpu_us"] >= 0 for stage in figures["stages"])
    assert all(0 <= figures[name] <= 1 for name in ("busy_share", "others_share", "storage_share"))
    assert min(figures["speed"], figures["decoder_speed"], figures["needed_speed"]) > 0
    assert (figures["workers"], found["needed_by"]) == (2, "measured here")
    photos = figures["photos"]
    assert (photos["num_images"], photos["short_side"], photos["needed_side"]) == (24, 300, 37)
    assert photos["excess"] == pytest.approx(1 - (37 / 300) ** 2)
    assert photos["decoded_bytes"] == pytest.approx(24 * 3 * 37**2 * 4 / 3)


def test_tables_and_advice(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (f"--data_dir={records}", "--images_per_sec=1e9", "--num_parallel_calls=1")
    assert cli.main(["profile", "input", *SMALL, *options]) == 0
    shown = capsys.readouterr().out
    for text in (
        "images/s",
        "decode",
        "the step takes (as given)",
        "1,000,000,000",
        "The input is the limit",
        "--cache=decoded",
    ):
        assert text in shown


def test_what_an_earlier_run_took_stands_in_for_the_step(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MetricsWriter(str(tmp_path)) as writer:
        writer.write("train", {9: {"images_per_sec": 300.0, "input_wait_share": 0.25}, 10: {"loss": 1.0}})
    found = profile(capsys, f"--data_dir={records}", f"--model_dir={tmp_path}", "--nostep")
    assert found["figures"]["needed_speed"] == found["speed_of_run"] == pytest.approx(400)
    assert found["needed_by"] == f"of the run in {tmp_path}, on all its hosts"
    assert profile(capsys, f"--data_dir={records}", "--nostep")["figures"]["needed_speed"] is None


@pytest.mark.parametrize("options", [("--input_pipeline=basic",), ("--cache=decoded",)])
def test_profiles_the_pipeline_as_configured(
    records: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    found = profile(capsys, f"--data_dir={records}", "--images_per_sec=1e9", *options)
    assert found["figures"]["speed"] > 0
    advised = {one["option"] for one in found["advice"]}
    assert advised.isdisjoint(options)
    assert ("--input_pipeline=optimized" in advised) == (options == ("--input_pipeline=basic",))


def test_made_up_images_have_no_stages_of_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    found = profile(capsys, "--data_dir=synthetic", "--num_train_images=50", "--nostep")
    assert found["figures"]["decoder_speed"] is None
    assert "decode" not in [stage["name"] for stage in found["figures"]["stages"]]


def test_mistakes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["profile", "inptu"], "Did you mean input?"),
        (["profile", "input"], "data_dir: got nothing"),
        (["profile", "input", "--data_dir=null", "--images_per_sec=0"], "at least 1"),
        (["profile", "train", "--data_dir=null"], "model_dir: got nothing"),
        (["profile", "train", "--data_dir=null", f"--model_dir={__file__}"], "got a file, expected a folder"),
    ):
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err
