"""Files in a bucket with the real client: complete or absent, whatever the network does; refusals are reported."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.storage import buckets
from resnet_tpu.system import program

Bucket = Any  # of conftest.py
rsa: Any = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")  # comes with gcsfs
serialization: Any = pytest.importorskip("cryptography.hazmat.primitives.serialization")
FAULTS = {"busy": 0.06, "limited": 0.04, "slow": 0.1, "slow_secs": 0.05, "cut_body": 0.06, "cut_after": 0.06}


@pytest.fixture
def folder(bucket: Bucket, tmp_path: Path) -> str:
    """An empty folder in the bucket."""
    return f"{bucket.url}/{tmp_path.name}"


@pytest.fixture
def anew(bucket: Bucket) -> Iterator[None]:
    """Makes the test, and those after it, set up the clients again."""
    del bucket
    for cached in (buckets.set_up, buckets._credentials):
        cached.cache_clear()
    yield
    for cached in (buckets.set_up, buckets._credentials):
        cached.cache_clear()


def test_files_are_as_on_the_disk(folder: str) -> None:
    big = os.urandom(9 << 20)  # too large for a simple upload
    with storage.write_whole(f"{folder}/a/big") as file:
        file.write(big)
    storage.write_text(f"{folder}/a/text", "gruß")
    storage.write_text(f"{folder}/a/deep/er", "")
    assert storage.list_dir(f"{folder}/a") == ["big", "deep", "text"]
    assert storage.files_below(f"{folder}/a") == [f"{folder}/a/{name}" for name in ("big", "deep/er", "text")]
    assert [storage.is_dir(f"{folder}/{name}") for name in ("a", "a/deep", "a/big", "b")] == [True, True, False, False]
    assert [storage.exists(f"{folder}/{name}") for name in ("a", "a/deep", "a/big", "b")] == [True, True, True, False]
    states = {entry.name: entry.state for entry in storage.bucket_entries(f"{folder}/a")}
    assert states["big"] == storage.file_state(f"{folder}/a/big")
    assert storage.read_bytes(f"{folder}/a/big") == big
    assert storage.read_range(f"{folder}/a/big", 5, 9_000_000) == big[5:9_000_000]
    assert storage.read_range(f"{folder}/a/big", len(big) - 3, len(big) + 9) == big[-3:]
    assert storage.read_range(f"{folder}/a/big", len(big), len(big) + 9) == b""
    assert storage.read_range(f"{folder}/a/deep/er", 0, 9) == b""
    with storage.open_read(f"{folder}/a/big") as file:
        assert file.seek(-100, os.SEEK_END) == len(big) - 100
        assert file.read(30) + file.read() == big[-100:]
        file.seek(7)
        assert file.read() == big[7:]
    before = storage.file_state(f"{folder}/a/text")
    storage.write_text(f"{folder}/a/text", "other")
    assert storage.file_state(f"{folder}/a/text") != before
    storage.move(f"{folder}/a", f"{folder}/b")
    assert storage.list_dir(folder) == ["b"]
    assert storage.list_dir(f"{folder}/b") == ["big", "deep", "text"]
    storage.remove(f"{folder}/b/nothing")
    storage.remove_dir(f"{folder}/b")
    storage.remove_dir(f"{folder}/b")
    assert storage.list_dir(folder) == []


def test_what_others_write_is_listed_at_once(folder: str) -> None:
    storage.write_text(f"{folder}/ours", "1")
    assert storage.list_dir(folder) == ["ours"]
    fsspec.filesystem("gs", skip_instance_cache=True).pipe_file(f"{folder}/theirs", b"2")
    assert storage.list_dir(folder) == ["ours", "theirs"]


def test_a_name_is_no_pattern_that_others_match(folder: str) -> None:
    for name in ("run[12]", "run1", "run2", "run*", "r?n1"):
        storage.write_text(f"{folder}/{name}/5/state[1]", name)
        storage.write_text(f"{folder}/{name}/log", name)
    storage.remove_dir(f"{folder}/run[12]/5")
    assert storage.list_dir(f"{folder}/run[12]") == ["log"]
    storage.remove_dir(f"{folder}/run*")
    storage.move(f"{folder}/r?n1", f"{folder}/[moved]")
    storage.move(f"{folder}/run[12]/log", f"{folder}/run[12]/log2")
    assert storage.list_dir(folder) == ["[moved]", "run1", "run2", "run[12]"]
    assert storage.list_dir(f"{folder}/run[12]") == ["log2"]
    for name, text in (("run1", "run1"), ("run2", "run2"), ("[moved]", "r?n1")):
        assert storage.read_text(f"{folder}/{name}/5/state[1]") == storage.read_text(f"{folder}/{name}/log") == text
    with pytest.raises(FileNotFoundError):
        storage.move(f"{folder}/nothing", f"{folder}/moved")


@pytest.mark.parametrize("name", ["run#2", "run?generation=2", "run::2"])
def test_a_name_is_not_taken_for_the_version_of_another(name: str, folder: str) -> None:
    path = f"{folder}/{name}"
    storage.write_text(f"{path}/log", "text")
    assert storage.exists(path)
    assert storage.is_dir(path)
    assert storage.list_dir(path) == ["log"]
    assert storage.files_below(path) == [f"{path}/log"]
    storage.write_text(f"{path}/{name}", "more")
    assert storage.read_text(f"{path}/{name}") == "more"
    storage.remove_dir(path)
    assert not storage.exists(path)


def test_a_write_that_fails_leaves_what_was_there(bucket: Bucket, folder: str) -> None:
    path = f"{folder}/file"
    storage.write_text(path, "before")
    with pytest.raises(RuntimeError, match="in the middle"), storage.write_whole(path) as file:
        file.write(b"half")
        raise RuntimeError("in the middle")
    bucket.faults(deny="write")
    for content in (b"small", bytes(6 << 20)):
        with pytest.raises(UserError, match="Storage Object User"), storage.write_whole(path) as file:
            file.write(content)
    assert storage.read_text(path) == "before"


@pytest.mark.parametrize("faults", [{}, {"cut_after": 0.1}], ids=["", "answers are lost"])
def test_what_several_add_to_a_file_is_all_there_and_once(
    bucket: Bucket, folder: str, faults: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = pytest.importorskip("gcsfs.retry")
    monkeypatch.setattr(retry, "min", lambda *_: 0.01, raising=False)  # the least of a second or more, and 32 s

    def add(who: str) -> None:
        for number in range(8):
            storage.append_text(f"{folder}/rows", f"{who}{number}\n")

    storage.write_text(f"{folder}/rows", "first\n")
    bucket.faults(**faults, seed=3)
    with ThreadPoolExecutor() as threads:
        list(threads.map(add, "ab"))
    bucket.faults()
    first, *rows = storage.read_text(f"{folder}/rows").splitlines()
    assert first == "first"
    for who in "ab":
        assert [row for row in rows if row[0] == who] == [f"{who}{number}" for number in range(8)]


@pytest.mark.long
def test_faults_of_the_network_pass_unseen(bucket: Bucket, folder: str) -> None:
    contents = {f"{folder}/{number}": os.urandom(1000 + (number % 3) * (3 << 20)) for number in range(6)}
    bucket.faults(**FAULTS, seed=1)
    for path, content in contents.items():
        with storage.write_whole(path) as file:
            file.write(content)
    assert [f"{folder}/{name}" for name in storage.list_dir(folder)] == list(contents)
    assert {path: storage.read_bytes(path) for path in contents} == contents
    assert sum(bucket.requests().values()) > 2 * len(contents) + 5  # some were retried


def test_a_temporary_folder_that_is_full_is_named(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match=f"'{tmp_path}'"), storage.write_whole(f"{folder}/file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert storage.list_dir(folder) == []


def test_a_page_holds_a_thousand_names(bucket: Bucket, folder: str) -> None:
    client: Any = buckets.filesystem(folder)
    place = f"{folder}/many".removeprefix("gs://")
    client.pipe({f"{place}/{number:04d}": b"" for number in range(1005)}, batch_size=16)
    bucket.faults()
    assert storage.list_dir(f"{folder}/many") == [f"{number:04d}" for number in range(1005)]
    assert bucket.requests() == {"list": 2}


@pytest.mark.parametrize(
    "use",
    [
        storage.exists, storage.is_dir, storage.list_dir, storage.read_text, storage.open_read, storage.file_state,
        storage.check_writable, lambda path: storage.write_text(path, ""), lambda path: storage.read_range(path, 0, 1),
    ],
)  # fmt: skip
def test_a_bucket_that_is_not_there_is_named(bucket: Bucket, use: Any) -> None:
    del bucket
    with pytest.raises(UserError, match=r"no bucket other, .*gcloud storage buckets create gs://other"):
        use("gs://other/folder/file")


@pytest.mark.parametrize(
    ("use", "role"),
    [
        (storage.exists, "Viewer"), (storage.list_dir, "Viewer"), (storage.read_text, "Viewer"),
        (storage.check_writable, "User"), (storage.remove, "User"),
    ],
)  # fmt: skip
def test_a_role_that_is_missing_is_named(bucket: Bucket, folder: str, use: Any, role: str) -> None:
    bucket.faults(deny="read" if role == "Viewer" else "write")
    if use is storage.remove:
        bucket.faults(deny="delete")
    with pytest.raises(UserError, match=rf"{folder}.*does not have .* access.*roles/storage\.object{role}"):
        use(f"{folder}/file")


def test_without_credentials_only_what_is_public_is_read(bucket: Bucket, folder: str) -> None:
    storage.write_text(f"{folder}/file", "text")
    bucket.faults(needs_token=True)
    with pytest.raises(UserError, match=r"there are no Google credentials here.*gcloud auth application-default login"):
        storage.read_text(f"{folder}/file")


def test_a_service_account_signs_in(
    bucket: Bucket, folder: str, anew: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del anew
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key = {
        "type": "service_account", "client_email": "trainer@example.iam.gserviceaccount.com", "private_key_id": "1",
        "private_key": private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        "token_uri": f"{bucket.endpoint}/token", "project_id": "example", "client_id": "1",
    }  # fmt: skip
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    bucket.faults(needs_token=True)
    storage.write_text(f"{folder}/file", "text")
    assert storage.read_text(f"{folder}/file") == "text"


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_invalid_credentials_are_refused(
    folder: str, anew: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    del anew
    if content is not None:
        (tmp_path / "key.json").write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(UserError, match=r"Google credentials: .*key\.json.*unset it for public buckets"):
        storage.exists(folder)


def test_what_a_client_raises_far_from_its_path_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    retry = pytest.importorskip("gcsfs.retry")

    def work(arguments: object) -> None:
        del arguments
        raise retry.HttpError({"code": 503, "message": "busy"})

    assert program.run_program(work, []) == 2
    assert "busy, 503, after several tries" in capsys.readouterr().err
