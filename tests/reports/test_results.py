"""`results`: the table of metrics by step, for our runs and the original's."""

import csv
import io
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from resnet_tpu.errors import UserError
from resnet_tpu.reports.metrics import MetricsWriter
from resnet_tpu.reports.results import Result, best_results, results, results_csv, results_table


def _run(model_dir: Path, accuracies: dict[int, float]) -> str:
    with MetricsWriter(str(model_dir)) as writer:
        writer.write("train", {0: {"loss": 3.0}})
        writer.write("eval", {step: {"top_1_accuracy": value, "loss": 1 - value} for step, value in accuracies.items()})
    return str(model_dir)


def test_accuracy_of_the_original(golden: Callable[[str], Path]):
    expected = json.loads(golden("events/expected.json").read_text())
    for name in [name for name in expected if f"{name}/eval" in expected]:
        model_dir = str(golden(f"events/{name}"))
        for metric, points in expected[f"{name}/eval"]["tags"].items():
            assert results([model_dir], metric) == [Result(model_dir, step, value) for step, value in points]
        for metric, points in expected[name]["tags"].items():
            assert [list(row[1:]) for row in results([model_dir], metric, split="train")] == points


def test_rows_are_by_run_and_step_and_the_last_value_counts(tmp_path: Path):
    first = _run(tmp_path / "b", {20: 0.5, 10: 0.25})
    _run(tmp_path / "b", {20: 0.75})
    second = _run(tmp_path / "a", {5: 0.125})
    expected = [Result(first, 10, 0.25), Result(first, 20, 0.75), Result(second, 5, 0.125)]
    assert results([first, second]) == expected
    assert results([first, second], "loss") == [row._replace(value=1 - row.value) for row in expected]
    assert results([first], "loss", split="train") == [Result(first, 0, 3.0)]


def test_evaluations_of_other_images_are_left_out_unless_there_are_no_others(tmp_path: Path):
    model_dir = str(tmp_path)
    with MetricsWriter(model_dir) as writer:
        writer.write("eval", {4: {"top_1_accuracy": 0.5, "loss": 0.5}}, of_other_images=True)
    assert results([model_dir]) == [Result(model_dir, 4, 0.5)]
    _run(tmp_path, {8: 0.25})
    assert results([model_dir]) == [Result(model_dir, 8, 0.25)]


@pytest.mark.parametrize("name", ["run", "eval", "checkpoints"])
def test_folders_in_the_run_and_a_single_file_stand_for_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model_dir = _run(tmp_path / name, {5: 0.125})
    eval_dir, checkpoints = f"{model_dir}/eval", f"{model_dir}/checkpoints"
    (file,) = Path(eval_dir).iterdir()
    Path(checkpoints).mkdir()
    Path(model_dir, "config.json").touch()
    for path in (model_dir, eval_dir, eval_dir + "/", checkpoints, str(file)):
        assert [row[1:] for row in results([path])] == [(5, 0.125)]
    monkeypatch.chdir(eval_dir)
    for path in (model_dir, eval_dir, eval_dir + "/", "."):
        assert [row[1:] for row in results([path], "loss")] == [(5, 0.875)]
        assert [row[1:] for row in results([path], "loss", split="train")] == [(0, 3.0)]


def test_what_is_missing_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"missing, expected an existing folder"):
        results([str(tmp_path / "missing")])
    with pytest.raises(UserError, match=r"no event files with values in .*eval.*Evaluate the run"):
        results([str(tmp_path)])
    (tmp_path / "my run").mkdir()
    with pytest.raises(UserError, match=f"Evaluate the run first: resnet-tpu eval '{tmp_path}/my run'$"):
        results([str(tmp_path / "my run")])
    (tmp_path / "my run" / "phases.csv").touch()
    with pytest.raises(UserError, match=r"Its results are in results\.csv and phases\.csv there"):
        results([str(tmp_path / "my run")])
    model_dir = _run(tmp_path, {5: 0.125})
    with pytest.raises(UserError, match=r"expected one of loss, top_1_accuracy\. .*Did you mean top_1_accuracy\?"):
        results([model_dir], "top_1_acuracy")


def test_best_is_highest_accuracy_or_lowest_loss_and_the_earliest_of_equals():
    rows = [Result("a", 1, 0.5), Result("a", 2, 0.75), Result("a", 3, 0.75), Result("b", 1, math.nan)]
    assert best_results(rows, "top_1_accuracy") == {"a": rows[1]}
    assert best_results(rows, "loss") == {"a": rows[0]}
    assert best_results(rows, "input_wait_share") == best_results(rows, "error") == {"a": rows[0]}
    assert best_results(rows, "learning_rate") == {}


def test_csv_keeps_names_and_numbers():
    rows = [Result('a, "b"', 10, 0.32066911458969116), Result("c", 20, 1 / 3)]
    header, *lines = csv.reader(io.StringIO(results_csv(rows, "loss")))
    assert header == ["model_dir", "step", "loss"]
    assert [Result(name, int(step), float(value)) for name, step, value in lines] == rows


def test_table_shows_every_row_and_marks_the_best():
    rows = [Result("runs/[red]a", 1251, 0.25), Result("runs/[red]a", 2502, 0.5), Result("b", 1, 0.125)]
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(results_table(rows, "top_1_accuracy"))
    text = console.export_text()
    assert text.count("runs/[red]a") == 1
    for row in rows:
        (line,) = (line for line in text.splitlines() if f" {row.step} " in line)
        assert f" {row.value} " in line
        assert ("best" in line) == (row.step != 1251)


def test_table_shows_names_as_they_are():
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(results_table([Result("a\x1b[31mb", 1, 0.5)], "acc[/val]"))
    text = console.export_text()
    assert text.count("acc[/val]") == 2
    assert r"a\x1b[31mb" in text


def test_evaluations_whose_loss_is_no_number_are_no_results(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model_dir = str(tmp_path / "run")
    with MetricsWriter(model_dir) as writer:
        rows = {10: (0.25, 1.5), 20: (0.75, math.nan)}
        writer.write("eval", {step: {"top_1_accuracy": top_1, "loss": loss} for step, (top_1, loss) in rows.items()})
    with caplog.at_level(logging.WARNING):
        assert results([model_dir]) == [Result(model_dir, 10, 0.25)]
    assert "as the loss is not finite there: step 20" in caplog.text
    with MetricsWriter(model_dir) as writer:
        writer.write("eval", {10: {"top_1_accuracy": 0.25, "loss": math.inf}})
        writer.write("train", {15: {"loss": math.nan, "learning_rate": 0.5}})
    assert results([model_dir], "learning_rate", split="train") == [Result(model_dir, 15, 0.5)]
    with pytest.raises(UserError, match="got no evaluation whose loss is finite"):
        results([model_dir])
