"""Whole experiments on small networks: what each level starts from, and that no work is repeated or lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.pruning import outcome
from resnet_tpu.pruning.experiment import _check_alike, _rewind_step, prune_run
from resnet_tpu.pruning.levels import plan_levels
from resnet_tpu.pruning.options import Experiment
from resnet_tpu.pruning.outcome import read_outcomes
from resnet_tpu.pruning.phase import Phase, Unpruned, config_at
from resnet_tpu.pruning.report import report_experiment
from resnet_tpu.pruning.retrain import RETRAININGS
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.reports.run_curves import curves_path, draw_curves
from resnet_tpu.training import loop
from resnet_tpu.training.loop import train
from tests.comparisons import all_arrays_of

pytestmark = pytest.mark.usefixtures("blank_curves")

LAST, EARLY = 6, 2
MASKED = ("params", "momentum")
LEVEL = "out/seed_0/weight_rewinding/level_01"


def experiment(**changes: Any) -> Experiment:
    options: dict[str, Any] = {
        "method": "prune_all_to_global", "density": "", "levels": 2, "rate": None, "retrain": "weight_rewinding",
        "rewind_to": EARLY, "retrain_epochs": None, "seeds": "", "rewind_optimizer": "restore",
    }  # fmt: skip
    return Experiment(**(options | changes))


@pytest.fixture(scope="module")
def config() -> Callable[..., Config]:
    def config(model_dir: Path, **changes: Any) -> Config:
        options: dict[str, Any] = {
            "data_dir": "synthetic", "model_dir": str(model_dir), "image_size": 16, "num_label_classes": 4,
            "num_train_images": 40, "num_eval_images": 20, "resnet_depth": 8, "resnet_width": 4,
            "precision": "float32", "train_batch_size": 16, "eval_batch_size": 20, "train_steps": LAST,
            "steps_per_eval": 3, "iterations_per_loop": 3, "save_checkpoints_steps": 1, "keep_checkpoint_max": 100,
            "num_cores": 1, "base_learning_rate": 0.8, "lottery_checkpoint_iters": f"{EARLY}",
        }  # fmt: skip
        return Config().replace(**(options | changes))

    return config


@pytest.fixture(scope="module")
def dense(config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpruned training with a checkpoint of every step."""
    model_dir = tmp_path_factory.mktemp("dense")
    train(config(model_dir))
    return model_dir


