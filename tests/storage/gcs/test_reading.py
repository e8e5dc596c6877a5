"""Records in a bucket: the same as on disk, with far fewer requests than records."""

import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu import storage
from resnet_tpu.data.loader import order_choice
from resnet_tpu.data.loader.ahead import ReadAhead, by_segments
from resnet_tpu.data.loader.batches import eval_batches, train_batches
from resnet_tpu.data.loader.order_choice import choose_order, piece_order
from resnet_tpu.data.records import pieces
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordError, RecordFile, RecordWriter
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.source import Sample, Source
from resnet_tpu.data.sources.tfrecords import RemoteRecordSource
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

Bucket = Any  # of conftest.py
NUM_FILES, NUM_RECORDS = 3, 40  # of each
SIZE = 8


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records on disk with PNGs of noise, of which the last are large."""
    cv2 = pytest.importorskip("cv2")
    folder = tmp_path_factory.mktemp("near")
    rng = np.random.default_rng(0)
    for number in range(NUM_FILES):
        with RecordWriter(str(folder / f"train-{number:05d}-of-{NUM_FILES:05d}")) as writer:
            for record in range(NUM_RECORDS):
                side = 450 if record > NUM_RECORDS - 4 else 10
                encoded = cv2.imencode(".png", rng.integers(0, 256, (side, side, 3), np.uint8))[1].tobytes()
                writer.write(encode_example({"image/encoded": encoded, "image/class/label": 1 + record % 5}))
    return folder


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pieces so small that each of those files has several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 20)


@pytest.fixture
def far(bucket: Bucket, near: Path, tmp_path: Path) -> str:
    """The same records in the bucket, with their indexes next to them."""
    place = f"{bucket.url}/{tmp_path.name}"
    for path in near.glob("train-*"):
        with RecordWriter(f"{place}/{path.name}") as writer:
            for payload in _payloads(path):
                writer.write(payload)
    return place


def _payloads(path: Path) -> list[bytes]:
    return list(RecordFile(str(path)))


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DataConfig]:
    """Makes options for data in a folder or bucket; each test has its own local cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def options(place: object, **changes: Any) -> DataConfig:
        return DataConfig(**({"data_dir": str(place), "image_size": SIZE, "num_label_classes": 5} | changes))

    return options


def _all(source: Source) -> list[Any]:
    return [(sample.encoded, sample.label) for sample in map(source.__getitem__, range(len(source)))]


def _fetched(source: Source) -> list[Any]:
    assert isinstance(source, RemoteRecordSource)
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    samples = dict(zip(order, source.fetch(order), strict=True))
    return [(sample.encoded, sample.label) for _, sample in sorted(samples.items()) if isinstance(sample, Sample)]


@pytest.mark.parametrize("cache_folder", ["", "none"])
def test_records_are_as_on_the_disk(
    near: Path, far: str, options: Callable[..., DataConfig], cache_folder: str
) -> None:
    expected = _all(open_source(options(near), "train"))
    source = open_source(options(far, cache_folder=cache_folder), "train")
    assert _fetched(source) == expected
    assert _fetched(pickle.loads(pickle.dumps(source))) == expected
    assert _all(source) == expected


