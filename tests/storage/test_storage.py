"""Files on disk and in buckets, written completely or not at all."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from resnet_tpu import storage
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.image_files import FileSource
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.reports.results import results


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder on disk, or one in fsspec's in-memory object store."""
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_what_was_written_is_read_listed_and_found(folder: str) -> None:
    path = storage.join(folder, "deep", "er.txt")
    storage.make_dir(storage.join(folder, "deep"))
    storage.write_text(path, "gruß")
    assert storage.read_text(path) == "gruß"
    assert storage.exists(path)
    assert not storage.is_dir(path)
    assert storage.is_dir(storage.join(folder, "deep"))
    assert storage.list_dir(storage.join(folder, "deep")) == ["er.txt"]
    assert storage.list_dir(storage.join(folder, "nowhere")) == []
    assert [storage.read_text(file) for file in storage.files_below(folder)] == ["gruß"]


def test_a_write_that_fails_leaves_what_was_there(folder: str) -> None:
    path = storage.join(folder, "file")
    storage.make_dir(folder)
    storage.write_text(path, "before")
    with pytest.raises(RuntimeError, match="in the middle"), storage.write_whole(path) as file:
        file.write(b"half")
        raise RuntimeError("in the middle")
    assert storage.read_text(path) == "before"
    assert storage.list_dir(folder) == ["file"]


def test_nothing_shows_under_the_name_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with storage.write_whole(str(path)) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"half"


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "file", []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    storage.write_text(str(path), "whole")
    assert synced == [(5, False)]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    storage.check_file(str(path))
    storage.write_text(str(path), "text")
    assert os.read(descriptor, 100) == b"text"
    os.close(descriptor)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_that_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/file")
    for text in ("one", "two"):
        storage.write_text(str(tmp_path / "link"), text)
        assert (tmp_path / "far" / "file").read_text() == text
        assert os.readlink(tmp_path / "link") == "far/file"  # noqa: PTH115


