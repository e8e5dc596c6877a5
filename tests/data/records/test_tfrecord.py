"""TFRecord files: they read back as written, damage is never missed, and indexes are never trusted blindly."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resnet_tpu import storage
from resnet_tpu.data.records import index, tfrecord
from resnet_tpu.data.records.tfrecord import (
    RecordError,
    RecordFile,
    RecordWriter,
    load_index,
    masked_crc,
    read_records,
)
from resnet_tpu.errors import UserError

RECORDS = [b"", b"a", bytes(100), b"0123456789" * 30, "é".encode() * 7]


def write(path: Path, payloads: list[bytes]) -> str:
    with RecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


def index_of(path: str) -> Path:
    return Path(path).parent / "_index" / f"{Path(path).name}.npy"


def read_around(path: str) -> tuple[list[bytes], list[RecordError]]:
    """The records that are whole, and the damage between them."""
    file = RecordFile(path, skip_bad=True)
    kept, lost = [], file.damage
    for i in range(len(file)):
        try:
            kept.append(file[i])
        except RecordError as error:
            lost.append(error)
    return kept, lost


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), max_size=10))
def test_payloads_come_back(tmp_path: Path, payloads: list[bytes]) -> None:
    path = write(tmp_path / "shard", payloads)
    assert list(read_records(path)) == payloads
    file = RecordFile(path)
    assert [file[i] for i in range(len(file))] == payloads
    assert Path(path).stat().st_size == sum(len(payload) + 16 for payload in payloads)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bits_of_a_byte_are_detected(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "shard"
    write(path, RECORDS)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    good: list[bytes] = []
    with pytest.raises(RecordError) as caught:
        good.extend(read_records(str(path)))
    assert caught.value.offset <= at
    assert f"Record {caught.value.record} of {path} at byte {caught.value.offset}: got " in str(caught.value)
    with pytest.raises(RecordError):
        list(RecordFile(str(path)))
    kept, errors = read_around(str(path))
    assert len(kept) == len(RECORDS) - 1  # only the damaged record is lost
    assert kept == RECORDS[: caught.value.record] + RECORDS[caught.value.record + 1 :]
    assert len(errors) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, sum(len(record) + 16 for record in RECORDS) - 1))
def test_any_truncation_is_detected(tmp_path: Path, size: int) -> None:
    path = tmp_path / "shard"
    write(path, RECORDS)
    ends = np.cumsum([len(record) + 16 for record in RECORDS]).tolist()
    path.write_bytes(path.read_bytes()[:size])
    whole = sum(end <= size for end in ends)
    if size in ends:  # cut between two records, which the format cannot detect
        assert list(read_records(str(path))) == RECORDS[:whole]
        return
    with pytest.raises(RecordError, match=f"Record {whole} of .* got a file that ends after"):
        RecordFile(str(path))
    assert list(RecordFile(str(path), skip_bad=True)) == RECORDS[:whole]


def test_parity_with_the_original(golden: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(golden("tfrecord"), tmp_path / "golden", copy_function=shutil.copyfile)
    expected = json.loads(golden("tfrecord/expected.json").read_text())
    for name, file in expected["files"].items():
        path = tmp_path / "golden" / "data" / name
        rows = [[offset + 12, length] for offset, length in file["offset_and_payload_length"]]
        assert load_index(str(path)).tolist() == rows
        rewritten = write(tmp_path / "again", list(RecordFile(str(path))))
        assert Path(rewritten).read_bytes() == path.read_bytes()
    for name, damage in expected["corrupted"].items():
        path = str(tmp_path / "golden" / "corrupted" / name)
        good: list[bytes] = []
        with pytest.raises(RecordError) as caught:
            good.extend(read_records(path))
        rows = expected["files"][damage["source"]]["offset_and_payload_length"]
        assert len(good) == damage["records_readable_before_error"]
        assert (caught.value.path, caught.value.record) == (path, damage["record"])
        assert caught.value.offset == rows[damage["record"]][0]
        kept, lost = read_around(path)
        assert len(lost) == 1
        assert len(kept) == (damage["record"] if "file_length" in damage else len(rows) - 1)


@pytest.mark.peer("tensorflow-cpu")
def test_tensorflow_reads_what_we_write_and_writes_the_same(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    path = write(tmp_path / "shard", RECORDS)
    assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == RECORDS
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in RECORDS:
            writer.write(record)
    assert (tmp_path / "theirs").read_bytes() == Path(path).read_bytes()


def test_nothing_appears_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with pytest.raises(KeyboardInterrupt), RecordWriter(str(path)) as writer:
        writer.write(b"x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    write(path, [b"old"])
    with pytest.raises(ZeroDivisionError), RecordWriter(str(path)) as writer:
        writer.write(b"new")
        raise ZeroDivisionError
    assert list(RecordFile(str(path))) == [b"old"]


def test_a_killed_writer_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal\nfrom resnet_tpu.data.records.tfrecord import RecordWriter\n"
        "with RecordWriter(sys.argv[1]) as writer:\n"
        "    writer.write(bytes(10**6))\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "shard")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "shard").exists()


def test_indexes_are_the_writers_and_the_readers_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "shard", RECORDS)
    written = index_of(path).read_bytes()
    index_of(path).unlink()
    load_index(path)
    assert index_of(path).read_bytes() == written
    assert np.load(index_of(path)).dtype == np.int64


def test_a_changed_file_gets_a_new_index(tmp_path: Path) -> None:
    path = write(tmp_path / "shard", RECORDS)
    stale = index_of(path).read_bytes()
    write(tmp_path / "other", RECORDS[1:])
    (tmp_path / "other").replace(path)
    assert index_of(path).read_bytes() == stale
    assert list(RecordFile(path)) == RECORDS[1:]
    os.utime(path, ns=(0, 0))
    np.testing.assert_array_equal(load_index(path), RecordFile(path)._index)
    assert np.load(index_of(path))[0].tolist() == [Path(path).stat().st_size, 0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_index_is_built_again(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path / "shard", RECORDS)
    index = index_of(path)
    whole = index.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    index.write_bytes(data.draw(st.sampled_from([whole[:at], whole[:at] + damaged + whole[at + 1 :]])))
    assert list(RecordFile(path)) == RECORDS
    assert index.read_bytes() == whole


def test_an_index_goes_to_the_cache_where_the_folder_cannot_be_written(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "shard", RECORDS)
    shutil.rmtree(tmp_path / "_index")
    (tmp_path / "_index").write_text("in the way")
    assert list(RecordFile(path)) == RECORDS
    (cached,) = (own_cache / "resnet_tpu" / "index").iterdir()
    before = cached.stat().st_mtime_ns
    assert list(RecordFile(path)) == RECORDS
    assert cached.stat().st_mtime_ns == before  # it was used, not written again
    shutil.rmtree(own_cache)
    own_cache.write_text("in the way")
    assert list(RecordFile(path)) == RECORDS  # works without storing an index


def test_a_damaged_file_gets_no_index(tmp_path: Path) -> None:
    path = write(tmp_path / "shard", RECORDS)
    shutil.rmtree(tmp_path / "_index")
    data = bytearray(Path(path).read_bytes())
    data[0] ^= 1
    Path(path).write_bytes(data)
    file = RecordFile(path, skip_bad=True)
    assert (list(file), len(file.damage)) == (RECORDS[1:], 1)
    assert not index_of(path).exists()
    with pytest.raises(RecordError, match="wrong checksum of the length"):
        RecordFile(path)


def test_a_header_is_found_again_far_behind_the_damage(tmp_path: Path) -> None:
    payloads = [np.random.default_rng(i).bytes(20_000_000 if i == 0 else 1000) for i in range(3)]
    path = write(tmp_path / "shard", payloads)  # longer than a chunk of the search
    with Path(path).open("r+b") as file:
        file.write(b"\x01")
    assert list(RecordFile(path, skip_bad=True)) == payloads[1:]


def test_a_header_is_found_where_two_chunks_of_the_search_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "_SEARCHED_BYTES", 100)
    for size in range(70, 100):
        path = write(tmp_path / f"shard-{size}", [b"x" * size, b"second"])
        with Path(path).open("r+b") as file:
            file.write(b"\0")
        assert list(RecordFile(path, skip_bad=True)) == [b"second"]


def test_access_from_many_threads(tmp_path: Path) -> None:
    payloads = [bytes([i]) * (i * 37) for i in range(200)]
    file = RecordFile(write(tmp_path / "shard", payloads))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(file.__getitem__, list(range(200)) * 5)) == payloads * 5


def test_access_like_a_list(tmp_path: Path) -> None:
    file = RecordFile(write(tmp_path / "shard", RECORDS))
    assert file[-1] == RECORDS[-1]
    with pytest.raises(IndexError):
        file[len(RECORDS)]
    assert list(pickle.loads(pickle.dumps(file))) == RECORDS


def test_a_damaged_record_is_named_by_its_number_however_it_is_asked_for(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "shard", RECORDS))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(RecordError) as caught:
        RecordFile(str(path))[-1]
    assert caught.value.record == len(RECORDS) - 1


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    code = (
        "import sys, resource\nfrom resnet_tpu.data.records.tfrecord import RecordFile, RecordWriter\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "paths = [f'{sys.argv[1]}/shard-{i}' for i in range(260)]\n"
        "for i, path in enumerate(paths):\n"
        "    with RecordWriter(path) as writer: writer.write(b'%d' % i)\n"
        "files = [RecordFile(path) for path in paths]\n"
        "assert [file[0] for file in files] == [b'%d' % i for i in range(260)]\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_buckets(own_cache: Path) -> None:
    path = "memory://bucket/shard"
    with RecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    assert list(read_records(path)) == RECORDS
    assert list(RecordFile(path)) == RECORDS
    assert len(list((own_cache / "resnet_tpu" / "index").iterdir())) == 1


def test_files_without_records_are_refused(tmp_path: Path) -> None:
    for read in (RecordFile, load_index, lambda path: list(read_records(path))):
        with pytest.raises(UserError, match=r"File .*missing: got No such file"):
            read(str(tmp_path / "missing"))
    (tmp_path / "text").write_text("no records in here")
    with pytest.raises(RecordError, match=r"Record 0 of .* at byte 0"):
        RecordFile(str(tmp_path / "text"))
    (tmp_path / "zip").write_bytes(b"\x1f\x8b" + bytes(50))
    with pytest.raises(RecordError, match="gzip-compressed"):
        RecordFile(str(tmp_path / "zip"))
    (tmp_path / "empty").write_bytes(b"")  # the original's trailing shards can be empty
    assert list(RecordFile(str(tmp_path / "empty"))) == []


def test_errors_cross_processes() -> None:
    error = RecordError("shard", 3, 77, "this", "that")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path, again.record, again.offset) == (str(error), "shard", 3, 77)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(st.integers(0, 2**32 - 1), st.binary(max_size=40), st.integers(0, 40).map(bytes)), max_size=8)
)
def test_every_sound_header_is_found_and_nothing_else(parts: list[int | bytes]) -> None:
    data = b"".join(b"".join(framed_length(part)) if isinstance(part, int) else part for part in parts)
    expected = [
        (at, int.from_bytes(data[at : at + 4], "little"))
        for at in range(len(data) - 11)
        if data[at + 4 : at + 8] == bytes(4)
        and masked_crc(data[at : at + 8]).to_bytes(4, "little") == data[at + 8 : at + 12]
    ]
    assert list(tfrecord._headers(data)) == expected


def framed_length(length: int) -> tuple[bytes, bytes]:
    packed = length.to_bytes(8, "little")
    return packed, masked_crc(packed).to_bytes(4, "little")


@pytest.mark.parametrize("tail", [bytes(1 << 22), b"\0\0\0\0\1" * (1 << 19)], ids=["zeros", "almost zeros"])
def test_a_file_that_ends_in_zeros_is_scanned_in_few_operations(
    tmp_path: Path, tail: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "shard", RECORDS)
    index_of(path).unlink()
    with Path(path).open("ab") as file:
        file.write(tail)
    calls = 0

    def counted(data: bytes) -> int:
        nonlocal calls
        calls += 1
        return masked_crc(data)

    monkeypatch.setattr(tfrecord, "masked_crc", counted)
    kept, damage = read_around(path)
    assert kept == RECORDS
    assert len(damage) == 1
    assert calls < 100  # one per position would be millions


@pytest.mark.parametrize("lengths", [(2**63 - 1, 2**63 - 1, 9), (-8, 20, 0), (2**62, 2**62, -(2**62))])
def test_an_index_whose_sums_overflow_is_not_believed(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    payloads = [b"abc", b"defgh", b""]
    path = write(tmp_path / "shard", payloads)
    state = storage.file_state(path)
    rows = np.array([(0, length) for length in lengths], np.int64)
    with np.errstate(over="ignore"):
        rows[1:, 0] = np.cumsum(rows[:-1, 1] + 16)
        rows[:, 0] += 12
        rows[2, 1] = state[0] - 4 - rows[2, 0]
    index_of(path).write_bytes(index._npy(np.array([state, *rows.tolist()], np.int64)))
    assert list(RecordFile(path)) == payloads
