"""Our checkpoints: complete or absent."""

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu import storage
from resnet_tpu.checkpoints import checksums, folders, reading, store
from resnet_tpu.checkpoints.meta import config_of, make_meta
from resnet_tpu.errors import UserError
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config, ModelConfig

ARRAYS = {"params": {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3)}}, "step": jnp.int32(5)}
OPTIONS = (
    "data_dir=synthetic,image_size=16,num_label_classes=4,num_train_images=64,resnet_depth=8,resnet_width=16,"
    "precision=float32,train_batch_size=4,iterations_per_loop=2,learning_rate_schedule=constant,num_cores=1,mode=train"
)


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
del sys.argv[1]
runpy.run_module("resnet_tpu", run_name="__main__", alter_sys=True)
"""


def train(model_dir: Path, train_steps: int, *, file_limit: int = -1) -> "subprocess.CompletedProcess[str]":
    """Trains in a separate process in which no file can exceed `file_limit` bytes (-1: no limit)."""
    options = [f"--params_override={OPTIONS},train_steps={train_steps}", f"--model_dir={model_dir}"]
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(file_limit), "train", *options],
        capture_output=True, text=True, check=False, env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
    )  # fmt: skip


@pytest.mark.long
def test_a_disk_that_is_full_is_named_and_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    assert train(tmp_path, 2).returncode == 0
    failed = train(tmp_path, 4, file_limit=60_000)  # enough for metrics and other small files, but not for arrays
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert f"Writing a checkpoint to {tmp_path}" in failed.stderr
    assert "earlier checkpoints are intact" in failed.stderr
    assert reading.step_of(reading.find(str(tmp_path))) == 2
    assert train(tmp_path, 4).returncode == 0
    assert reading.step_of(reading.find(str(tmp_path))) == 4


@contextlib.contextmanager
def as_a_user() -> Iterator[None]:
    """Drops root's right to write everywhere, as containers run tests as root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[str]:
    """A folder that every user may enter, unlike pytest's own, and those in a private TMPDIR."""

    def is_open(folder: str) -> bool:
        with as_a_user():
            return os.access(folder, os.R_OK | os.X_OK, effective_ids=True)

    parent = next(filter(is_open, (tempfile.gettempdir(), "/tmp", "/dev/shm")), None)
    if parent is None:
        pytest.skip("no folder is open to other users")
    with tempfile.TemporaryDirectory(dir=parent) as path:
        Path(path).chmod(0o755)
        yield path


def test_a_folder_below_one_that_may_not_be_read_is_named_too() -> None:
    with tempfile.TemporaryDirectory() as path, store.CheckpointStore(f"{path}/run", keep=9) as checkpoints:
        Path(path).chmod(0)
        said = f"Writing to {path}/run: got permission denied"
        with as_a_user(), pytest.raises(UserError, match=said):
            checkpoints.save(1, ARRAYS, {})
        Path(path).chmod(0o700)


def test_a_folder_that_may_not_be_written_is_named_and_the_last_checkpoint_is_whole() -> None:
    with tempfile.TemporaryDirectory() as path:  # pytest's own folders are closed to other users
        folder = Path(path)
        with store.CheckpointStore(path, keep=9) as checkpoints:
            checkpoints.save(1, ARRAYS, {})
            checkpoints.wait()
            folder.chmod(0o555)
            with as_a_user(), pytest.raises(UserError, match=f"Writing to {path}: got permission denied"):
                checkpoints.save(2, ARRAYS, {})
            folder.chmod(0o755)
            assert checkpoints.steps() == [1]
            checkpoints.save(3, ARRAYS, {})
        assert folders.steps_in(path) == [1, 3]
        kernel = reading.load_named(str(folder / "1"))["params/dense/kernel"]
        np.testing.assert_array_equal(kernel, ARRAYS["params"]["dense"]["kernel"])


def test_a_checkpoint_for_which_there_is_no_room_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    with store.CheckpointStore(str(tmp_path), keep=1) as checkpoints:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=20))
        with pytest.raises(UserError, match=f"Disk of {tmp_path}: got .* MB of free space, expected at least"):
            checkpoints.save(1, ARRAYS, {})
        assert checkpoints.steps() == []
    assert not list(tmp_path.iterdir())


def test_the_processes_of_a_run_are_not_those_of_what_uses_its_checkpoint() -> None:
    config = Config().replace(train_steps="3", coordinator_address="10.0.0.2:1234", num_processes=2, process_id=1)
    kept = make_meta(config, None, 0)
    assert config_of({"config": kept["config"] | {"of_a_later_version": 1}}) == Config().replace(train_steps="3")


