"""Evaluation: every example counts once; it can follow a training."""

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from resnet_tpu import cli, resnet_main
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.options.config import Config
from resnet_tpu.options.run_file import read_run
from resnet_tpu.parallel import meshes
from resnet_tpu.reports.events import read_events
from resnet_tpu.reports.metrics import evaluation_at, read_metrics
from resnet_tpu.training.agreement import agree_on
from resnet_tpu.training.inference.evaluate import evaluate
from resnet_tpu.training.inference.evaluate_run import evaluate_run
from resnet_tpu.training.inference.trained import load_trained
from resnet_tpu.training.inference.waiting import Patience
from resnet_tpu.training.maths.step import make_eval_step
from resnet_tpu.training.steps_in_flight import StepsInFlight


@pytest.mark.parametrize("devices", [1, 8])
def test_37_images_count_37_whatever_the_batch(trained_dir: Path, devices: int) -> None:
    mesh = meshes.make_mesh(devices)
    trained = load_trained(str(trained_dir), mesh)
    # the network is unsure about noise, so the weight of every image shows in the result
    config = trained.config.replace(data_dir="synthetic", num_eval_images=37)
    source = open_source(config.data, "validation")
    seen: list[float] = []
    step = make_eval_step(trained.network, config.optimizer)

    def counting(*arguments: object) -> dict[str, jax.Array]:
        sums = step(*arguments)  # pyright: ignore[reportArgumentType]
        seen.append(float(sums["examples"]))
        return sums

    results = []
    for batch_size in (16, 37, 1000):
        seen.clear()
        results.append(
            evaluate(
                counting,
                trained.params,
                trained.batch_stats,
                source,
                config.replace(eval_batch_size=batch_size),
                mesh,
                step=trained.step,
            )
        )
        assert sum(seen) == 37
    for result in results[1:]:
        assert result["top_1_accuracy"] == results[0]["top_1_accuracy"]
        np.testing.assert_allclose(result["loss"], results[0]["loss"], rtol=1e-6)


def test_an_evaluation_is_no_further_ahead_of_the_device_than_a_training(
    trained_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = meshes.make_mesh(1)
    trained = load_trained(str(trained_dir), mesh)
    config = trained.config.replace(data_dir="synthetic", num_eval_images=37, eval_batch_size=4)
    source = open_source(config.data, "validation")
    unfinished, most = 0, []
    step, ended = make_eval_step(trained.network, config.optimizer), StepsInFlight.ended

    def counting_step(*arguments: object) -> dict[str, jax.Array]:
        nonlocal unfinished
        unfinished += 1
        most.append(unfinished)
        return step(*arguments)  # pyright: ignore[reportArgumentType]

    def counting_ended(flight: StepsInFlight, keep: int) -> Iterator[tuple[int, dict[str, object]]]:
        nonlocal unfinished
        for each in ended(flight, keep):
            unfinished -= 1
            yield each

    monkeypatch.setattr(StepsInFlight, "ended", counting_ended)
    monkeypatch.setattr("resnet_tpu.training.inference.one_pass.steps_ahead", lambda _: 3)
    evaluate(counting_step, trained.params, trained.batch_stats, source, config, mesh, step=trained.step)
    assert most == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]


def test_the_newest_checkpoint_is_evaluated_and_recorded(trained_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_dir, tmp_path, dirs_exist_ok=True)
    before = {row["step"]: row for row in read_metrics(str(tmp_path)) if row["split"] == "eval"}
    metrics = evaluate_run(Config().replace(model_dir=str(tmp_path), num_cores=1, eval_batch_size=5))
    last = max(before)
    assert metrics["top_1_accuracy"] == before[last]["top_1_accuracy"]
    np.testing.assert_allclose(metrics["loss"], before[last]["loss"], rtol=1e-5)
    tags = {(scalar.tag, scalar.step) for scalar in read_events(str(tmp_path / "eval"))}
    assert {("top_1_accuracy", last), ("top_5_accuracy", last), ("loss", last)} <= tags


@pytest.mark.parametrize("other", ["images", "fewer"])
def test_other_images_do_not_replace_the_result_of_the_training(
    other: str, trained_dir: Path, coloured_photos: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_dir, run)
    before = [row for row in read_metrics(str(run)) if row["split"] == "eval"]
    changes = {"num_eval_images": 5}
    if other == "images":
        shutil.copytree(coloured_photos, tmp_path / "other")
        changes = {"data_dir": str(tmp_path / "other")}
    own = read_run(str(run))
    assert own
    config = Config().replace(**{**own.values, "model_dir": str(run), **changes})
    evaluate_run(config)
    assert [row for row in read_metrics(str(run)) if row["split"] == "eval"] == before
    (run / "metrics.jsonl").unlink()  # as of a training in mode train
    evaluate_run(config)
    assert [row["step"] for row in read_metrics(str(run))] == [before[-1]["step"]]
    assert evaluation_at(str(run), before[-1]["step"]) == {}  # not what the run is compared by
    evaluate_run(Config().replace(**{**own.values, "model_dir": str(run)}))
    assert evaluation_at(str(run), before[-1]["step"]).keys() == {"loss", "top_1_accuracy", "top_5_accuracy"}