def test_batches_are_as_on_the_disk(near: Path, far: str, options: Callable[..., DataConfig]) -> None:
    def batches(place: object) -> list[Any]:
        data = options(place, num_parallel_calls=2)
        with train_batches(open_source(data, "train"), data, batch_size=16, seed=1) as training:
            return [next(training) for _ in range(9)]

    for expected, found in zip(batches(near), batches(far), strict=True):
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_a_piece_is_asked_for_once(bucket: Bucket, far: str, options: Callable[..., DataConfig]) -> None:
    bucket.faults()
    source = open_source(options(far), "train")
    assert bucket.requests()["media"] == NUM_FILES  # the indexes
    _fetched(source)
    files = [storage.file_state(f"{far}/{name}").size for name in storage.list_dir(far) if name.startswith("train-")]
    num_pieces = sum(-(-size // pieces.PIECE_BYTES) for size in files)
    assert NUM_FILES < num_pieces < NUM_FILES * 5
    assert bucket.requests()["media"] == NUM_FILES + num_pieces
    assert bucket.num_bytes() < sum(files) + 10_000
    bucket.faults()
    _fetched(open_source(options(far), "train"))  # as another run on this machine would
    assert "media" not in bucket.requests()


def test_without_a_cache_neighbours_are_asked_for_together(
    bucket: Bucket, far: str, options: Callable[..., DataConfig]
) -> None:
    data = options(far, cache_folder="none")
    source = open_source(data, "train")
    bucket.faults()
    with eval_batches(source, data, batch_size=40) as evaluation:
        assert sum(batch["weight"].sum() for batch in evaluation) == len(source)
    assert bucket.requests()["media"] < len(source) / 5


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes the disk seem too small, as a boot disk is for ImageNet."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))


@pytest.mark.usefixtures("no_room")
def test_where_there_is_no_room_nothing_is_kept(
    far: str, options: Callable[..., DataConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "resnet_tpu"):
        source = open_source(options(far, cache_folder=str(tmp_path / "kept")), "train")
    assert "more than half of the 0.0 GB that are free" in caplog.text
    _fetched(source)
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("num_hosts", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_without_room_a_training_reads_every_byte_once_in_an_epoch(
    bucket: Bucket, far: str, options: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch, num_hosts: int
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2000)
    monkeypatch.setattr(pieces, "_GAP", 100)  # these images are smaller than the gaps that are read along with them
    data, chunks = options(far), NUM_FILES * NUM_RECORDS // 8
    source = open_source(data, "train")
    assert isinstance(source, RemoteRecordSource)
    order = piece_order(source, data, batch_size=8, seed=0)
    rows = 8 // num_hosts
    bucket.faults()
    for host in range(num_hosts):

        def positions(chunk: int, host: int = host) -> range:
            return range(8 * chunk + rows * host, 8 * chunk + rows * (host + 1))

        reader = ReadAhead(source, None, by_segments(chunks, positions, order))
        for chunk in range(chunks):
            records = {position: order.record_at(position) for position in positions(chunk)}
            assert len(reader.take(chunk, records)) == rows
        reader.close()
    num_segments = len({order.segment_at(position) for position in range(len(source))})
    assert num_segments <= len(source.first_records()) + 8
    assert 0 < bucket.requests().pop("media") <= num_segments < len(source) / 3  # fewer where segments are adjacent
    assert bucket.num_bytes() <= source.num_bytes


@pytest.mark.long
@pytest.mark.usefixtures("no_room")
def test_without_room_batches_are_as_on_the_disk_in_that_order(
    bucket: Bucket, near: Path, far: str, options: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2000)

    def batches(place: object, **options_: Any) -> list[Any]:
        data = options(place, num_parallel_calls=2, **options_)
        with train_batches(open_source(data, "train"), data, batch_size=16, seed=1) as training:
            return [next(training) for _ in range(4)]

    expected = batches(near, data_order="pieces")
    for faults in ({}, {"busy": 0.02, "limited": 0.04, "slow": 0.3, "slow_secs": 0.05, "cut_body": 0.04}):
        bucket.faults(**faults)
        with caplog.at_level(logging.INFO, "resnet_tpu"):
            found = batches(far)
        assert "data_order=pieces: the data are not kept" in caplog.text
        for one, other in zip(expected, found, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("no_room")
def test_pieces_that_memory_could_not_hold_are_no_order(
    far: str, options: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = open_source(options(far), "train")
    caplog.clear()
    assert isinstance(source, RemoteRecordSource)
    num_bytes = source.num_bytes
    monkeypatch.setattr(order_choice, "free_memory", lambda: 2 * num_bytes)
    assert choose_order(source, options(far), rows=1) == "pieces"
    assert choose_order(source, options(far, cache="records"), rows=1) == "records"
    assert caplog.text == ""
    monkeypatch.setattr(order_choice, "free_memory", lambda: 1000)
    assert choose_order(source, options(far), rows=1) == "records"
    assert "image is read with its own request. data_order=pieces would need 0.0 GB for the 1 images" in caplog.text
    assert choose_order(source, options(far, data_order="pieces"), rows=1) == "pieces"


def test_a_piece_that_was_damaged_here_is_fetched_again(
    near: Path, far: str, options: Callable[..., DataConfig], tmp_path: Path
) -> None:
    data = options(far, cache_folder=str(tmp_path / "kept"))
    expected = _fetched(open_source(data, "train"))
    for piece in (tmp_path / "kept").glob("*/*"):
        piece.write_bytes(bytes(piece.stat().st_size))
    assert _fetched(open_source(data, "train")) == expected
    assert _fetched(open_source(data, "train")) == expected == _all(open_source(options(near), "train"))


def test_a_record_that_is_damaged_in_the_bucket_is_named(
    bucket: Bucket, far: str, options: Callable[..., DataConfig]
) -> None:
    name = f"{far}/train-00001-of-00003"
    bucket.faults(damage=[name.removeprefix("gs://bucket/")])
    source = open_source(options(far), "train")
    assert isinstance(source, RemoteRecordSource)
    bad = [found for found in source.fetch(range(len(source))) if isinstance(found, RecordError)]
    assert [(error.path, "checksum" in str(error)) for error in bad] == [(name, True)]


def test_a_new_version_of_a_file_takes_the_place_of_the_old(
    far: str, options: Callable[..., DataConfig], tmp_path: Path
) -> None:
    data = options(far, cache_folder=str(tmp_path / "kept"))
    _fetched(open_source(data, "train"))
    before = {path.name for path in (tmp_path / "kept").iterdir()}
    name = f"{far}/train-00000-of-00003"
    content = storage.read_bytes(name)
    with storage.write_whole(name) as file:
        file.write(content)
    _fetched(open_source(data, "train"))
    after = {path.name for path in (tmp_path / "kept").iterdir()}
    assert len(after) == len(before) == NUM_FILES
    assert len(after & before) == NUM_FILES - 1


def test_data_without_an_index_gets_one_on_this_machine(
    bucket: Bucket, near: Path, far: str, options: Callable[..., DataConfig]
) -> None:
    storage.remove_dir(f"{far}/_index")
    assert _fetched(open_source(options(far), "train")) == _all(open_source(options(near), "train"))
    assert not storage.exists(f"{far}/_index")
    bucket.faults()
    open_source(options(far), "train")
    assert "media" not in bucket.requests()


def test_what_is_read_is_kept_on_this_machine(far: str, options: Callable[..., DataConfig]) -> None:
    with pytest.raises(UserError, match=r"cache_folder: got gs://bucket/kept, expected a folder on this machine\."):
        open_source(options(far, cache_folder="gs://bucket/kept"), "train")


def test_a_folder_without_data_is_named(bucket: Bucket, options: Callable[..., DataConfig]) -> None:
    with pytest.raises(UserError, match="data_dir: got 'gs://bucket/nothing/here', expected an existing folder"):
        open_source(options(f"{bucket.url}/nothing/here"), "train")
    storage.write_text(f"{bucket.url}/texts/file.txt", "")
    with pytest.raises(UserError, match=r"gs://bucket/texts: got file\.txt, expected TFRecords named train-\*"):
        open_source(options(f"{bucket.url}/texts"), "train")