@pytest.mark.parametrize("name", ["run [2]", "run*", "run?", "a\\b"])
def test_a_folder_that_orbax_would_take_for_others_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"got . in .*, expected a path without any of"):
        store.CheckpointStore(str(tmp_path / name / folders.CHECKPOINTS), keep=1)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with store.CheckpointStore(str(tmp_path / folders.CHECKPOINTS), keep=2) as checkpoints:
        for step in (5, 6, 7):
            checkpoints.save(step, ARRAYS, {"position": step, "flag": True, "nothing": None, "names": ["a"]})
    return tmp_path


def test_two_may_not_write_into_one_folder_at_once(saved: Path) -> None:
    folder = saved / folders.CHECKPOINTS
    with store.CheckpointStore(str(folder), keep=2):
        unfinished = folder / "8.orbax-checkpoint-tmp"
        unfinished.mkdir()
        (unfinished / folders.METADATA_FILE).touch()  # Orbax writes it first
        with pytest.raises(UserError, match="got another process that writes there"):
            store.CheckpointStore(str(folder), keep=2).__enter__()
        assert unfinished.is_dir()
    (folder / "012").mkdir()
    (folder / "012" / "notes.txt").touch()
    with store.CheckpointStore(str(folder), keep=2) as checkpoints:
        assert checkpoints.steps() == [6, 7]
    assert not unfinished.exists()
    assert (folder / "012" / "notes.txt").exists()  # a person's


def test_a_folder_that_nothing_was_saved_to_is_not_left_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), store.CheckpointStore(str(tmp_path / "run" / folders.CHECKPOINTS), keep=2):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["metadata", "load_checkpointables"])
def test_a_signal_while_a_checkpoint_is_read_does_not_make_it_damaged(
    name: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallow(*_: object) -> NoReturn:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("no entry")  # as Orbax does, whatever was raised

    monkeypatch.setattr(store.ocp, name, swallow)
    checkpoints = store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.restore(jax.eval_shape(lambda: ARRAYS))
    assert sorted(path.name for path in (saved / folders.CHECKPOINTS).iterdir()) == ["6", "7"]


@pytest.mark.parametrize(
    "error", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")]
)
def test_lack_of_memory_does_not_make_a_checkpoint_damaged(
    error: Exception, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.ocp, "load_checkpointables", Mock(side_effect=error))
    with store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2) as checkpoints, pytest.raises(type(error)):
        checkpoints.restore(jax.eval_shape(lambda: ARRAYS))
    assert sorted(path.name for path in (saved / folders.CHECKPOINTS).iterdir()) == ["6", "7"]


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("closed", ["arrays", "arrays/d", "arrays/_METADATA"])
def test_a_checkpoint_that_may_not_be_opened_is_not_taken_for_damaged(
    closed: str, has_checksums: bool, open_folder: str
) -> None:
    with store.CheckpointStore(open_folder, keep=9) as checkpoints:
        checkpoints.save(1, ARRAYS, {})
        checkpoints.save(2, ARRAYS, {})
    if not has_checksums:
        Path(open_folder, "2", checksums.FILE).unlink()
    place = Path(open_folder, "2", closed)
    mode = place.stat().st_mode
    place.chmod(0)
    got = rf"^Checkpoint {open_folder}/2: got PermissionError: .*, expected one that this process can open\. Check"
    with as_a_user(), pytest.raises(UserError, match=got):
        store.CheckpointStore(open_folder, keep=9).restore(jax.eval_shape(lambda: ARRAYS))
    place.chmod(mode)
    assert folders.steps_in(open_folder) == [1, 2]


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
def test_a_process_at_its_limits_does_not_make_a_checkpoint_damaged(
    error: Exception, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "check", Mock(side_effect=error))
    with pytest.raises(UserError, match="expected one that this process can open"):
        store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2).restore(jax.eval_shape(lambda: ARRAYS))
    assert folders.steps_in(str(saved / folders.CHECKPOINTS)) == [6, 7]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("count", "is_lost"), [(1, False), (2, True)])
