"""The procedures of the pruning fork, flag for flag, with a small network and few steps."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu import resnet_main
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.convert import convert
from resnet_tpu.checkpoints.tf1_bundle import write_bundle
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.layers import kernels_of, maskable
from resnet_tpu.pruning.named_checkpoints import find_named, name_checkpoints
from resnet_tpu.pruning.phase import config_at
from tests.comparisons import all_arrays_of

pytestmark = pytest.mark.usefixtures("blank_curves")

LAST, EARLY = 6, 2
METHOD = "prune_all_to_global_80.0"
SMALL = [
    "--resnet_width=8", "--image_size=16", "--num_label_classes=4", "--num_train_images=40", "--num_eval_images=20",
    "--train_batch_size=16", "--eval_batch_size=20", "--precision=float32", "--num_cores=1", "--steps_per_eval=3",
    "--base_learning_rate=0.8", "--noskip_host_call",
]  # fmt: skip


def train(model_dir: Path, *flags: str) -> int:
    """The tutorial's shell function, with flags appended that make the network small."""
    return resnet_main.main(
        [
            "--hparams_file", "official/resnet/configs/cloud/v3-8.yaml",
            "--data_dir", "synthetic",
            "--resnet_depth", "8",
            "--model_dir", str(model_dir),
            "--lottery_results_dir", str(model_dir),
            "--tpu", "a-tpu",
            "--lottery_checkpoint_iters", f"0,{EARLY},{LAST}",
            *SMALL, "--train_steps", str(LAST), *flags,
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_dir = tmp_path_factory.mktemp("train_model_results")
    assert train(model_dir) == 0
    return model_dir


def copy_by_hand(before: Path, name: str, model_dir: Path) -> None:
    model_dir.mkdir(exist_ok=True)
    for file in before.glob(f"{name}*"):
        shutil.copy(file, model_dir)
    (model_dir / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')


def procedure(name: str, before: Path) -> list[str]:
    final, early = before / "checkpoint_iter_final", before / f"checkpoint_iter_{EARLY}"
    pruning = ["--lottery_pruning_method", METHOD, "--lottery_prune_at", str(final)]
    return {
        "weight_rewinding": [*pruning, "--lottery_reset_to", str(early)],
        "lr_rewinding": [*pruning, "--lottery_reset_to", str(final), "--lottery_reset_global_step_to", str(early)],
        "fine_tuning": [
            *pruning, "--train_steps", str(LAST + LAST - EARLY), "--lottery_force_learning_rate", "0.0004",
            "--lottery_reset_to", str(final),
        ],
        "reinit": [*pruning, "--lottery_reset_to", "reinitialize"],
    }[name]  # fmt: skip


def test_the_first_training_names_what_it_keeps(before: Path) -> None:
    names = {path.name for path in before.glob("checkpoint_iter_*")}
    assert names == {
        "checkpoint_iter_0",
        f"checkpoint_iter_{EARLY}",
        f"checkpoint_iter_{LAST}",
        "checkpoint_iter_final",
    }
    for name, step in (("0", 0), (str(EARLY), EARLY), ("final", LAST)):
        assert reading.step_of(find_named(str(before / f"checkpoint_iter_{name}"))) == step


def test_a_file_of_a_checkpoint_of_the_fork_is_no_name(tmp_path: Path) -> None:
    prefix = tmp_path / "checkpoint_iter_6"
    for suffix in (".index", ".data-00000-of-00001"):
        prefix.with_name(prefix.name + suffix).write_bytes(b"\xff\xfe\x00")
    assert find_named(f"{prefix}.index") == find_named(str(prefix)) == str(prefix)


def test_naming_checkpoints_does_not_need_the_length_of_an_epoch(before: Path, tmp_path: Path) -> None:
    config = Config().replace(model_dir=str(before), lottery_results_dir=str(tmp_path), train_steps="2epochs")
    name_checkpoints(config.replace(lottery_checkpoint_iters=f"{EARLY}"))
    assert {path.name for path in tmp_path.glob("checkpoint_iter_*")} == {
        f"checkpoint_iter_{EARLY}",
        "checkpoint_iter_final",
    }


@pytest.mark.parametrize(
    ("name", "origin", "start", "last", "by_hand"),
    [
        ("weight_rewinding", EARLY, EARLY, LAST, True),
        pytest.param("lr_rewinding", LAST, EARLY, LAST, False, marks=pytest.mark.long),
        pytest.param("fine_tuning", LAST, LAST, 2 * LAST - EARLY, True, marks=pytest.mark.long),
        pytest.param("reinit", None, 0, LAST, False, marks=pytest.mark.long),
    ],
)
def test_procedures(
    name: str, origin: int | None, start: int, last: int, by_hand: bool, before: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model_dir = tmp_path / "rewind_model_results"
    if by_hand and origin is not None:
        copy_by_hand(before, f"checkpoint_iter_{'final' if start == LAST else start}", model_dir)
    assert train(model_dir, *procedure(name, before), "--keep_checkpoint_max=9") == 0
    assert "options that differ" not in capsys.readouterr().err
    assert float((model_dir / "density_ratio").read_text()) == pytest.approx(0.8, abs=1e-4)
    begun, ended = all_arrays_of(model_dir, start), all_arrays_of(model_dir, last)
    unpruned = None if origin is None else all_arrays_of(before, origin)
    masks = {key.removeprefix("masks/"): mask for key, mask in begun.items() if key.startswith("masks/")}
    for key, mask in masks.items():
        if unpruned is not None:
            for collection in ("params", "momentum"):
                expected = unpruned[f"{collection}/{key}"] * mask
                np.testing.assert_array_equal(begun[f"{collection}/{key}"], expected)
        assert not ended[f"params/{key}"][~mask].any()
    assert reading.step_of(find_named(str(model_dir / "checkpoint_iter_final"))) == last


@pytest.fixture
def only_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training writes the checkpoint that it starts from, and ends."""
    monkeypatch.setattr("resnet_tpu.pruning.lottery.train", lambda config: None)


@pytest.mark.usefixtures("only_begins")
@pytest.mark.parametrize("name", ["weight_rewinding", "lr_rewinding"])
def test_a_training_of_another_batch_size_begins_with_the_images_that_come_next(
    name: str, before: Path, tmp_path: Path
) -> None:
    assert train(tmp_path, *procedure(name, before), "--train_batch_size=8") == 0
    start = tmp_path / folders.CHECKPOINTS / str(EARLY)
    assert reading.read_meta(str(start))["position"] == EARLY * 16


@pytest.mark.usefixtures("only_begins")
@pytest.mark.parametrize("own", [False, True])
def test_the_weights_of_a_named_start_have_seen_the_photos_of_their_run(
    own: bool, before: Path, tmp_path: Path
) -> None:
    earlier, model_dir = tmp_path / "earlier", tmp_path / ("earlier" if own else "new")
    shutil.copytree(before, earlier)
    photos = '{"/photos": ["a/1.jpg"]}\n'
    (earlier / "training_photos.json").write_text(photos)
    copy_by_hand(before, f"checkpoint_iter_{EARLY}", model_dir)
    (model_dir / f"checkpoint_iter_{EARLY}").write_text(str(earlier / folders.CHECKPOINTS / str(EARLY)))
    assert train(model_dir) == 0
    assert folders.steps_of_run(str(model_dir)) == [EARLY]
    assert (model_dir / "training_photos.json").read_text() == photos


@pytest.mark.usefixtures("only_begins")
def test_flags_that_need_a_checkpoint_to_prune_say_so(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    flags = [f"--lottery_reset_global_step_to={before}", f"--lottery_pruning_method={METHOD}"]
    assert train(tmp_path, *flags, "--lottery_force_reprune") == 0
    shown = capsys.readouterr().err
    for name in ("lottery_reset_global_step_to", "lottery_pruning_method", "lottery_force_reprune"):
        assert f"{name} has no effect without lottery_prune_at and lottery_reset_to." in shown
    assert train(tmp_path, *procedure("lr_rewinding", before)) == 0
    assert "has no effect without" not in capsys.readouterr().err


@pytest.mark.long
def test_second_start_continues_unless_forced(before: Path, tmp_path: Path) -> None:
    flags = procedure("lr_rewinding", before)
    assert train(tmp_path, *flags) == 0
    newest = tmp_path / folders.CHECKPOINTS / str(LAST)
    written, reached = newest.stat().st_mtime_ns, all_arrays_of(tmp_path, LAST)
    assert train(tmp_path, *flags) == 0
    assert newest.stat().st_mtime_ns == written
    shutil.rmtree(newest)  # as if stopped before its end
    assert train(tmp_path, *flags) == 0
    for name, array in all_arrays_of(tmp_path, LAST).items():
        np.testing.assert_array_equal(array, reached[name])
    assert not (tmp_path / "former.1").exists()
    assert train(tmp_path, *flags, "--lottery_force_reprune") == 0
    assert folders.steps_in(str(tmp_path / "former.1" / folders.CHECKPOINTS))[-1] == LAST


@pytest.mark.long
def test_other_flags_are_another_training(before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """These trainings differ only in their flags: all of them have equal masks."""
    flags = [*procedure("fine_tuning", before), "--mode=train", f"--train_steps={EARLY}"]  # only begins to train
    early = str(before / f"checkpoint_iter_{EARLY}")
    assert train(tmp_path, *flags) == 0
    copy_by_hand(before, "checkpoint_iter_final", tmp_path)
    assert train(tmp_path, *flags) == 0  # the whole procedure again, including the copy
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "former.1").exists()
    for number, (name, value) in enumerate(
        (
            ("lottery_force_learning_rate", "0.01"),
            ("lottery_reset_global_step_to", early),
            ("lottery_reset_to", early),
            ("lth_use_random_label", "true"),
        ),
        1,
    ):
        flags = [*flags, f"--{name}={value}"]
        capsys.readouterr()
        assert train(tmp_path, *flags) == 0
        assert f"This run differs from the one in {tmp_path}: {name} " in capsys.readouterr().err
        assert folders.steps_in(str(tmp_path / f"former.{number}" / folders.CHECKPOINTS))
    assert train(tmp_path, *flags) == 0
    assert not (tmp_path / "former.5").exists()


@pytest.mark.long
def test_all_files_of_a_training_are_set_aside_with_it(before: Path, tmp_path: Path) -> None:
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    (tmp_path / "checkpoint_iter_final").write_text(str(tmp_path / folders.CHECKPOINTS / str(LAST)))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "training_photos.json").write_text("{}")
    rows = (tmp_path / "metrics.jsonl").read_text()
    assert train(tmp_path, *procedure("lr_rewinding", before), "--mode=train", f"--train_steps={EARLY}") == 0
    former = tmp_path / "former.1"
    for step in (EARLY, LAST):
        np.testing.assert_equal(all_arrays_of(former, step), all_arrays_of(before, step))
    assert (former / "metrics.jsonl").read_text() == rows
    assert reading.step_of(find_named(str(former / "checkpoint_iter_final"))) == LAST
    assert reading.step_of(find_named(str(tmp_path / "checkpoint_iter_final"))) == EARLY
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / f"checkpoint_iter_{LAST}").read_text().startswith(str(before))  # a copy, not its own
    assert not list(tmp_path.glob("events.out.*"))
    assert not (tmp_path / "eval").exists()
    assert (former / "training_photos.json").exists() and not (tmp_path / "training_photos.json").exists()


@pytest.mark.long
def test_the_file_checkpoint_says_where_to_begin(before: Path, tmp_path: Path) -> None:
    dense, pruned, moved = (tmp_path / name for name in ("dense", "pruned", "moved"))
    copy_by_hand(before, f"checkpoint_iter_{EARLY}", dense)
    assert train(dense, "--mode=train", f"--train_steps={EARLY}") == 0
    expected = all_arrays_of(before, EARLY)
    for name, array in all_arrays_of(dense, EARLY).items():
        if not name.startswith("masks/"):
            np.testing.assert_array_equal(array, expected[name])
    flags = [*procedure("lr_rewinding", before), "--mode=train", f"--train_steps={EARLY + 1}"]
    assert train(pruned, *flags) == 0
    for _ in range(2):  # the second time, the training exists already
        copy_by_hand(pruned, "checkpoint_iter_final", moved)  # already pruned: continued, not started over
        assert train(moved, *flags) == 0
        assert folders.steps_in(str(moved / folders.CHECKPOINTS)) == [EARLY + 1]
        np.testing.assert_equal(all_arrays_of(moved, EARLY + 1), all_arrays_of(pruned, EARLY + 1))
        assert not (moved / "former.1").exists()
    (moved / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')  # TensorFlow's own: not our name
    assert train(moved, *flags) == 0
    assert (moved / "checkpoint").exists()


@pytest.mark.long
def test_the_file_checkpoint_may_name_an_earlier_step_of_its_directory(before: Path, tmp_path: Path) -> None:
    flags = [*procedure("lr_rewinding", before), "--mode=train", "--train_steps", str(EARLY + 1)]
    assert train(tmp_path, *flags) == 0
    begun = all_arrays_of(tmp_path, EARLY)
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "checkpoint_iter_{EARLY}"\n')
    for _ in range(2):
        assert train(tmp_path, *flags[:-1], str(EARLY)) == 0
    assert folders.steps_in(str(tmp_path / folders.CHECKPOINTS)) == [EARLY]
    np.testing.assert_equal(all_arrays_of(tmp_path, EARLY), begun)
    assert folders.steps_in(str(tmp_path / "former.1" / folders.CHECKPOINTS)) == [EARLY, EARLY + 1]
    assert not (tmp_path / "former.2").exists()


def test_a_start_that_is_not_there(before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "checkpoint_iter_5"\n')
    assert train(tmp_path, *procedure("reinit", before)) == 2
    assert f"File {tmp_path}/checkpoint: got checkpoint_iter_5, expected the name of" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_pruning_in_place_is_refused(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = sorted(before.rglob("*"))
    assert train(before, *procedure("lr_rewinding", before)) == 2
    assert "which is in model_dir itself, expected a checkpoint of another run" in capsys.readouterr().err
    assert sorted(before.rglob("*")) == left


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--resnet_depth=20"], "got no array .*/group1/block2/"),
        (["--resnet_width=16"], "got shape \\(.*8.*\\), expected \\(.*16.*\\)"),
        (["--lottery_results_dir={file}/names"], "Writing to .*: got a folder below the file"),
    ],
)
def test_unfit_flags_are_refused_before_anything_is_written(
    flags: list[str], what: str, before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag.format(file=before / "config.json") for flag in flags]
    assert train(tmp_path / "new", *procedure("lr_rewinding", before), *flags) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.search(what, message)
    assert str(before) in message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lottery_prune_at=nowhere/checkpoint_iter_final"], "lottery_reset_to: got nothing, expected a checkpoint"),
        (["--lottery_reset_to=reinitialize"], "lottery_prune_at: got nothing, expected a checkpoint"),
        (
            ["--lottery_prune_at=nowhere/checkpoint_iter_9", "--lottery_reset_to=reinitialize"],
            "Checkpoint: got nowhere/checkpoint_iter_9, expected a model_dir or a checkpoint in it.",
        ),
        (
            ["--lottery_prune_at=reinitialize", "--lottery_reset_to=reinitialize", "--lottery_pruning_method=prune_it"],
            "Pruning method: got prune_it, expected one of",
        ),
    ],
)
def test_bad_flags(flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "new", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new" / folders.CHECKPOINTS).exists()


def write_fork(before: Path, prefix: str, masks: dict[str, np.ndarray]) -> None:
    """Writes the trained network as the fork saves it: with masks next to its weights, without momentum."""
    checkpoint = reading.load_all(str(before / folders.CHECKPOINTS / str(LAST)))
    network = network_of(config_at(str(before)))
    layers = maskable(network)
    weights = kernels_of(checkpoint.arrays["params"], layers)
    variables: dict[str, np.ndarray] = {"global_step": np.array(LAST, np.int64)}
    variables |= {f"{name}_w": kernel for name, kernel in weights.items()}
    variables |= {
        f"{name}_m": masks.get(name, np.ones(kernel.shape)).astype(np.float32) for name, kernel in weights.items()
    }
    for name, place in tf_names(network).items():
        if not name.endswith("/kernel"):
            variables["dense_b" if name == "dense/bias" else name] = leaf_at(checkpoint.arrays, place)
    write_bundle(prefix, variables)


def test_checkpoints_of_the_fork_itself(before: Path, tmp_path: Path) -> None:
    """Pruning starts from the checkpoint's masks, and training continues from its weights."""
    mask = np.arange(3 * 3 * 8 * 8).reshape(3, 3, 8, 8) % 3 > 0
    prefix = str(tmp_path / "fork" / "checkpoint_iter_final")
    (tmp_path / "fork").mkdir()
    write_fork(before, prefix, {"conv_2": mask})
    flags = ["--lottery_prune_at", prefix, "--lottery_reset_to", prefix, "--lottery_pruning_method", "prune_global_50"]
    assert train(tmp_path / "new", *flags, "--mode=train", "--train_steps", str(LAST + 2)) == 0
    begun = all_arrays_of(tmp_path / "new", LAST)
    conv_2 = "group1/block1/conv1/conv/kernel"
    assert not (begun[f"masks/{conv_2}"] & ~mask).any()
    kept = begun[f"masks/{conv_2}"]
    np.testing.assert_array_equal(begun[f"params/{conv_2}"], all_arrays_of(before, LAST)[f"params/{conv_2}"] * kept)


def test_a_pruned_training_of_the_fork_keeps_its_masks(before: Path, tmp_path: Path) -> None:
    """Continued in its own folder, or converted: its masked weights stay 0."""
    mask = np.arange(3 * 3 * 8 * 8).reshape(3, 3, 8, 8) % 3 > 0
    (tmp_path / "fork").mkdir()
    write_fork(before, str(tmp_path / "fork" / f"model.ckpt-{LAST}"), {"conv_2": mask})
    convert(str(tmp_path / "fork"), str(tmp_path / "converted"), image_size=32)
    assert train(tmp_path / "fork", "--mode=train", "--train_steps", str(LAST + 2)) == 0
    conv_2 = "group1/block1/conv1/conv/kernel"
    for model_dir, step in ((tmp_path / "converted", LAST), (tmp_path / "fork", LAST + 2)):
        found = all_arrays_of(model_dir, step)
        np.testing.assert_array_equal(found[f"masks/{conv_2}"], mask)
        assert not found[f"params/{conv_2}"][~mask].any()
