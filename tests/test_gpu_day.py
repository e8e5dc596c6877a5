"""The first day on a GPU: every part runs here on a tiny scale, failures are reported, finished parts not repeated."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import Part
from resnet_tpu.errors import UserError


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> dict[str, Any]:
    """Runs the script and returns the parts that it recorded, with the message of any UserError as `error`."""
    monkeypatch.setattr(sys, "argv", ["gpu_day", str(folder), *options])
    error = ""
    try:
        gpu_day.program()
    except UserError as raised:
        error = str(raised)
    return json.loads((folder / "gpu_day.json").read_text())["figures"]["parts"] | {"error": error}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_reports_failed_parts_and_skips_finished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = python("print('{\"speed\": 1}')"), python("import sys; print('begun'); sys.exit('no luck')")
    begun: list[str] = []

    def parts(options: Any, done: dict[str, Any]) -> Iterator[Part]:
        begun.extend(done)
        yield Part("good", 60, [good], gpu_day.read_last)
        yield Part("bad", 60, [good, bad, good], gpu_day.read_last)
        yield Part("slow", 0.5, [python("import time; time.sleep(60)")], gpu_day.read_last)
        yield Part("silent", 60, [python("")], gpu_day.read_last)
        yield Part("last", 60, [good, good], gpu_day.read_last)

    monkeypatch.setattr(gpu_day, "parts", parts)
    found = start(monkeypatch, tmp_path)
    assert "got not done: bad, slow, silent, expected all parts" in found["error"]
    states = {name: part["state"] for name, part in found.items() if name != "error"}
    assert states == {
        "good": "done", "bad": "exit code 1", "slow": "out of time", "silent": "no figures", "last": "done",
    }  # fmt: skip
    assert found["good"]["figures"] == found["last"]["figures"] == {"speed": 1}
    assert found["bad"]["errors"] == ["no luck"] and len(found["bad"]["commands"]) == 3
    assert "begun" in (tmp_path / "bad.log").read_text()
    good[2] = "print('{\"speed\": 2}')"
    bad[2] = good[2]
    capsys.readouterr()
    again = start(monkeypatch, tmp_path, "--minutes=5")
    assert "good ..." not in capsys.readouterr().out
    assert begun == list(states)
    assert [again[name]["figures"]["speed"] for name in ("good", "bad", "last")] == [1, 2, 1]
    assert "expected quick=True" in start(monkeypatch, tmp_path, "--quick")["error"]


def test_part_that_exceeds_the_minutes_is_out_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("good", 60, [python("import time; time.sleep(60)")], gpu_day.read_last)
    monkeypatch.setattr(gpu_day, "parts", lambda options, done: iter([part]))
    assert start(monkeypatch, tmp_path, "--minutes=0")["good"]["state"] == "out of time"


def test_predictions_are_compared_by_class_and_by_probability() -> None:
    def said(*images: dict[str, float]) -> str:
        rows = [[{"class": name, "probability": value} for name, value in image.items()] for image in images]
        return json.dumps({"images": [{"predictions": row} for row in rows]})

    one, other = said({"a": 0.75, "b": 0.25}, {"a": 0.5, "b": 0.25}), said({"b": 0.5, "a": 0.5}, {"a": 0.5, "b": 0.25})
    assert gpu_day.difference(one, one) == {"same_class": 1, "largest_difference": 0}
    assert gpu_day.difference(one, other) == {"same_class": 0.5, "largest_difference": 0.25}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_parts_run_on_a_cpu_in_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    found = start(monkeypatch, tmp_path, "--quick", "--minutes=30")
    assert found.pop("error") == ""
    figures = {name: part["figures"] for name, part in found.items()}
    assert set(figures) == {
        "doctor", "check", "tune", "peers", "batch 4", "batch 8", "profile", "input", "checkpoint", "serve",
    }  # fmt: skip
    assert {"jax", "cpu devices"} <= {finding["name"] for finding in figures["doctor"]}
    largest = {form["precision"]: form["largest"] for form in figures["check"]["forms"] if not form["wrong"]}
    assert largest["float32"] <= 3 * figures["check"]["noise"] < largest["bfloat16"] < 1
    best = figures["tune"]["best"]
    assert best in [trial["setting"] for trial in figures["tune"]["trials"] if trial["milliseconds"]]
    for name, batch in (("peers", 8), ("batch 4", 4), ("batch 8", 8)):
        (case,) = figures[name]["cases"]
        assert case["case"] == f"20:32:{batch}:{best['kernels']}"
        assert case["runs"]["resnet-tpu"][0]["images_per_sec"] > 0
    steps = figures["profile"]["steps"]
    assert len(steps["operations"]) == gpu_day.TOP and 0 < sum(one["share"] for one in steps["operations"]) <= 1
    assert all(run[0]["images_per_sec"] > 0 for run in figures["input"]["runs"].values())
    moved = figures["checkpoint"]
    assert moved["steps"] == [4, 6] and len(moved["images_per_sec"]) == 1
    for way in ("written here, read on a CPU", "written on a CPU, read here"):
        assert moved[way]["same_class"] == 1 and moved[way]["largest_difference"] < 1e-5
    assert figures["serve"]["runs"]["HTTP"][0]["multipart_16_images_per_sec"] > 0
    assert {path.stem for path in tmp_path.glob("*.png")} == {
        "batch_4", "batch_8", "batches", "input", "operations", "peers", "serve",
    }  # fmt: skip