def test_the_first_signal_waits_for_a_write_and_the_second_says_what_it_costs(
    count: int, is_lost: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    ended = []

    def result() -> None:
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)
        ended.append(True)

    monkeypatch.setattr(store.ocp, "save_checkpointables_async", Mock())
    monkeypatch.setattr(store, "_with_checksums", lambda *_: Mock(result=result))
    with pytest.raises(KeyboardInterrupt), store.CheckpointStore(str(tmp_path), keep=2) as checkpoints:
        checkpoints.save(7, ARRAYS, {})
        if fails:  # then leaving the store waits for the write
            raise ZeroDivisionError
        checkpoints.wait()
    assert bool(ended) != is_lost
    lost = "The checkpoint of step 7 is lost: it was being written. Earlier ones are intact."
    assert caplog.messages == [lost] * is_lost


def test_reads_back_checkpoints_and_keeps_only_the_newest(saved: Path) -> None:
    path = reading.find(str(saved))
    assert reading.step_of(path) == 7
    assert reading.read_meta(path) == {"position": 7, "flag": True, "nothing": None, "names": ["a"]}
    assert reading.stored_bytes(path) == 6 * 4 + 4
    named = reading.load_named(path, ("params",))
    assert list(named) == ["params/dense/kernel"]
    np.testing.assert_array_equal(named["params/dense/kernel"], ARRAYS["params"]["dense"]["kernel"])
    with store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2) as checkpoints:
        assert checkpoints.steps() == [6, 7]


def test_an_array_that_the_network_has_not_is_not_left_out(saved: Path) -> None:
    path = reading.find(str(saved))
    shapes = reading.stored_shapes(path)
    collection = next(name for name, found in shapes.items() if isinstance(found, dict))
    left_out = next(iter(shapes[collection]))
    fewer = {name: leaf for name, leaf in shapes[collection].items() if name != left_out}
    with pytest.raises(UserError, match=f"got {collection}/{left_out}.*, which the network does not have, expected"):
        reading.load(path, shapes | {collection: fewer})


def test_the_best_outlives_the_newest(tmp_path: Path) -> None:
    with store.CheckpointStore(str(tmp_path), keep=1) as checkpoints:
        for step, score in ((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.6)):
            checkpoints.save(step, ARRAYS, {})
            checkpoints.wait()
            checkpoints.scores[step] = score
        assert checkpoints.steps() == [2, 4]


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="resnet_tpu")
    with store.CheckpointStore(str(tmp_path), keep=1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, ARRAYS, {})
            if step == 2:
                shutil.rmtree(tmp_path / "1")  # somebody makes room
            if step == 3:  # what NFS says while another has a file of it open
                monkeypatch.setattr(storage, "move", Mock(side_effect=OSError(39, "Directory not empty")))
            checkpoints.wait()
        assert checkpoints.steps() == [3]
    assert caplog.messages == [
        f"Checkpoint {tmp_path}/1 was gone before it was deleted.",
        f"Checkpoint {tmp_path}/2 is not deleted: OSError: [Errno 39] Directory not empty",
    ]


def test_a_path_means_a_model_dir_a_folder_of_checkpoints_or_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = str(saved / folders.CHECKPOINTS / "7")
    assert (
        reading.find(str(saved)) == reading.find(str(saved / folders.CHECKPOINTS)) == reading.find(expected) == expected
    )
    assert reading.find(str(saved / folders.CHECKPOINTS / "6")) == str(saved / folders.CHECKPOINTS / "6")
    with pytest.raises(
        UserError, match=r"Checkpoint: got .*, expected a model_dir or a checkpoint in it\. Train first"
    ):
        reading.find(str(saved / "nowhere"))
    (saved / "exported" / "1795181234").mkdir(parents=True)  # a name like that of a bundle, or of a class of digits
    with pytest.raises(UserError, match=r"got .*exported, expected a model_dir or a checkpoint in it"):
        reading.find(str(saved / "exported"))
    monkeypatch.chdir(saved)
    with pytest.raises(UserError, match=r"^Checkpoint: got nothing, expected a model_dir or a checkpoint in it"):
        reading.find("")


def test_a_half_written_checkpoint_is_not_taken_for_a_whole_one(saved: Path) -> None:
    (saved / folders.CHECKPOINTS / "7").rename(saved / folders.CHECKPOINTS / "8.orbax-checkpoint-tmp")
    assert reading.find(str(saved)).endswith("/6")
    with store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2) as checkpoints:
        assert checkpoints.steps() == [6]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves tasks behind