def test_a_link_into_a_folder_that_is_missing_is_refused_before_the_work(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("far/file")
    with pytest.raises(UserError, match=rf"^Writing {link}: got a link into {tmp_path}/far, which is no folder"):
        storage.check_file(str(link))
    (tmp_path / "far").mkdir()
    storage.check_file(str(link))


def test_a_folder_to_be_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plots/: got a folder, expected a file\. Add the name of a file"):
        storage.check_file(f"{tmp_path}/plots/")


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="this system has no /dev/null")
def test_what_goes_nowhere_leaves_dev_null_alone(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    storage.check_file("/dev/null")
    storage.write_text(str(tmp_path / "null"), "text")
    assert (tmp_path / "null").is_char_device()
    assert list(tmp_path.iterdir()) == [tmp_path / "null"]


def test_files_have_the_permissions_of_the_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        storage.write_text(str(tmp_path / "file"), "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_folder_aside_is_gone_when_the_block_raises_and_so_are_those_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for parent in ("there", "there/new/er", "new"):
        with pytest.raises(RuntimeError), storage.folder_aside(str(tmp_path / parent), "made") as aside:
            Path(aside, "file").write_text("half")
            raise RuntimeError
    with pytest.raises(RuntimeError), storage.folder_aside(str(tmp_path / "shared"), "made"):
        (tmp_path / "shared" / "other").write_text("")
        raise RuntimeError
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "shared", tmp_path / "shared" / "other", tmp_path / "there"]


def test_a_folder_aside_has_the_permissions_of_the_user(tmp_path: Path) -> None:
    with storage.folder_aside(str(tmp_path), "made") as aside:
        Path(aside).rename(tmp_path / "made")
    (tmp_path / "other").mkdir()
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_a_killed_program_left_aside_is_deleted_but_not_what_another_one_is_writing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom resnet_tpu import storage\n"
        "with storage.folder_aside(sys.argv[1], 'made'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    with storage.folder_aside(str(tmp_path), "other") as unlike:
        assert left.exists()
        Path(unlike).rmdir()
    with storage.folder_aside(str(tmp_path), "made") as one, storage.folder_aside(str(tmp_path), "made") as other:
        assert not left.exists()
        assert sorted(tmp_path.iterdir()) == sorted([Path(one), Path(other)])


def test_a_missing_extra_is_named() -> None:
    pytest.importorskip("fsspec")
    program = "import sys; sys.modules['gcsfs'] = None; from resnet_tpu import storage; storage.exists('gs://bucket/x')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'resnet-tpu[gcp]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("path", ["dvc://data", "nothing://data"])
def test_what_is_in_no_storage_that_we_know_is_named(path: str) -> None:
    with pytest.raises(UserError, match=rf"^Path: got {path}, expected a path on this machine or in a bucket, gs://"):
        storage.exists(path)


def test_a_web_server_that_does_not_answer_is_not_taken_for_cloud_storage() -> None:
    pytest.importorskip("aiohttp", reason="the extra gcp brings it")
    wanted = r"^Reading http://127\.0\.0\.1:1/a\.jpg: got .+, expected an answer from its server\. Check the address"
    with pytest.raises(UserError, match=wanted):
        storage.read_bytes("http://127.0.0.1:1/a.jpg")


def test_a_file_where_a_folder_is_to_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    for refusing in (storage.check_writable, storage.make_dir):
        with pytest.raises(UserError, match=rf"^Writing to {tmp_path}/model: got a file, expected a folder\."):
            refusing(str(tmp_path / "model"))
    got = f"got a folder below the file {tmp_path}/model, expected a folder"
    with pytest.raises(UserError, match=f"^Writing to {tmp_path}/model/a/b: {got}"):
        storage.check_writable(str(tmp_path / "model/a/b"))


def test_names_may_begin_with_a_byte_order_mark_and_have_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfdaisy\r\n \r\nrose\r\n\n")
    assert storage.read_names(str(tmp_path / "labels.txt")) == ["daisy", "rose"]


def test_without_a_home_folder_the_cache_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(UserError, match="Set XDG_CACHE_HOME"):
        storage.cache_dir()


@pytest.mark.parametrize("name", ["data:out", "a::b", "local:a", "file:a", "~a"])
def test_a_folder_of_this_machine_may_have_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage.make_dir(name)
    storage.write_text(storage.join(name, "x"), "text")
    storage.write_text(storage.join(name, "y"), "text")
    storage.remove(storage.join(name, "y"))
    storage.move(name, f"{name}:moved")
    assert (tmp_path / f"{name}:moved" / "x").read_text() == "text"
    assert [path.name for path in tmp_path.rglob("*")] == [f"{name}:moved", "x"]
    storage.remove_dir(f"{name}:moved")
    storage.remove_dir(f"{name}:moved")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_several_names_counts_once_under_its_own_or_the_first_of_its_links(tmp_path: Path) -> None:
    for name in ("far", "photos/m", "photos/q", "photos/.hidden"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.jpg").touch()
    for link in "abcd":
        (tmp_path / "photos" / link).symlink_to("m")
    for link in "zyxw":
        (tmp_path / "photos" / link).symlink_to("../far")
    (tmp_path / "photos" / "shown").symlink_to(".hidden")
    (tmp_path / "photos" / "m" / "similar").symlink_to("../q")
    found = storage.files_below(str(tmp_path / "photos"))
    assert found == [f"{tmp_path}/photos/{name}/1.jpg" for name in ("m", "q", "shown", "w")]


def test_a_disk_that_does_not_tell_its_size_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"got 0\.001 MB of free space, expected at least 0\.002 MB"):
        storage.check_room(str(tmp_path), 2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type(usage)(0, 0, 0))  # as of a file system in user space
    storage.check_room(str(tmp_path), 2000)


def test_a_folder_that_may_not_be_entered_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat_of = str(tmp_path / "closed" / "photos"), os.stat

    def refuse(asked: object, **options: bool) -> os.stat_result:  # permissions do not bind root
        if asked == path:
            raise PermissionError
        return stat_of(asked, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(UserError, match="photos: got permission denied, expected a path that may be read"):
        FileSource([path], [])
    with pytest.raises(UserError, match="photos: got permission denied"):
        open_source(DataConfig(data_dir=path), "train")
    with pytest.raises(UserError, match="photos: got permission denied"):
        results([path])
    monkeypatch.undo()
    storage.check_reachable(path)
