"""`bench wait`: a training with a stand-in device that only waits, with both pipelines."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from resnet_tpu import cli
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config
from resnet_tpu.performance.bench.photos import draw_photos, find_jpegs, write_records
from resnet_tpu.performance.bench.wait import PIPELINES, make_device
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.loop import train
from resnet_tpu.training.maths.state import TrainState


def test_the_stand_in_counts_steps_and_gives_numbers() -> None:
    step = make_device(1.0)
    state = TrainState(jnp.zeros((), jnp.int32), {"kernel": jnp.ones(3)}, {}, ())
    batch = {"label": jnp.zeros(4, jnp.int32)}
    for number in range(1, 4):
        state, metrics = step(state, batch)
        assert int(state.step) == number
        jax.block_until_ready(metrics)
        assert jax.device_get(metrics) == {"loss": 0, "learning_rate": 0, "top_1_accuracy": 0}
    assert (state.params["kernel"] == 1).all()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_is_asked_of_the_cache_fits_both_pipelines(pipeline: str) -> None:
    asked = Config().replace(cache="decoded", cache_memory=2, cache_short_side=64)
    check_options(asked.replace(**PIPELINES[pipeline]))


@pytest.mark.long
@pytest.mark.parametrize("pipeline", ["basic", "optimized"])
def test_a_training_with_the_stand_in_device_works_as_usual(pipeline: str, tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos", 4, height=40, width=40)
    write_records(find_jpegs(str(tmp_path / "photos")), tmp_path / "records", 16)
    config = Config().replace(
        data_dir=str(tmp_path / "records"), model_dir=str(tmp_path / "model"), mode="train", num_label_classes=2,
        resnet_depth=18, resnet_width=4, image_size=32, precision="float32", train_batch_size=8, train_steps=9,
        iterations_per_loop=3, **PIPELINES[pipeline],
    )  # fmt: skip
    assert train(config, train_step=make_device(2.0)).step == 9
    rows = read_metrics(str(tmp_path / "model"))
    assert [row["step"] for row in rows] == list(range(9))
    assert [row["step"] for row in rows if "input_wait_share" in row] == [2, 5, 8]


@pytest.mark.slow
def test_both_pipelines_as_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, picture = tmp_path / "wait.json", tmp_path / "wait.png"
    arguments = ["--quick", "--image_size=32", "--format=csv", f"--output={output}", f"--picture={picture}"]
    assert cli.main(["bench", "wait", *arguments]) == 0
    rows = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["input_pipeline", "basic", "optimized"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(output.read_text())["figures"]
    assert figures["device_ms"] > 0
    assert {name: len(runs) for name, runs in figures["runs"].items()} == {"basic": 1, "optimized": 1}


def test_pipelines_differ_in_options_that_there_are() -> None:
    fields = {field.name for field in dataclasses.fields(Config().data)}
    for options in PIPELINES.values():
        assert options.keys() <= fields