def test_when_all_are_damaged_nothing_starts_over_silently(saved: Path) -> None:
    for path in (saved / folders.CHECKPOINTS).glob("*/arrays/**/d/*"):
        path.write_bytes(b"")
    with store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2) as checkpoints:
        with pytest.raises(UserError, match=r"Checkpoints: got 2 damaged .*, expected one that can be read"):
            checkpoints.restore(ARRAYS)
        assert checkpoints.steps() == [6, 7]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_damaged_checkpoint_of_a_step_is_put_aside_under_a_name_of_its_own(saved: Path) -> None:
    folder = saved / folders.CHECKPOINTS
    for _ in range(3):  # as when each is damaged, and the training from the one before writes it again
        for path in (folder / "7" / "arrays").glob("**/d/*"):
            path.write_bytes(b"")
        with store.CheckpointStore(str(folder), keep=2) as checkpoints:
            found = checkpoints.restore(ARRAYS)
            assert found is not None
            assert found.step == 6
            checkpoints.save(7, ARRAYS, {})
    assert {path.name for path in folder.iterdir()} == {"6", "7", "7.damaged", "7.damaged2", "7.damaged3"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_description_is_named(saved: Path) -> None:
    for path in (saved / folders.CHECKPOINTS / "7" / "meta").iterdir():
        path.write_bytes(b"{")
    with pytest.raises(reading.DamagedCheckpointError, match="expected a whole checkpoint of resnet_tpu"):
        reading.read_meta(str(saved / folders.CHECKPOINTS / "7"))


def test_classes_that_are_no_names_are_damage(tmp_path: Path) -> None:
    with store.CheckpointStore(str(tmp_path), keep=1) as checkpoints:
        checkpoints.save(7, ARRAYS, {"class_names": ["a", 1]})
    with pytest.raises(reading.DamagedCheckpointError, match=r"class_names\[1\]"):
        reading.read_meta(reading.find(str(tmp_path)))
    with pytest.raises(reading.DamagedCheckpointError, match=r"class_names\[1\]"):
        reading.load_all(reading.find(str(tmp_path)))


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    narrow, wide = (
        create_network(ModelConfig(resnet_depth=8, resnet_width=width), num_classes=2, image_size=8) for width in (4, 8)
    )
    params, batch_stats = narrow.init(0)
    with store.CheckpointStore(str(tmp_path), keep=1) as checkpoints:
        checkpoints.save(7, {"params": params, "batch_stats": batch_stats}, {})
    path = reading.find(str(tmp_path))
    assert reading.load_for(narrow, path).step == 7
    with pytest.raises(UserError, match=r"^Checkpoint .*: got shape \(4,\), expected \(8,\)\. Use the options"):
        reading.load_for(wide, path)


def test_a_copy_under_another_name_says_what_to_call_it(saved: Path) -> None:
    shutil.copytree(saved / folders.CHECKPOINTS / "7", saved / "mine")
    with pytest.raises(UserError, match=r"Checkpoint .*mine: got the name mine, expected the number of its step"):
        reading.step_of(reading.find(str(saved / "mine")))


def test_foreign_files_do_not_damage_a_checkpoint(saved: Path) -> None:
    for name in (".DS_Store", "._d"):
        (saved / folders.CHECKPOINTS / "7" / "arrays" / name).write_bytes(b"of a Mac")
    assert list(reading.load_named(str(saved / folders.CHECKPOINTS / "7"), ("params",))) == ["params/dense/kernel"]


def test_a_whole_checkpoint_is_never_taken_for_a_left_over(saved: Path) -> None:
    shutil.copytree(saved / folders.CHECKPOINTS / "7", saved / folders.CHECKPOINTS / "007")
    (saved / folders.CHECKPOINTS / "8.orbax-checkpoint-tmp").mkdir()
    with store.CheckpointStore(str(saved / folders.CHECKPOINTS), keep=2) as checkpoints:
        assert checkpoints.steps() == [6, 7]
    assert sorted(path.name for path in (saved / folders.CHECKPOINTS).iterdir()) == ["007", "6", "7"]


def test_a_whole_checkpoint_in_a_bucket_is_never_taken_for_a_left_over(tmp_path: Path) -> None:
    folder, whole = f"memory://{tmp_path.name}/checkpoints", ["007/commit_success.txt", "7/commit_success.txt"]
    for name in (*whole, "8/meta/data.json", "9.deleted/meta/data.json"):
        storage.write_text(f"{folder}/{name}", "of a checkpoint")
    folders.delete_unfinished(folder)
    assert storage.files_below(folder) == [f"{folder}/{name}" for name in whole]