@pytest.fixture(scope="module")
def pruned(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: in `run` a copy of the unpruned training, with a list of photos; in `out` one level of it, pruned."""
    folder = tmp_path_factory.mktemp("pruned")
    shutil.copytree(dense, folder / "run")
    (folder / "run" / "training_photos.json").write_text('{"/photos": ["a/1.jpg"]}\n')
    outcomes = prune_run(folder / "run", folder / "out", experiment(levels=1))
    assert [outcome.model_dir for outcome in outcomes] == [str(folder / "run"), str(folder / LEVEL)]
    return folder


def test_a_checkpoint_is_no_training_to_prune(dense: Path, tmp_path: Path) -> None:
    for place in (dense / folders.CHECKPOINTS, dense / folders.CHECKPOINTS / f"{LAST}"):
        with pytest.raises(UserError, match=r"^model_dir: got .* checkpoints?, expected the folder of a run"):
            prune_run(place, tmp_path / "out", experiment())
    assert not (tmp_path / "out").exists()


def masks_in(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("masks/"): mask for name, mask in found.items() if name.startswith("masks/")}


def assert_starts_from(start: dict[str, np.ndarray], origin: dict[str, np.ndarray]) -> None:
    """Checks for the arrays of `origin` bit for bit, with weights and momentum multiplied by the masks."""
    masks = masks_in(start)
    assert masks
    for name, array in origin.items():
        collection, _, leaf = name.partition("/")
        if name == "step" or collection == "masks":
            continue
        mask = masks.get(leaf) if collection in MASKED else None
        np.testing.assert_array_equal(start[name], array if mask is None else array * mask, name)


@pytest.mark.long
def test_weight_rewinding_level_by_level(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dense.parent)  # Orbax by itself would not find a checkpoint by a relative path
    outcomes = prune_run(dense.name, str(tmp_path), experiment())
    assert [outcome.level for outcome in outcomes] == ["none", "level_01", "level_02"]
    assert [round(outcome.density, 3) for outcome in outcomes] == pytest.approx([1, 0.8, 0.64], abs=2e-3)
    first, second = (Path(outcome.model_dir) for outcome in outcomes[1:])
    origin = all_arrays_of(dense, EARLY)
    for folder in (first, second):
        start = all_arrays_of(folder, EARLY)
        assert start["step"] == EARLY
        assert_starts_from(start, origin)
        end = all_arrays_of(folder, LAST)
        assert end["step"] == LAST
        for name, mask in masks_in(start).items():
            np.testing.assert_array_equal(end[f"masks/{name}"], mask)
            assert not end[f"params/{name}"][~mask].any()
            assert not end[f"momentum/{name}"][~mask].any()
            assert np.any(end[f"params/{name}"] != start[f"params/{name}"])
    # the second level prunes what the first has trained, and brings back no weight that was pruned
    trained, before, after = (
        all_arrays_of(first, LAST),
        masks_in(all_arrays_of(first, LAST)),
        masks_in(all_arrays_of(second, EARLY)),
    )
    kept = np.concatenate([np.abs(trained[f"params/{name}"][mask]) for name, mask in after.items()])
    gone = np.concatenate([np.abs(trained[f"params/{name}"][~mask & before[name]]) for name, mask in after.items()])
    assert gone.max() < kept.min()
    assert not any((mask & ~before[name]).any() for name, mask in after.items())


@pytest.mark.parametrize("retrain", RETRAININGS)
def test_the_rate_that_a_training_was_forced_to_is_that_of_its_re_training(
    retrain: str, config: Callable[..., Config], dense: Path
) -> None:
    forced = Unpruned(str(dense), config(dense, lottery_force_learning_rate=0.05), LAST, EARLY)
    phase = Phase(str(dense / "phase"), str(dense), "prune_all_to_global_80", retrain, "restore", forced)
    assert phase.config().optimizer.lottery_force_learning_rate == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("schedule", "retrain", "is_said"),
    [("cosine", "fine_tuning", True), ("cosine", "lr_rewinding", False), ("step", "fine_tuning", False)],
)
def test_a_last_learning_rate_that_is_too_low_to_train_with_is_pointed_out(
    schedule: str, retrain: str, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config().replace(
        learning_rate_schedule=schedule, train_steps=1000, num_train_images=1000, train_batch_size=100
    )
    unpruned = Unpruned("model", config, 1000, 100)
    Phase("model/x", "model", "prune_all_to_global_20", retrain, "restore", unpruned)._warn_of_low_rate()
    assert (f"{retrain} trains at the last learning rate" in caplog.text) == is_said


@pytest.mark.long
def test_learning_rate_rewinding_and_fine_tuning(dense: Path, tmp_path: Path) -> None:
    methods = ("lr_rewinding", "fine_tuning", "low_lr_rewinding", "reinit")
    found = {
        outcome.retrain: outcome
        for outcome in prune_run(
            str(dense), str(tmp_path), experiment(retrain=",".join(methods), levels=None, density="50")
        )
    }
    own = {name: Path(outcome.model_dir) for name, outcome in found.items()}
    trained = all_arrays_of(dense, LAST)
    assert_starts_from(all_arrays_of(own["lr_rewinding"], EARLY), trained)
    assert_starts_from(all_arrays_of(own["fine_tuning"], LAST), trained)
    assert_starts_from(all_arrays_of(own["low_lr_rewinding"], EARLY), all_arrays_of(dense, EARLY))
    fresh = all_arrays_of(own["reinit"], 0)
    assert not any(np.array_equal(fresh[f"params/{name}"], trained[f"params/{name}"]) for name in masks_in(fresh))
    assert {name: outcome.step for name, outcome in found.items()} == {
        "none": LAST, "lr_rewinding": LAST, "fine_tuning": 2 * LAST - EARLY, "low_lr_rewinding": LAST, "reinit": LAST,
    }  # fmt: skip
    rates = {name: learning_rates(folder) for name, folder in own.items()}
    assert rates["lr_rewinding"] == rates["none"][EARLY:]
    assert rates["reinit"] == rates["none"]
    assert rates["fine_tuning"] == rates["low_lr_rewinding"] == [rates["none"][-1]] * (LAST - EARLY)


def learning_rates(model_dir: Path) -> list[float]:
    rows = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["learning_rate"] for row in rows if row["split"] == "train"]


@pytest.mark.long
def test_stopped_anywhere_it_goes_on_to_the_same_end(dense: Path, tmp_path: Path) -> None:
    """A kill leaves a phase without its last steps, or one that has only begun."""
    whole = prune_run(str(dense), str(tmp_path / "whole"), experiment(retrain="lr_rewinding"))
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    first = tmp_path / "stopped" / "seed_0" / "lr_rewinding" / "level_01"
    for step in (LAST, LAST - 1):
        shutil.rmtree(first / folders.CHECKPOINTS / str(step))
    shutil.rmtree(first.parent / "level_02")
    again = prune_run(str(dense), str(tmp_path / "stopped"), experiment(retrain="lr_rewinding"))
    assert [(o.level, o.density, o.step, o.top_1_accuracy) for o in again] == [
        (o.level, o.density, o.step, o.top_1_accuracy) for o in whole
    ]
    for ours, theirs in zip(whole[1:], again[1:], strict=True):
        end = all_arrays_of(Path(theirs.model_dir), LAST)
        for name, array in all_arrays_of(Path(ours.model_dir), LAST).items():
            np.testing.assert_array_equal(end[name], array)


@pytest.mark.long
def test_finished_phases_are_only_read(pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(pruned, tmp_path, dirs_exist_ok=True)
    run, output = str(tmp_path / "run"), str(tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr("resnet_tpu.pruning.experiment.train", pytest.fail)
        times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        once = prune_run(run, output, experiment(levels=1))
        assert prune_run(run, output, experiment(levels=1)) == once
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    picture = Path(curves_path(once[1].model_dir))
    picture.unlink()  # as a kill may leave it
    monkeypatch.setattr(loop, "draw_curves", draw_curves)
    assert prune_run(run, output, experiment(levels=1)) == once
    assert picture.stat().st_size > 1000
    message = (
        r"Phase .*level_01: got one begun with method prune_all_to_global_80, expected method prune_all_to_global_50"
    )
    with pytest.raises(UserError, match=message):
        prune_run(run, output, experiment(levels=1, rate=0.5))
    for damaged in ("null", "[1]", "{"):
        (Path(once[1].model_dir) / "pruning.json").write_text(damaged)
        assert prune_run(run, output, experiment(levels=1)) == once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rewind_to": EARLY + 1, "retrain": "lr_rewinding,weight_rewinding", "seeds": "1,0"},
            r"^Phase .*weight_rewinding/level_01: got one begun with rewind_step 2, expected rewind_step 3\. Give",
        ),
        (
            {"levels": None, "density": "50", "method": "prune_layerwise", "retrain": "fine_tuning"},
            r"^output_dir .*: got prune_all_to_global_80 in .*level_01, expected levels of one method, prune_layer",
        ),
    ],
)
def test_phase_of_other_options_is_refused_before_training(
    changes: dict[str, Any], message: str, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "seed_0" / "weight_rewinding" / "level_01"
    begun.mkdir(parents=True)
    description = {
        "method": "prune_all_to_global_80", "retrain": "weight_rewinding", "rewind_optimizer": "restore",
        "rewind_step": EARLY, "last_step": LAST,
    }  # fmt: skip
    (begun / "pruning.json").write_text(json.dumps(description))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("resnet_tpu.pruning.experiment.train", pytest.fail)
    with pytest.raises(UserError, match=message):
        prune_run(str(dense), str(tmp_path), experiment(**changes))
    assert sorted(tmp_path.rglob("*")) == before


def test_levels_of_another_training_are_not_taken_for_its_own(dense: Path, tmp_path: Path) -> None:
    begun = tmp_path / "seed_0" / "weight_rewinding" / "level_01"
    begun.mkdir(parents=True)
    (begun / "pruning.json").write_text(json.dumps({"rewind_step": EARLY, "unpruned_loss": 9.5}))
    with pytest.raises(UserError, match=r"level_01: got one begun with unpruned_loss 9\.5, expected unpruned_loss \d"):
        prune_run(str(dense), str(tmp_path), experiment())


def test_another_training_is_not_taken_for_that_of_a_further_seed(dense: Path, tmp_path: Path) -> None:
    own = tmp_path / "seed_1" / "unpruned"
    shutil.copytree(dense, own)
    message = f"Run {own}: got one begun with other options: seed 0 -> 1, expected the options of the run to be"
    with pytest.raises(UserError, match=message):
        prune_run(str(dense), str(tmp_path), experiment(seeds="1"))


def test_a_further_seed_may_read_from_a_folder_what_it_read_from_a_table(
    config: Callable[..., Config], dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = config(dense, data_dir="", bigtable_instance="photos")
    monkeypatch.setattr("resnet_tpu.pruning.experiment.config_at", lambda _: begun)
    _check_alike(str(dense), begun.replace(data_dir="photos", bigtable_instance=""))
    with pytest.raises(UserError, match="image_size 16 -> 32"):
        _check_alike(str(dense), begun.replace(image_size=32))


@pytest.mark.long
def test_computing_options_change_only_the_re_training(dense: Path, tmp_path: Path) -> None:
    once = prune_run(str(dense), str(tmp_path), experiment(levels=1))
    of_unpruned = all_arrays_of(dense, LAST)
    computing = {"precision": "bfloat16", "kernels": "plain", "data_dir": "null"}
    outcomes = prune_run(str(dense), str(tmp_path), experiment(levels=2), computing=computing)
    assert outcomes[:2] == once
    configs = [config_at(outcome.model_dir) for outcome in outcomes]
    found = [(config.data.data_dir, config.model.precision, config.model.kernels) for config in configs]
    assert found == [("synthetic", "float32", "auto")] * 2 + [("null", "bfloat16", "plain")]
    assert_starts_from(all_arrays_of(Path(outcomes[2].model_dir), EARLY), all_arrays_of(dense, EARLY))
    for name, array in all_arrays_of(dense, LAST).items():
        np.testing.assert_array_equal(array, of_unpruned[name])


@pytest.mark.long
def test_other_seeds_train_their_own_network_first(dense: Path, tmp_path: Path) -> None:
    outcomes = prune_run(str(dense), str(tmp_path), experiment(levels=1, seeds="0,1"))
    assert [(outcome.seed, outcome.level) for outcome in outcomes] == [
        (0, "none"), (0, "level_01"), (1, "none"), (1, "level_01"),
    ]  # fmt: skip
    own = tmp_path / "seed_1" / "unpruned"
    assert outcomes[2].model_dir == str(own)
    assert_starts_from(
        all_arrays_of(tmp_path / "seed_1" / "weight_rewinding" / "level_01", EARLY), all_arrays_of(own, EARLY)
    )


@pytest.mark.long
def test_reset_optimizer(dense: Path, tmp_path: Path) -> None:
    prune_run(str(dense), str(tmp_path), experiment(levels=1, rewind_optimizer="reset"))
    start = all_arrays_of(tmp_path / "seed_0" / "weight_rewinding" / "level_01", EARLY)
    assert not any(array.any() for name, array in start.items() if name.startswith("momentum/"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "prune_al_to_global"},
            r"Pruning method: got prune_al_to_global, .*Did you mean prune_all_to_global",
        ),
        ({"levels": None, "density": "0"}, r"density: got 0, expected percent of the weights, above 0 and at most 100"),
        ({"levels": None, "density": "80,101"}, r"density: got 101"),
        ({"density": "80"}, r"density and levels: got 80 and 2, expected one of them"),
        ({"rate": 1.0}, r"rate: got 1\.0"),
        ({"retrain": "weight_rewind"}, r"retrain: got weight_rewind, .*Did you mean weight_rewinding"),
        ({"seeds": "0,x"}, r"seeds: got '0,x', expected whole numbers"),
        ({"rewind_to": 17}, r"rewind_to: got step 17, expected one of the 6 steps"),
        ({"rewind_to": 2, "retrain_epochs": 1.0}, r"rewind_to and retrain_epochs"),
        ({"retrain_epochs": 5.0, "rewind_to": None}, r"retrain_epochs: got step -6"),
        ({"retrain": "reinit"}, r"rewind_to: got 2 with retrain reinit, expected retraining that does not begin"),
        ({"method": "prune_resnet56_A"}, r"Pruning method prune_resnet56_A_1: got a network without conv_8"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str, dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prune_run(str(dense), str(tmp_path / "out"), experiment(**changes))
    assert not (tmp_path / "out").exists()


def test_images_that_have_moved_are_found_where_they_are_now(dense: Path, tmp_path: Path) -> None:
    now = tmp_path / "now"
    with pytest.raises(UserError, match=f"^data_dir: got '{now}', expected an existing folder"):
        prune_run(str(dense), str(tmp_path / "out"), experiment(), computing={"data_dir": str(now)})
    assert not list(tmp_path.iterdir())


def test_what_is_trained_is_not_changed_by_how_it_is_computed(dense: Path, tmp_path: Path) -> None:
    for name, value in {"train_steps": LAST + 1, "model_dir": str(tmp_path / "other"), "seed": 3}.items():
        with pytest.raises(
            UserError, match=rf"^computing: got {name}, expected .*data_dir, precision, kernels, num_cores"
        ):
            prune_run(str(dense), str(tmp_path / "out"), experiment(), computing={name: value})
    assert not list(tmp_path.iterdir())
    assert folders.steps_in(str(dense / folders.CHECKPOINTS))[-1] == LAST


def test_a_rewind_step_without_checkpoint(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(dense, kept)
    shutil.rmtree(kept / folders.CHECKPOINTS / str(EARLY))
    message = r"Rewind step: got 2, expected one of the checkpoints in .*: 1, 3, 4, 5, 6\. .*lottery_checkpoint_iters=2"
    with pytest.raises(UserError, match=message):
        prune_run(str(kept), str(tmp_path / "out"), experiment())
    shutil.copytree(kept, tmp_path / "stopped")
    for step in range(4, LAST + 1):
        shutil.rmtree(tmp_path / "stopped" / folders.CHECKPOINTS / str(step))
    with pytest.raises(UserError, match=r"Rewind step: got 2, expected one of the checkpoints in .*: 1, 3\."):
        prune_run(str(tmp_path / "stopped"), str(tmp_path / "out"), experiment())
    assert folders.steps_in(str(tmp_path / "stopped" / folders.CHECKPOINTS)) == [1, 3]  # nothing was trained for it
    monkeypatch.setattr("resnet_tpu.pruning.experiment.train", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prune_run(str(kept), str(tmp_path / "out"), experiment(retrain="lr_rewinding", levels=1))  # does not need it
    start = all_arrays_of(tmp_path / "out" / "seed_0" / "lr_rewinding" / "level_01", EARLY)
    assert_starts_from(start, all_arrays_of(kept, LAST))


def test_an_unfinished_training_keeps_what_will_be_rewound_to(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(dense, tmp_path / "run")
    for step in range(4, LAST + 1):
        shutil.rmtree(tmp_path / "run" / folders.CHECKPOINTS / str(step))
    kept = []

    def stop(config: Config) -> None:
        kept.append(config.train.lottery_checkpoint_iters)
        raise KeyboardInterrupt

    monkeypatch.setattr("resnet_tpu.pruning.experiment.train", stop)
    with pytest.raises(KeyboardInterrupt):
        prune_run(str(tmp_path / "run"), str(tmp_path / "out"), experiment(rewind_to=5))
    assert kept == [f"{EARLY},5"]


@pytest.mark.long
def test_a_training_without_evaluation_is_evaluated_first(config: Callable[..., Config], tmp_path: Path) -> None:
    train(config(tmp_path / "run", mode="train"))
    unpruned, _ = prune_run(str(tmp_path / "run"), str(tmp_path / "out"), experiment(levels=1))
    assert unpruned.step == LAST and 0 <= unpruned.top_1_accuracy <= 1


@pytest.mark.long
def test_an_unfinished_training_is_finished_first_and_its_end_is_that_of_all(dense: Path, tmp_path: Path) -> None:
    shutil.copytree(dense, tmp_path / "run")
    for step in range(4, LAST + 1):  # as if it had been stopped after 3
        shutil.rmtree(tmp_path / "run" / folders.CHECKPOINTS / str(step))
    once = prune_run(str(tmp_path / "run"), str(tmp_path / "out"), experiment(levels=1))
    assert [outcome.step for outcome in once] == [LAST, LAST]
    assert prune_run(str(tmp_path / "run"), str(tmp_path / "out"), experiment(levels=1)) == once


def test_a_tenth_of_the_training_is_kept_where_nothing_is_asked() -> None:
    assert _rewind_step(Config(), 69, experiment(rewind_to=None)) == 6


def test_repeated_names_and_levels_count_once() -> None:
    assert experiment(levels=None, density=20, seeds=0) == experiment(levels=None, density="20", seeds="0")
    twice = experiment(retrain="lr_rewinding,lr_rewinding", seeds="1,0,1")
    assert (twice.retrains(), twice.seed_numbers()) == (["lr_rewinding"], [1, 0])
    assert len(plan_levels("prune_all_to_global", density="50,50", levels=None, rate=None)) == 1


@pytest.mark.long
def test_the_command(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    words = ["prune", str(dense), "--density=50", "--rewind_to=2", f"--output_dir={output}"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "unpruned" in shown and "lr_rewinding" in shown and "50.00 %" in shown
    export = f"Export it: resnet-tpu export {output}/seed_0/lr_rewinding/density_50 EXPORT_DIR\n"
    assert shown.endswith(export) and Path(export.split()[-2], "checkpoints").is_dir()
    assert {path.name for path in output.iterdir()} == {
        "seed_0", "phases.csv", "results.csv", "layers.csv", "curve.png", "layers.png",
    }  # fmt: skip
    assert (output / "results.csv").read_text().startswith("retrain,method,density,median,lowest,highest,seeds,")
    combined = ["prune", "--combine", str(output), str(output), f"--output_dir={tmp_path / 'both'}"]
    assert cli.main(combined) == 0
    for name in ("results.csv", "phases.csv", "layers.csv"):
        assert (tmp_path / "both" / name).read_text() == (output / name).read_text()
    capsys.readouterr()
    shutil.move(output, tmp_path / "copied")
    assert cli.main(["prune", "--combine", str(tmp_path / "copied"), f"--output_dir={tmp_path / 'both'}"]) == 0
    shutil.rmtree(tmp_path / "copied" / "seed_0")
    assert cli.main(["prune", "--combine", str(tmp_path / "copied"), f"--output_dir={tmp_path / 'both'}"]) == 2
    assert "density_50, which has no checkpoint here, expected a run with one" in capsys.readouterr().err
    assert cli.main([*combined, "--levels=2"]) == 2
    assert "--combine: got levels, expected --output_dir alone" in capsys.readouterr().err
    assert cli.main([*words, "--retrain=fine_tunning"]) == 2
    assert "Did you mean fine_tuning" in capsys.readouterr().err


def test_runs_are_found_where_they_are_or_were_in_relation_to_the_experiment(tmp_path: Path) -> None:
    for run in ("project/model", "project/out/seed_0/lr_rewinding/density_50", "model"):
        (tmp_path / run / "checkpoints" / "4").mkdir(parents=True)
    out = f"{tmp_path}/project/out"
    for written, found in (
        (f"{tmp_path}/model", f"{tmp_path}/model"),
        ("/old/model", f"{tmp_path}/project/model"),
        ("/old/out/seed_0/lr_rewinding/density_50", f"{out}/seed_0/lr_rewinding/density_50"),
    ):
        assert outcome._find(written, out, "/old/out") == found


def test_a_pruned_network_has_seen_the_photos_of_the_unpruned_one(pruned: Path) -> None:
    assert "a/1.jpg" in (pruned / LEVEL / "training_photos.json").read_text()


def test_a_pruned_network_has_no_others_of_further_seeds(pruned: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Seed: got 1, expected 0 alone: .*level_01 is already pruned"):
        prune_run(pruned / LEVEL, tmp_path / "again", experiment(levels=1, seeds="0,1", retrain="lr_rewinding"))
    assert not (tmp_path / "again").exists()


def test_a_network_that_is_pruned_as_far_already_is_refused(pruned: Path, tmp_path: Path) -> None:
    again = experiment(levels=None, density="90", retrain="lr_rewinding")
    with pytest.raises(UserError, match=r"method: got prune_all_to_global_90, which removes nothing, .* the 80 % that"):
        prune_run(pruned / LEVEL, tmp_path / "again", again)


@pytest.mark.long
def test_a_training_whose_batch_size_changed_goes_back_to_the_images_that_it_had_seen(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    train(config(tmp_path / "run", train_steps=4, lottery_checkpoint_iters="5"))
    train(config(tmp_path / "run", train_batch_size=8, lottery_checkpoint_iters="5"))
    epochs = [row["current_epoch"] for row in read_metrics(str(tmp_path / "run"), "train")]
    assert epochs == pytest.approx([0, 0.4, 0.8, 1.2, 1.6, 1.8])
    whole = experiment(levels=None, density="100", rewind_to=5)
    unpruned, again = prune_run(tmp_path / "run", tmp_path / "out", whole)
    seen = [reading.read_meta(reading.find(outcome.model_dir))["position"] for outcome in (unpruned, again)]
    assert seen == [80, 80]
    found = all_arrays_of(Path(again.model_dir), LAST)
    for name, array in all_arrays_of(tmp_path / "run", LAST).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-7, err_msg=name)  # masks change the rounding


def test_what_is_combined_is_what_was_pruned(pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(pruned, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    report_experiment(prune_run("run", "out", experiment(levels=1)), "out")
    monkeypatch.chdir(shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "run").parent)
    unpruned, _ = read_outcomes([str(tmp_path / "out")])
    assert unpruned.model_dir == str(tmp_path / "run")  # not the run of that name here
    steps = tmp_path / "run" / folders.CHECKPOINTS
    shutil.copytree(steps / f"{LAST}", steps / f"{LAST + 1}")  # as if it had been trained on
    with pytest.raises(UserError, match=rf"got step {LAST + 1}, expected step {LAST}, as in"):
        read_outcomes([str(tmp_path / "out")])
    shutil.rmtree(steps / f"{LAST + 1}")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=rf"no evaluation at step {LAST}"):
        read_outcomes([str(tmp_path / "out")])
