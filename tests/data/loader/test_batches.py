"""Batches: exact and complete, and nothing continues after their end."""

import dataclasses
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from resnet_tpu.data.loader.batches import Batch, Batches, eval_batches, train_batches
from resnet_tpu.data.loader.order import random_at, record_at_position
from resnet_tpu.data.loader.worker_choice import kind_of_workers
from resnet_tpu.data.pixels.augment import augment
from resnet_tpu.data.pixels.decode import DecodeError, decode
from resnet_tpu.data.pixels.preprocess import eval_image, train_image
from resnet_tpu.data.records import pieces
from resnet_tpu.data.records.tfrecord import RecordError
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.data.sources.tfrecords import RecordSource
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.parallel import meshes, placement

SIZE = 16


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads_left()


def threads_left() -> list[str]:
    """The loader's threads that do not end within 20 s."""
    deadline = time.monotonic() + 20
    while (left := loader_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "loader" in thread.name]


def config(data_dir: Path | str, **options: Any) -> DataConfig:
    defaults: dict[str, Any] = {"image_size": SIZE, "num_label_classes": 37, "num_parallel_calls": 2}
    return DataConfig(data_dir=str(data_dir), **(defaults | options))


def take(batches: Batches, count: int) -> list[Batch]:
    with batches:
        return [next(batches) for _ in range(count)]


