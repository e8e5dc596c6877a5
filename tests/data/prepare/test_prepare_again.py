"""Running `prepare` again, after changes, kills and full disks: finished work is kept, results are byte-identical."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from resnet_tpu import storage
from resnet_tpu.data.manifest import Manifest, read_manifest
from resnet_tpu.data.prepare import workers
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.prepare.shards import Shard, ShardResult
from resnet_tpu.data.records.tfrecord import RecordFile
from resnet_tpu.errors import UserError

RUN = (
    "import sys\n"
    "from resnet_tpu.data.prepare.options import PrepareOptions\n"
    "from resnet_tpu.data.prepare.prepare import prepare\n"
    "from resnet_tpu.errors import UserError\n"
    "if __name__ == '__main__':\n"
    "    {before}\n"
    "    try: prepare(sys.argv[1], sys.argv[2], PrepareOptions(workers={workers}, train_shards=12))\n"
    "    except UserError as error: sys.exit(str(error))\n"
)


def test_running_again_does_nothing(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    manifest = run(class_folders, out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    console = Console(record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    assert prepare(str(class_folders), str(out), PrepareOptions(workers=1), console=console) == manifest
    console.file.close()
    assert "Nothing to do" in console.export_text()
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert {path for path in times if times[path] != after[path]} <= {out / "_prepare", out / "_prepare/prepare.json"}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", *(f'{{"options": {{}}, "inputs": {{"daisy": {odd}}}, "shards": []}}' for odd in ("3", "[]", "[3]"))],
)
def test_what_an_earlier_run_left_and_somebody_changed_is_named(
    text: str, class_folders: Path, tmp_path: Path, run
) -> None:
    out = tmp_path / "out"
    run(class_folders, out)
    (out / "_prepare" / "prepare.json").write_text(text)
    with pytest.raises(
        UserError, match=r"prepare\.json: got .*, expected what an earlier `prepare` wrote\. Remove the"
    ):
        run(class_folders, out)
    assert (out / "manifest.json").exists()


@pytest.mark.parametrize("lost", ["train-00001-of-00003", "_prepare/train-00001-of-00003.json", "manifest.json"])
def test_missing_files_are_made_again(class_folders: Path, tmp_path: Path, lost: str, run, contents) -> None:
    out = tmp_path / "out"
    run(class_folders, out, train_shards=3)
    before = contents(out)
    kept = (out / "train-00000-of-00003").stat().st_mtime_ns
    (out / lost).unlink()
    run(class_folders, out, train_shards=3)
    assert contents(out) == before
    assert (out / "train-00000-of-00003").stat().st_mtime_ns == kept


def test_a_shard_that_was_cut_off_is_made_again(class_folders: Path, tmp_path: Path, run, contents) -> None:
    out = tmp_path / "out"
    run(class_folders, out, train_shards=3)
    before, shard = contents(out), out / "train-00001-of-00003"
    shard.write_bytes(shard.read_bytes()[:-5])
    run(class_folders, out, train_shards=3)
    assert contents(out) == before


def test_while_a_shard_is_made_again_the_folder_is_unfinished(
    class_folders: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(class_folders, out, train_shards=3)
    (out / "train-00001-of-00003").unlink()
    monkeypatch.setattr("resnet_tpu.data.prepare.prepare.write_shards", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(class_folders, out, train_shards=3)
    assert read_manifest(str(out)) is None


def test_overwriting_leaves_no_index_of_an_earlier_shard(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    for number in (3, 2):
        run(class_folders, out, train_shards=number, overwrite=True)
        assert {path.stem for path in (out / "_index").iterdir()} == {path.name for path in out.glob("*-of-*")}


def test_a_finished_run_is_replaced_even_if_its_report_is_gone(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    run(class_folders, out)
    (out / "report.txt").unlink()
    shard = next(out.glob("train-*"))
    before = shard.stat().st_mtime_ns
    run(class_folders, out, overwrite=True)
    assert shard.stat().st_mtime_ns > before
    assert (out / "report.txt").exists()


def test_changes_are_noticed_and_named(class_folders: Path, tmp_path: Path, draw, run, contents) -> None:
    out = tmp_path / "out"
    run(class_folders, out)
    before = contents(out)
    with pytest.raises(UserError, match=r"seed was 1337, is 3; max_side was None, is 50.*--overwrite"):
        run(class_folders, out, seed=3, max_side=50)
    os.utime(class_folders / "dog" / "001.jpg", ns=(0, 0))
    with pytest.raises(UserError, match="dog has other or newer files"):
        run(class_folders, out)
    draw(class_folders / "cat" / "new.jpg", 77)
    draw(class_folders / "fox" / "new.jpg", 78)
    with pytest.raises(UserError, match="cat had 20 images, has 21; dog has other or newer files; fox had 0"):
        run(class_folders, out)
    assert contents(out) == before
    (out / "mine.txt").write_text("not prepare's")
    manifest = run(class_folders, out, overwrite=True, train_shards=2)
    assert len(manifest.class_names) == 4
    assert sorted(path.name for path in out.glob("train*")) == ["train-00000-of-00002", "train-00001-of-00002"]
    assert (out / "mine.txt").read_text() == "not prepare's"
    run(class_folders, tmp_path / "fresh", train_shards=2)
    (out / "mine.txt").unlink()
    assert contents(out) == contents(tmp_path / "fresh")


def test_overwriting_goes_on_where_it_was_stopped_too(
    class_folders: Path, tmp_path: Path, run, contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, written, most = tmp_path / "out", [], 2
    run(class_folders, out, seed=3)
    write_shard = workers.write_shard

    def write(shard: Shard, *arguments: Any) -> ShardResult:
        if len(written) == most:
            raise KeyboardInterrupt
        written.append(shard.name)
        return write_shard(shard, *arguments)

    monkeypatch.setattr(workers, "write_shard", write)
    with pytest.raises(KeyboardInterrupt):
        run(class_folders, out, train_shards=3, overwrite=True)
    most = -1
    run(class_folders, out, train_shards=3, overwrite=True)
    run(class_folders, tmp_path / "fresh", train_shards=3)
    assert contents(out) == contents(tmp_path / "fresh")
    assert len(written) == 2 * 5
    run(class_folders, out, train_shards=3, overwrite=True)  # what is finished is written again
    assert len(written) == 3 * 5


def test_photos_that_cannot_be_reached_are_not_left_out(
    class_folders: Path, tmp_path: Path, run, contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", Path.read_bytes

    def read(path: Path) -> bytes:
        if path == class_folders / "dog" / "001.jpg":
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(path))
        return whole(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read)
        with pytest.raises(UserError, match=r"dog/001\.jpg: got .*, expected a disk that can be reached.*same command"):
            run(class_folders, out, train_shards=3, max_bad_fraction=1)
    run(class_folders, out, train_shards=3, max_bad_fraction=1)
    run(class_folders, tmp_path / "fresh", train_shards=3, max_bad_fraction=1)
    assert contents(out) == contents(tmp_path / "fresh")


def test_a_foreign_file_is_found_before_anything_is_deleted(class_folders: Path, tmp_path: Path, run, contents) -> None:
    out = tmp_path / "out"
    run(class_folders, out)
    (out / "test-photos.zip").write_text("precious")
    before = contents(out)
    with pytest.raises(UserError, match=r"1 file\(s\) that prepare did not write here, such as test-photos\.zip"):
        run(class_folders, out, seed=3, overwrite=True)
    assert contents(out) == before


def test_foreign_shards_are_never_touched(class_folders: Path, tmp_path: Path, run) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("train-00000-of-00001", "train-00007-of-01024", "validation-notes.txt", "labels.txt", "manifest.json"):
        (out / name).write_text("precious")
        for overwrite in (False, True):
            with pytest.raises(UserError, match=f"1 file.s. that prepare did not write here, such as {name}"):
                run(class_folders, out, overwrite=overwrite)
        assert (out / name).read_text() == "precious"
        (out / name).unlink()


def test_one_prepare_at_a_time_writes_to_a_folder(class_folders: Path, tmp_path: Path, run, contents) -> None:
    out = tmp_path / "out"
    with storage.reserved(str(out)), pytest.raises(UserError, match="got another process that writes there, expected"):
        run(class_folders, out)
    assert not contents(out)
    assert len(run(class_folders, out).class_names) == 3


def test_without_a_home_folder_indexes_stand_beside_the_records(
    class_folders: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    run(class_folders, tmp_path / "out")
    assert len(list((tmp_path / "out" / "_index").iterdir())) == 3


# Unwanted ends.


def test_a_photo_that_can_be_read_now_is_another_one(
    class_folders: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, access, read_image = str(class_folders / "cat" / "003.jpg"), os.access, storage.read_image

    def refuse(path: str) -> bytes:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read_image(path)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "read_image", refuse)
        patched.setattr(os, "access", lambda path, *args, **options: path != closed and access(path, *args, **options))
        assert run(class_folders, tmp_path / "out").splits["train"].num_images == 31
        assert run(class_folders, tmp_path / "out").splits["train"].num_images == 31  # nothing has changed
    with pytest.raises(UserError, match=r"cat has other or newer files.*--overwrite"):
        run(class_folders, tmp_path / "out")
    assert run(class_folders, tmp_path / "out", overwrite=True).splits["train"].num_images == 32


def test_changes_of_remote_photos_that_a_csv_lists_are_noticed(class_folders: Path, tmp_path: Path, run) -> None:
    photos = [path for folder in ("cat", "dog") for path in sorted((class_folders / folder).iterdir())]
    for path in photos:
        storage.write_bytes(f"memory://listed/{path.parent.name}/{path.name}", path.read_bytes())
    rows = (f"memory://listed/{path.parent.name}/{path.name},{path.parent.name}\n" for path in photos)
    (tmp_path / "photos.csv").write_text("path,label\n" + "".join(rows))
    run(tmp_path / "photos.csv", tmp_path / "out")
    storage.write_bytes("memory://listed/dog/001.jpg", photos[0].read_bytes())
    with pytest.raises(UserError, match="dog has other or newer files"):
        run(tmp_path / "photos.csv", tmp_path / "out")


@pytest.fixture
def much_work(tmp_path: Path, draw) -> Path:
    """Two classes of large PNG files, which take a few seconds to prepare."""
    for k in range(2):
        first = draw(tmp_path / "raw" / f"class{k}" / "0.png", k, size=(900, 700))
        for i in range(1, 40):
            shutil.copy(first, first.with_name(f"{i}.png"))
    return tmp_path / "raw"


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_killed_in_the_middle_and_run_again(
    much_work: Path, tmp_path: Path, run, contents, wait_until, is_running
) -> None:
    out = tmp_path / "out"
    code = RUN.format(before="pass", workers=2)
    parent = subprocess.Popen([sys.executable, "-c", code, str(much_work), str(out)], stderr=subprocess.DEVNULL)
    wait_until(lambda: any(out.glob("train-*")))
    children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    parent.kill()
    parent.wait()
    assert children
    wait_until(lambda: not any(map(is_running, children)))  # no worker is left running
    assert read_manifest(str(out)) is None
    for path in out.glob("train-*"):
        list(RecordFile(str(path)))  # raises if it is incomplete
    finished = {path: path.stat().st_mtime_ns for path in out.glob("train-*")}
    (out / ".train-00000-of-00012.abc.partial").write_bytes(b"half")
    run(much_work, out, train_shards=12)
    run(much_work, tmp_path / "uninterrupted", train_shards=12)
    assert contents(out) == contents(tmp_path / "uninterrupted")
    redone = {path for path, written in finished.items() if path.stat().st_mtime_ns != written}
    assert len(redone) <= 2  # only those in progress, one per worker


def test_interrupted_by_the_user(much_work: Path, tmp_path: Path, wait_until) -> None:
    out = tmp_path / "out"
    code = RUN.format(before="pass", workers=2)
    parent = subprocess.Popen([sys.executable, "-c", code, str(much_work), str(out)], stderr=subprocess.PIPE)
    wait_until(lambda: any(out.glob("train-*")))
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode == -signal.SIGINT
    assert errors.count(b"Traceback") == 1  # only from the parent
    assert not list(out.glob(".*partial"))
    assert read_manifest(str(out)) is None


@pytest.mark.long
@pytest.mark.parametrize("when", [pytest.param("starting", marks=pytest.mark.long), "working"])
def test_a_worker_that_dies(much_work: Path, tmp_path: Path, run, contents, when: str, wait_until) -> None:
    out = tmp_path / "out"

    def kill_one() -> None:
        wait_until(lambda: multiprocessing.active_children() and (when == "starting" or any(out.glob("train-*"))))
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(UserError, match=r"a process that was killed or crashed.*finished shards are kept"):
        run(much_work, out, workers=2, train_shards=12)
    killer.join()
    assert multiprocessing.active_children() == []
    run(much_work, out, train_shards=12)
    run(much_work, tmp_path / "fresh", train_shards=12)
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_full_disk(class_folders: Path, tmp_path: Path, draw, workers: int, run, contents) -> None:
    for i in range(10):
        draw(class_folders / "cat" / f"large{i}.jpg", 500 + i, size=(300, 300), quality=100)
    out = tmp_path / "out"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"  # makes write() really fail
    code = RUN.format(before=limit, workers=workers)
    done = subprocess.run([sys.executable, "-c", code, str(class_folders), str(out)], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"got File too large, expected a folder with free space that can be written to. Free space" in done.stderr
    for path in out.glob("train-*"):
        list(RecordFile(str(path)))  # raises if it is incomplete
    assert len(list(out.glob("train-*"))) < 12
    assert not list(out.glob(".*partial"))
    assert read_manifest(str(out)) is None
    run(class_folders, out, train_shards=12)
    run(class_folders, tmp_path / "fresh", train_shards=12)
    assert contents(out) == contents(tmp_path / "fresh")


def test_photos_that_were_split_and_now_stay_in_train_are_no_continuation(
    class_folders: Path, tmp_path: Path, run: Callable[..., Manifest]
) -> None:
    raw, out = tmp_path / "alone", tmp_path / "out"
    raw.mkdir()
    class_folders.rename(raw / "train")
    run(raw, out, split="0.8,0.1,0.1")
    with pytest.raises(UserError, match="there were 3 shards, there are 1"):
        run(raw, out)
    assert [*run(raw, out, overwrite=True).splits] == ["train"]
    assert not [*out.glob("validation-*"), *out.glob("test-*")]