def test_a_run_given_by_its_folder_of_checkpoints_is_treated_as_the_run(trained_dir: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "run"
    shutil.copytree(trained_dir, model_dir)
    (model_dir / "metrics.jsonl").unlink()
    assert cli.main(["eval", f"{model_dir / folders.CHECKPOINTS}/", "--num_cores=1"]) == 0
    assert [row["split"] for row in read_metrics(str(model_dir))] == ["eval"]
    assert read_run(str(model_dir / folders.CHECKPOINTS)) == read_run(str(model_dir))
    assert cli.main(["predict", str(model_dir / folders.CHECKPOINTS), "--split=validation", "--num_cores=1"]) == 0
    assert (model_dir / "report" / "validation").is_dir()
    assert all(path.name.isdecimal() for path in (model_dir / folders.CHECKPOINTS).iterdir())


def test_a_checkpoint_named_itself_is_evaluated_and_left_as_it_was(
    trained_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = Path(reading.find(str(trained_dir)))
    alone = tmp_path / newest.name
    shutil.copytree(newest, alone)
    files = sorted(alone.rglob("*"))
    row = next(
        row for row in read_metrics(str(trained_dir)) if (row["split"], row["step"]) == ("eval", int(alone.name))
    )
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        for watch in (False, True):  # watching a single checkpoint has nothing to wait for
            metrics = evaluate_run(Config().replace(model_dir=str(alone), num_cores=1, eval_batch_size=5), watch=watch)
            assert metrics["top_1_accuracy"] == row["top_1_accuracy"]
    assert f"The result is not recorded: {alone} is a checkpoint" in caplog.text
    assert sorted(alone.rglob("*")) == files
    assert sorted(tmp_path.iterdir()) == [alone]


def test_of_a_run_that_may_not_be_written_to_the_checkpoint_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoints" / "7"
    checkpoint.mkdir(parents=True)
    (checkpoint / folders.METADATA_FILE).touch()
    monkeypatch.setattr("os.access", lambda *_, **__: False)  # whatever the permissions, root may write
    with pytest.raises(UserError, match=rf"permission denied, .* or evaluate the checkpoint itself, {checkpoint}: "):
        evaluate_run(Config().replace(model_dir=tmp_path))


def test_several_processes_leave_no_mark_in_a_checkpoint_named_itself(
    trained_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        "resnet_tpu.training.inference.evaluate_run.agree_on", lambda *_, writes, **__: asked.append(writes)
    )
    monkeypatch.setattr(
        "resnet_tpu.training.inference.evaluate_run.MetricsWriter", lambda _: contextlib.nullcontext(Mock())
    )
    for path in (reading.find(str(trained_dir)), str(trained_dir)):
        evaluate_run(Config().replace(model_dir=path, num_cores=1, eval_batch_size=5))
    assert asked == [False, True]


def test_watching_evaluates_what_appears_and_ends_with_the_last_step(
    trained_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = sorted((trained_dir / folders.CHECKPOINTS).iterdir(), key=lambda path: int(path.name))
    first, last = checkpoints[0], checkpoints[-1]
    (tmp_path / folders.CHECKPOINTS).mkdir()
    shutil.copytree(first, tmp_path / folders.CHECKPOINTS / first.name)

    def appear(*_: object) -> None:
        shutil.copytree(last, tmp_path / "aside")
        (tmp_path / "aside").rename(tmp_path / folders.CHECKPOINTS / last.name)

    monkeypatch.setattr(Patience, "wait", appear)
    evaluate_run(Config().replace(model_dir=str(tmp_path), num_cores=1, eval_batch_size=9), watch=True)
    assert [row["step"] for row in read_metrics(str(tmp_path))] == [int(first.name), int(last.name)]


@pytest.mark.long
def test_a_checkpoint_that_is_deleted_while_it_is_read_is_passed_over_for_the_newest(
    trained_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained_dir / folders.CHECKPOINTS, tmp_path / folders.CHECKPOINTS)
    first, *_, last = sorted((tmp_path / folders.CHECKPOINTS).iterdir(), key=lambda path: int(path.name))
    load = reading.load

    def load_late(path: str, shapes: Arrays) -> reading.Checkpoint:
        if path == str(last) and last.exists():  # as a training deletes it once it has a newer one
            last.rename(last.with_name(str(int(last.name) + 1)))
        return load(path, shapes)

    monkeypatch.setattr(reading, "load", load_late)
    assert load_trained(str(tmp_path), meshes.make_mesh(1)).step == int(last.name) + 1
    shutil.rmtree(first / "arrays")
    with pytest.raises(reading.DamagedCheckpointError):  # named explicitly: it exists, but stays damaged
        load_trained(str(first), meshes.make_mesh(1))
    (last.with_name("99999") / "meta").mkdir(parents=True)  # left by an interrupted copy
    with pytest.raises(reading.DamagedCheckpointError):
        load_trained(str(tmp_path), meshes.make_mesh(1))


def test_several_processes_may_see_a_training_add_a_checkpoint_meanwhile(
    trained_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_trained(str(trained_dir), meshes.make_mesh(1)).config
    source = open_source(config.data, "validation")
    agreed: list[set[str]] = []
    monkeypatch.setattr("resnet_tpu.training.agreement.hosts.process_group", lambda: True)
    monkeypatch.setattr("resnet_tpu.training.agreement.hosts.agree", lambda values, do: agreed.append({*values}))
    for trains in (False, True):
        agree_on(config.replace(model_dir=str(tmp_path)), {"validation": source}, trains=trains, writes=False)
    assert agreed[1] - agreed[0] == {"newest checkpoint"}


@pytest.mark.parametrize(
    ("there", "contents"), [(False, "no such folder"), (True, "a folder of a.txt, b, c, d, e, ...")]
)
def test_watch_fails_when_nothing_trains(
    there: bool, contents: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_dir = tmp_path / "mistyped"
    for name in ("a.txt", "b", "c", "d", "e", "f") if there else ():
        (model_dir / name).mkdir(parents=True)
    config = Config().replace(model_dir=str(model_dir), eval_timeout=1)
    with caplog.at_level(logging.INFO, logger="resnet_tpu"), pytest.raises(UserError) as error:
        evaluate_run(config, watch=True)
    assert f"Waiting for a checkpoint in {model_dir}, which is {contents}; at most 1 s." in caplog.text
    assert str(error.value) == (
        f"model_dir {model_dir}: got {contents}, expected a checkpoint within 1 s. "
        "Check the path, or start the training first."
    )
    assert model_dir.exists() == there


def watch_original(model_dir: Path, *words: str) -> int:
    return resnet_main.main(["--mode=eval", f"--model_dir={model_dir}", "--num_cores=1", *words])


def watch_ours(model_dir: Path, *words: str) -> int:
    return cli.main(["eval", str(model_dir), "--watch", "--num_cores=1", *words])


@pytest.mark.parametrize("watch", [watch_ours, pytest.param(watch_original, marks=pytest.mark.long)])
def test_watching_goes_up_to_train_steps(
    watch: Callable[..., int], trained_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_dir, tmp_path, dirs_exist_ok=True)
    last = reading.step_of(reading.find(str(tmp_path)))
    waiting = f"Waiting for a checkpoint after step {last}, up to step "
    for steps in (last - 1, last):
        assert watch(tmp_path, f"--train_steps={steps}") == 0
        assert waiting not in capsys.readouterr().err
    assert watch(tmp_path, "--eval_timeout=1", "--train_steps=20epochs") == 0  # 72 photos in batches of 16
    said = capsys.readouterr().err
    assert f"{waiting}{2 * last}; at most 1 s." in said
    assert "No new checkpoint within 1 s." in said


@pytest.mark.parametrize("watch", [watch_ours, watch_original])
def test_watching_from_before_the_beginning_evaluates_as_the_run_does(
    watch: Callable[..., int], trained_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = json.loads((trained_dir / "config.json").read_text())
    shutil.copytree(trained_dir / folders.CHECKPOINTS, tmp_path / "aside" / folders.CHECKPOINTS)
    (tmp_path / "aside" / "config.json").write_text(json.dumps(own | {"num_eval_images": 7}))
    model_dir = tmp_path / "run"
    awaited: list[str] = []

    def appear(_: Patience, what: Callable[[], str]) -> None:
        awaited.append(what())
        (tmp_path / "aside").rename(model_dir)

    monkeypatch.setattr(Patience, "wait", appear)
    assert watch(model_dir) == 0
    assert awaited == [f"a checkpoint in {model_dir}, which is no such folder"]
    rows = [row for row in read_metrics(str(model_dir)) if row["split"] == "eval"]
    assert rows and all(round(7 * row["top_1_accuracy"], 4).is_integer() for row in rows)


@pytest.mark.parametrize("name", ["train_steps", "eval_timeout"])
def test_options_of_watching_alone_are_refused(
    name: str, trained_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(trained_dir), f"--{name}=0"]) == 2
    assert f"{name}: got 0, expected it only with --watch." in capsys.readouterr().err


def test_data_of_other_classes_is_refused(trained_dir: Path, coloured_photos: Path, tmp_path: Path) -> None:
    shutil.copytree(coloured_photos, tmp_path / "other")
    (tmp_path / "other" / "red").rename(tmp_path / "other" / "rose")
    config = Config().replace(model_dir=str(trained_dir), data_dir=str(tmp_path / "other"), num_cores=1)
    with pytest.raises(UserError, match=r"Classes of .*other: got blue, green, rose, expected blue, green, red"):
        evaluate_run(config)


def test_a_run_without_checkpoint_is_named(tmp_path: Path, tiny: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match=r"Checkpoint: got .*, expected a model_dir or a checkpoint in it"):
        evaluate_run(tiny(tmp_path))