def assert_same(a: list[Batch], b: list[Batch]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def joined(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


# ---------------------------------------------------------------------------------------------------------- training


def test_training_batches_hold_what_the_order_says(records: Path, encoded: list[bytes]) -> None:
    data = config(records)
    found = joined(take(train_batches(open_source(data, "train"), data, batch_size=20, seed=5), 4))
    assert {name: array.dtype for name, array in found.items()} == {
        "image": np.uint8, "label": np.int32, "weight": np.float32
    }  # fmt: skip
    out = np.empty((SIZE, SIZE, 3), np.uint8)
    for position in range(80):
        record = record_at_position(position, num_records=37, seed=5)
        train_image(encoded[record], SIZE, random_at(position, seed=5), out)
        np.testing.assert_array_equal(found["image"][position], out)
        assert found["label"][position] == record
    assert (found["weight"] == 1).all()
    for epoch in range(2):
        assert sorted(found["label"][37 * epoch : 37 * (epoch + 1)]) == list(range(37))


@pytest.mark.parametrize("batch_size", [20, 50])
def test_number_of_threads_changes_nothing(records: Path, batch_size: int) -> None:
    def run(threads: int) -> list[Batch]:
        data = config(records, num_parallel_calls=threads)
        return take(train_batches(open_source(data, "train"), data, batch_size=batch_size, seed=1), 4)

    expected = run(1)
    for threads in (2, 8):
        assert_same(run(threads), expected)


@pytest.mark.parametrize("options", [{"input_workers": "processes"}, {"input_pipeline": "basic"}])
def test_kind_of_workers_changes_nothing(damaged: Path, options: dict[str, Any]) -> None:
    def run(**options: Any) -> tuple[list[Batch], dict[str, int], list[Batch], dict[str, int]]:
        data = config(damaged, skip_bad_records=True, augment_name="randaugment", random_erasing=0.5, **options)
        source = open_source(data, "train")
        with train_batches(source, data, batch_size=20, seed=1, start_position=10) as training:
            first = [next(training) for _ in range(4)]
        evaluation = eval_batches(source, data, batch_size=16)
        return first, training.skipped, list(evaluation), evaluation.skipped

    expected, found = run(), run(**options)
    assert_same(found[0] + found[2], expected[0] + expected[2])
    assert found[1::2] == expected[1::2]
    assert expected[1]
    assert expected[3]


@pytest.mark.parametrize(
    ("options", "trains", "expected"),
    [
        ({"num_parallel_calls": 8}, True, "threads"),
        ({"num_parallel_calls": 9}, True, "processes"),
        ({"num_parallel_calls": 9}, False, "threads"),
        ({"num_parallel_calls": 9, "input_pipeline": "basic"}, True, "threads"),
        ({"num_parallel_calls": 9, "input_workers": "threads"}, True, "threads"),
        ({"num_parallel_calls": 1, "input_workers": "processes"}, False, "processes"),
    ],
)
def test_many_workers_of_a_training_are_processes(
    records: Path, options: dict[str, Any], trains: bool, expected: str
) -> None:
    data = config(records, **options)
    assert kind_of_workers(data, open_source(data, "train"), trains=trains) == expected


def test_threads_read_what_is_no_file_of_this_machine() -> None:
    assert kind_of_workers(config("null", num_parallel_calls=9), SlowSource()) == "threads"
    asked = config("null", input_workers="processes")  # of the training: a photo afterwards is not worth any
    assert kind_of_workers(asked, SlowSource(), trains=False) == "threads"


def test_batches_keep_what_they_hold(records: Path) -> None:
    data = config(records)
    batches = train_batches(open_source(data, "train"), data, batch_size=20, seed=1)
    kept = [next(batches) for _ in range(8)]
    copies = [{name: array.copy() for name, array in batch.items()} for batch in kept]
    last_image, label = kept[0]["image"][-1], kept[1]["label"]  # a view keeps the whole array
    del kept[:2]
    for _ in range(8):
        next(batches)
    batches.close()
    assert_same(kept, copies[2:])
    np.testing.assert_array_equal(last_image, copies[0]["image"][-1])
    np.testing.assert_array_equal(label, copies[1]["label"])


@pytest.mark.parametrize("devices", [1, 8])
def test_jax_may_keep_the_memory_of_a_batch(records: Path, devices: int) -> None:
    data, mesh = config(records, image_size=64), meshes.make_mesh(devices)
    source = open_source(data, "train")
    with train_batches(source, data, batch_size=64, seed=1) as batches:
        on_device = [placement.put_batch(next(batches), mesh) for _ in range(4)]
        expected = take(train_batches(source, data, batch_size=64, seed=1), 4)
        for _ in range(12):
            placement.put_batch(next(batches), mesh)
    assert_same([{name: np.asarray(array) for name, array in batch.items()} for batch in on_device], expected)


AUGMENTED: list[dict[str, Any]] = [
    {"augment_name": "randaugment"},
    {"augment_name": "autoaugment", "augment_flavor": "corrected"},
    {"augment_name": "randaugment", "randaug_num_layers": 1, "random_erasing": 0.5},
]


@pytest.mark.parametrize("options", AUGMENTED)
def test_augmentation_follows_the_same_crops_and_flips(
    records: Path, encoded: list[bytes], options: dict[str, Any]
) -> None:
    def run(**options: Any) -> Batch:
        data = config(records, **options)
        return joined(take(train_batches(open_source(data, "train"), data, batch_size=20, seed=5), 4))

    plain, expected = run(), run(num_parallel_calls=1, **options)
    for threads in (2, 4):
        assert_same([run(num_parallel_calls=threads, **options)], [expected])
    out = np.empty((SIZE, SIZE, 3), np.uint8)
    for position in range(80):
        rng = random_at(position, seed=5)
        train_image(encoded[expected["label"][position]], SIZE, rng, out)
        np.testing.assert_array_equal(plain["image"][position], out)
        np.testing.assert_array_equal(expected["image"][position], augment(out, rng, config(records, **options)))


def test_augmentation_is_for_photos_in_training() -> None:
    options: dict[str, Any] = {"augment_name": "randaugment", "random_erasing": 1.0}
    data = config("synthetic", num_train_images=20)
    augmented = dataclasses.replace(data, **options)
    batches = [take(train_batches(open_source(d, "train"), d, batch_size=20, seed=0), 2) for d in (data, augmented)]
    assert_same(*batches)


def test_evaluation_is_never_augmented(records: Path) -> None:
    data = config(records)
    augmented = config(records, augment_name="randaugment", random_erasing=1.0)
    batches = [list(eval_batches(open_source(d, "validation"), d, batch_size=20)) for d in (data, augmented)]
    assert_same(*batches)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pieces so small that each file of some kilobytes has several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 5000)


@pytest.mark.parametrize("data_order", ["records", "pieces"])
@pytest.mark.usefixtures("small_pieces")
def test_resuming_at_any_step_gives_the_same_batches(records: Path, data_order: str) -> None:
    data = config(records, data_order=data_order)
    source = open_source(data, "train")
    whole = take(train_batches(source, data, batch_size=10, seed=1), 9)
    for step in (1, 3, 4, 8):
        rest = take(train_batches(source, data, batch_size=10, seed=1, start_position=10 * step), 9 - step)
        assert_same(rest, whole[step:])


def test_the_order_of_records_is_the_same_for_any_batch_size(records: Path) -> None:
    data = config(records)
    source = open_source(data, "train")
    whole = take(train_batches(source, data, batch_size=10, seed=1), 9)
    halves = take(train_batches(source, data, batch_size=5, seed=1, start_position=30), 12)
    np.testing.assert_array_equal(joined(halves)["image"], joined(whole[3:])["image"])


@pytest.mark.usefixtures("small_pieces")
def test_pieces_in_an_order_of_their_own(records: Path) -> None:
    data = config(records, data_order="pieces")
    source = open_source(data, "train")
    assert isinstance(source, RecordSource)
    assert 3 < len(source.first_records()) < len(source)
    found = joined(take(train_batches(source, data, batch_size=8, seed=1), 10))["label"]
    true = joined(take(train_batches(source, config(records), batch_size=8, seed=1), 10))["label"]
    assert sorted(found[:37]) == sorted(found[37:74]) == list(range(37))
    assert not np.array_equal(found, true)
    with pytest.raises(UserError, match="data_order: got pieces for synthetic, expected TFRecords"):
        train_batches(
            open_source(config("synthetic"), "train"), config("synthetic", data_order="pieces"), batch_size=8, seed=1
        )


@pytest.mark.parametrize("data_order", ["records", "pieces"])
@pytest.mark.parametrize("num_hosts", [2, 3])
@pytest.mark.usefixtures("small_pieces")
def test_slices_of_hosts_make_up_the_batch(records: Path, num_hosts: int, data_order: str) -> None:
    data = config(records, data_order=data_order)
    source = open_source(data, "train")
    whole = take(train_batches(source, data, batch_size=36, seed=1), 3)
    hosts = [
        take(train_batches(source, data, batch_size=36, seed=1, host_index=host, num_hosts=num_hosts), 3)
        for host in range(num_hosts)
    ]
    assert_same([joined(list(parts)) for parts in zip(*hosts, strict=True)], whole)


def test_hosts_must_share_the_batch(records: Path) -> None:
    data = config(records)
    source = open_source(data, "train")
    with pytest.raises(UserError, match=r"train_batch_size: got 16, expected a multiple of 3 hosts\. Use 15\."):
        train_batches(source, data, batch_size=16, seed=0, num_hosts=3)
    with pytest.raises(UserError, match=r"eval_batch_size: got 2, expected a multiple of 3 hosts\. Use 3\."):
        eval_batches(source, data, batch_size=2, num_hosts=3)


# -------------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize(("batch_size", "num_hosts"), [(16, 1), (16, 2), (18, 3), (37, 1), (1, 1), (100, 1)])
def test_evaluation_counts_every_example_once(
    records: Path, encoded: list[bytes], batch_size: int, num_hosts: int
) -> None:
    data = config(records)
    source = open_source(data, "validation")
    hosts = [
        list(eval_batches(source, data, batch_size=batch_size, host_index=host, num_hosts=num_hosts))
        for host in range(num_hosts)
    ]
    assert {len(batches) for batches in hosts} == {-(-37 // batch_size)}
    found = joined([joined(list(parts)) for parts in zip(*hosts, strict=True)])
    assert len(found["label"]) == batch_size * -(-37 // batch_size)
    assert found["weight"].sum() == 37
    seen = found["weight"] == 1
    assert found["label"][seen].tolist() == list(range(37))
    assert not found["image"][~seen].any()
    assert not found["label"][~seen].any()
    out = np.empty((SIZE, SIZE, 3), np.uint8)
    for image, photo in zip(found["image"][seen], encoded, strict=True):
        eval_image(photo, SIZE, out)
        np.testing.assert_array_equal(image, out)


def test_rows_without_an_example_are_black_in_memory_that_was_used_before(records: Path) -> None:
    data = config(records, input_pipeline="basic")
    last: Batch = {}
    for batch in eval_batches(open_source(data, "validation"), data, batch_size=8):
        last = {name: array.copy() for name, array in batch.items()}
    assert last["weight"].tolist() == [1] * 5 + [0] * 3
    assert last["image"][:5].any((1, 2, 3)).all()
    assert not last["image"][5:].any()


@pytest.mark.parametrize("pipeline", ["optimized", "basic"])
def test_evaluation_with_pil_preprocessing(records: Path, encoded: list[bytes], pipeline: str) -> None:
    data = config(records, eval_preprocessing="pil", crop_pct=0.95, input_pipeline=pipeline)
    found = joined(list(eval_batches(open_source(data, "validation"), data, batch_size=37)))
    out = np.empty((SIZE, SIZE, 3), np.uint8)
    for image, photo in zip(found["image"], encoded, strict=True):
        eval_image(photo, SIZE, out, crop_pct=0.95, preprocessing="pil")
        np.testing.assert_array_equal(image, out)


@pytest.mark.parametrize("count", [1, 16, 20, 37])
def test_evaluation_of_some_images(records: Path, count: int) -> None:
    data = config(records)
    source = evenly_spaced(open_source(data, "validation"), count)
    found = joined(list(eval_batches(source, data, batch_size=8)))
    assert found["label"][found["weight"] == 1].tolist() == [source[i].label for i in range(count)]
    assert len(found["label"]) == 8 * -(-count // 8)


def test_photos_and_their_records_give_the_same_pixels(
    class_folders: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    run(class_folders, tmp_path / "out")
    pixels = []
    for folder in (class_folders, tmp_path / "out"):
        data = config(folder, num_label_classes=None)
        found = joined(list(eval_batches(open_source(data, "train"), data, batch_size=32)))
        pixels.append(sorted(zip(found["label"].tolist(), map(bytes, found["image"]), strict=True)))
    assert pixels[0] == pixels[1]


def test_rotated_photos_are_upright_in_folders_only(
    tmp_path: Path, draw: Callable[..., Path], write_shards: Callable[..., None]
) -> None:
    exif = bytes.fromhex("45786966000049492a0008000000010012010300010000000600000000000000")  # orientation 6
    for name in ("a/1.jpg", "b/1.jpg"):
        draw(tmp_path / "train" / name, size=(40, 20), exif=exif)
    data = config(tmp_path, num_label_classes=None)
    (batch,) = eval_batches(open_source(data, "train"), data, batch_size=2)
    stored = (tmp_path / "train/a/1.jpg").read_bytes()
    upright, lying = np.empty((2, SIZE, SIZE, 3), np.uint8)
    eval_image(stored, SIZE, upright, honour_exif=True)
    eval_image(stored, SIZE, lying)
    assert decode(stored, honour_exif=True).shape == (40, 20, 3)
    np.testing.assert_array_equal(batch["image"][0], upright)
    assert (upright != lying).any()
    write_shards(tmp_path / "train", [stored])
    data = config(tmp_path / "train", num_label_classes=2)
    (batch,) = eval_batches(open_source(data, "validation"), data, batch_size=1)
    np.testing.assert_array_equal(batch["image"][0], lying)
    (batch,) = take(train_batches(open_source(data, "train"), data, batch_size=1, seed=5), 1)
    train_image(stored, SIZE, random_at(0, seed=5), lying)
    np.testing.assert_array_equal(batch["image"][0], lying)


@pytest.mark.parametrize("data_dir", ["null", "synthetic"])
def test_made_up_images_are_taken_as_they_are(data_dir: str) -> None:
    data = config(data_dir, num_train_images=5, num_eval_images=5)
    (batch,) = eval_batches(open_source(data, "validation"), data, batch_size=8)
    source = open_source(data, "validation")
    np.testing.assert_array_equal(batch["image"][:5], [source[i].encoded for i in range(5)])
    assert batch["weight"].tolist() == [1] * 5 + [0] * 3
    (batch,) = take(train_batches(open_source(data, "train"), data, batch_size=10, seed=0), 1)
    assert sorted(batch["label"].tolist()) == ([0] * 10 if data_dir == "null" else [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])


# ------------------------------------------------------------------------------------------------- damage and the end


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_damage_stops_with_its_place(damaged: Path, kind: str) -> None:
    data = config(damaged, input_workers=kind)
    source = open_source(data, "validation")
    with pytest.raises(RecordError, match=r"^Record 5 of .*validation-00000-of-00003 at byte \d+: got a payload"):
        list(eval_batches(source, data, batch_size=16))
    data = config(damaged)

    class Rest:
        class_names, num_classes, honour_exif = None, 37, False

        def __len__(self) -> int:
            return len(source) - 6

        def __getitem__(self, i: int) -> Sample:
            return source[i + 6]

        def where(self, i: int) -> str:
            return source.where(i + 6)

    place = r"^Image in record 7 of .*validation-00001-of-00003 at byte \d+: got a JPEG that breaks off"
    with pytest.raises(DecodeError, match=place):
        list(eval_batches(Rest(), data, batch_size=16))


def test_skipped_examples_have_no_weight_in_evaluation(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = config(damaged, skip_bad_records=True)
    batches = eval_batches(open_source(data, "validation"), data, batch_size=16)
    first = next(batches)
    assert batches.skipped.total() == 1  # only those in batches already returned, not those read ahead
    found = joined([first, *batches])
    assert np.flatnonzero(found["weight"][:37] == 0).tolist() == [5, 20, 21]
    assert found["weight"].sum() == 34
    assert not found["image"][found["weight"] == 0].any()
    assert batches.skipped.total() == 3
    assert sorted(message.split(" of ")[0] for message in batches.skipped) == [
        "Image in record 7", "Image in record 8", "Record 5"
    ]  # fmt: skip
    *named, total = (record.getMessage() for record in caplog.records)
    assert [line.removeprefix("Left out: ") for line in named] == list(batches.skipped)
    assert total == "Damaged images left out: 3"
    assert "skip_bad_records" not in caplog.text  # it is set already


def test_of_many_skipped_examples_some_are_named(
    tmp_path: Path, write_shards: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    write_shards(tmp_path, [b"no image"] * 37)
    data = config(tmp_path, skip_bad_records=True)
    list(eval_batches(open_source(data, "validation"), data, batch_size=16))
    *named, total = (record.getMessage() for record in caplog.records)
    assert len(set(named)) == len(named) == 5
    assert total == "Damaged images left out: 37"


@pytest.mark.parametrize("threads", [1, 8])
def test_training_puts_the_next_record_in_place_of_a_skipped_one(
    damaged: Path, encoded: list[bytes], threads: int
) -> None:
    data = config(damaged, skip_bad_records=True, num_parallel_calls=threads)
    with train_batches(open_source(data, "train"), data, batch_size=37, seed=1) as batches:
        first = next(batches)
        assert batches.skipped.total() == 4  # the search from 20 to 22 meets 21 too
        found = joined([first, next(batches)])
        assert batches.skipped.total() == 8
    order = [record_at_position(position, num_records=37, seed=1) for position in range(74)]
    instead = {5: 6, 20: 22, 21: 22}
    assert found["label"].tolist() == [instead.get(record, record) for record in order]
    assert (found["weight"] == 1).all()
    position = order.index(5)
    out = np.empty((SIZE, SIZE, 3), np.uint8)
    train_image(encoded[6], SIZE, random_at(position, seed=1), out)
    np.testing.assert_array_equal(found["image"][position], out)


def test_the_first_record_takes_the_place_of_a_damaged_last_one(
    tmp_path: Path, encoded: list[bytes], write_shards: Callable[..., None]
) -> None:
    write_shards(tmp_path, [*encoded[:-1], b"no image"])
    data = config(tmp_path, skip_bad_records=True)
    (found,) = take(train_batches(open_source(data, "train"), data, batch_size=37, seed=1), 1)
    order = [record_at_position(position, num_records=37, seed=1) for position in range(37)]
    assert found["label"].tolist() == [record % 36 for record in order]


def test_nothing_but_damage_is_an_error(tmp_path: Path, write_shards: Callable[..., None]) -> None:
    write_shards(tmp_path, [b"no image"] * 37)
    data = config(tmp_path, skip_bad_records=True)
    with pytest.raises(UserError, match="got 37 damaged records in a row, expected records that can be read"):
        next(train_batches(open_source(data, "train"), data, batch_size=8, seed=0))


def test_a_photo_that_cannot_be_read_is_skipped_where_that_is_allowed(class_folders: Path) -> None:
    for number in range(20):
        photo = class_folders / "cat" / f"{number:03}.jpg"
        photo.unlink()
        photo.symlink_to("nowhere")
    data = config(class_folders, skip_bad_records=True, num_label_classes=None)
    (batch,) = take(train_batches(open_source(data, "train"), data, batch_size=20, seed=5), 1)
    assert {*batch["label"]} == {1, 2}


@pytest.mark.parametrize(
    ("code", "expected"), [(errno.ESTALE, "a disk that can be reached"), (errno.EMFILE, "a free file descriptor")]
)
def test_photos_that_cannot_be_reached_are_never_skipped(
    class_folders: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: str
) -> None:
    data = config(class_folders, skip_bad_records=True, num_label_classes=None)
    source = open_source(data, "train")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=OSError(code, os.strerror(code))))
    with pytest.raises(UserError, match=f"expected {expected}"):
        next(train_batches(source, data, batch_size=20, seed=5))


def test_wrong_labels_are_never_skipped(records: Path) -> None:
    data = config(records, num_label_classes=30, skip_bad_records=True)
    with pytest.raises(
        UserError, match=r"Label in record 4 of .*00002-of-00003 at byte \d+: got 31, expected 1 ... 30"
    ):
        list(eval_batches(open_source(data, "validation"), data, batch_size=16))


class SlowSource:
    """Slow images, one of which fails with an error that does not mean damage."""

    class_names, num_classes, honour_exif = None, 10, False

    def __init__(self, failing: int | None = None) -> None:
        self.failing, self.read = failing, 0

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, i: int) -> Sample:
        if i == self.failing:
            raise UserError("Image 40", "nothing", "something", "Look again.")
        self.read += 1
        time.sleep(0.002)
        return Sample(np.zeros((SIZE, SIZE, 3), np.uint8), 0, "")

    def where(self, i: int) -> str:
        return str(i)


def test_errors_of_threads_reach_the_caller_in_turn() -> None:
    data = config("null", num_parallel_calls=4)
    batches = eval_batches(SlowSource(failing=40), data, batch_size=16)
    for _ in range(2):
        assert next(batches)["weight"].sum() == 16
    with pytest.raises(UserError, match=r"Image 40: got nothing, expected something\. Look again\."):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_reading_ahead_is_bounded_and_stops_when_closed() -> None:
    source = SlowSource()
    batches = eval_batches(source, config("null", num_parallel_calls=4), batch_size=32)
    next(batches)
    before = -1
    while source.read > before:  # threads that read without a bound would go on to the end
        before = source.read
        time.sleep(0.2)
    batches.close()
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
    assert not threads_left()
    assert source.read <= 32 + 32 + 2 * 4 * 32


def test_dropped_and_interrupted_iterators_stop() -> None:
    dropped = train_batches(SlowSource(), config("null"), batch_size=32, seed=0)
    next(dropped)
    assert loader_threads()
    del dropped
    batches = train_batches(SlowSource(), config("null"), batch_size=2048, seed=0)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    timer.join()


def test_closing_from_another_thread_ends_the_iteration() -> None:
    batches = train_batches(SlowSource(), config("null"), batch_size=512, seed=0)
    timer = threading.Timer(0.3, batches.close)
    timer.start()
    assert len(list(batches)) <= 1
    timer.join()


def test_threads_that_share_an_iterator_get_whole_batches(records: Path) -> None:
    data = config(records)
    source = open_source(data, "train")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as if there were many cores
    try:
        with train_batches(source, data, batch_size=40, seed=0) as batches, ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: next(batches)["image"].copy(), range(24)))
    finally:
        sys.setswitchinterval(before)
    expected = take(train_batches(source, data, batch_size=40, seed=0), 24)
    assert {image.tobytes() for image in found} == {batch["image"].tobytes() for batch in expected}
