"""Images from Bigtable through Google's client, with a local server that speaks the service's protocol."""

import importlib.util
import io
import logging
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
from rich.console import Console

from resnet_tpu import cli, resnet_main
from resnet_tpu.data.loader.batches import Batch, Batches, eval_batches, train_batches
from resnet_tpu.data.prepare.bigtable_writer import write_table
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordError, RecordWriter
from resnet_tpu.data.sources import bigtable_rows
from resnet_tpu.data.sources.bigtable import BigtableSource
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.performance.profiling.stages import sample_stages
from resnet_tpu.reports.metrics import read_metrics
from resnet_tpu.training.loop import train
from tests.comparisons import VARYING

pytest.importorskip("google.cloud.bigtable")

UNAVAILABLE, DENIED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED


def _server_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bigtable_server", Path(__file__).with_name("bigtable_server.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server that Google's client uses during a test."""
    server = _server_module().BigtableServer()
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{server.port}")
    yield server
    server.close()


def config(**options: Any) -> DataConfig:
    defaults: dict[str, Any] = {
        "bigtable_instance": "i", "bigtable_project": "p", "bigtable_table": "t", "image_size": 16,
        "num_label_classes": 37, "num_parallel_calls": 2,
    }  # fmt: skip
    return DataConfig(**(defaults | options))


def copy(folder: Path | str, *, overwrite: bool = False, **options: Any) -> int:
    return write_table(str(folder), config(**options), overwrite=overwrite, console=Console(quiet=True))


def example(i: int, encoded: bytes) -> bytes:
    return encode_example({"image/encoded": encoded, "image/class/label": i + 1, "image/filename": f"{i}.jpg"})


def take(batches: Batches, count: int | None = None) -> Batch:
    with batches:
        found = list(batches) if count is None else [next(batches) for _ in range(count)]
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def assert_same(one: Batch, other: Batch) -> None:
    for name in ("image", "label", "weight"):
        np.testing.assert_array_equal(one[name], other[name])


# ------------------------------------------------------------------------------------------------ the same as TFRecords


@pytest.fixture(params=["ours", pytest.param("google", marks=pytest.mark.peer)])
def any_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our server, and Google's emulator if it is installed."""
    if request.param == "ours":
        request.getfixturevalue("server")
        yield
        return
    listed = subprocess.run(
        ["dpkg", "-L", "google-cloud-cli-bigtable-emulator"], capture_output=True, text=True, check=False
    ) if shutil.which("dpkg") else None  # fmt: skip
    found = [line for line in (listed.stdout if listed else "").splitlines() if line.endswith("/cbtemulator")]
    if not (program := shutil.which("cbtemulator") or next(iter(found), None)):
        pytest.skip("Google's emulator of Bigtable is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([program, "-host=127.0.0.1", f"-port={port}"], stdout=subprocess.DEVNULL) as emulator:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{port}")
        request.node.user_properties.append(("peer", f"{Path(program).name} of Google"))
        yield
        emulator.kill()


def test_the_examples_of_a_table_are_those_of_the_records(
    any_server: None, class_folders: Path, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir(exist_ok=True)
    out = tmp_path / "out"
    words = ["prepare", str(class_folders), str(out), "--train_shards=3", "--workers=1"]
    assert cli.main([*words, "--bigtable_instance=i", "--bigtable_table=t", "--gcp_project=p"]) == 0
    for split in ("train", "validation", "test"):
        for labels in (None, 1001):
            table = open_source(config(num_label_classes=labels), split)
            records = open_source(DataConfig(data_dir=str(out), num_label_classes=labels), split)
            assert [table[i] for i in range(len(table))] == [records[i] for i in range(len(records))]
            assert table.class_names == records.class_names
            assert table.num_classes == records.num_classes
            assert isinstance(table, BigtableSource)
            assert table.fetch([1, 0, 1]) == [records[1], records[0], records[1]]
    assert [key.decode() for key in bigtable_rows.Rows(config(), "validation").scan()] == [
        f"validation_{i:010}" for i in range(len(open_source(config(), "validation")))
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(options, marks=pytest.mark.long)
            for options in (
                {"input_workers": "processes"},
                {"input_pipeline": "basic"},
                {"num_parallel_calls": 7},
                {"cache": "records"},
            )
        ),
    ],
    ids=str,
)
def test_batches_are_those_of_the_records(server: Any, records: Path, options: dict[str, Any]) -> None:
    copy(records)
    ours, theirs = config(**options), DataConfig(data_dir=str(records), image_size=16, num_label_classes=37)
    table, files = open_source(ours, "train"), open_source(theirs, "train")
    begun = server.calls["ReadRows"]
    for host in range(1 if options.get("input_workers") else 2):  # one host only: processes take seconds to start
        expected = take(train_batches(files, theirs, batch_size=40, seed=3, host_index=host, num_hosts=2), 5)
        found = take(train_batches(table, ours, batch_size=40, seed=3, host_index=host, num_hosts=2), 5)
        assert_same(expected, found)
    if not options:
        assert server.calls["ReadRows"] - begun < 60  # for at least 200 images and those read ahead


def test_evaluation_takes_every_row_once(server: Any, records: Path) -> None:
    copy(records)
    data, files = config(), DataConfig(data_dir=str(records), image_size=16, num_label_classes=37)
    found = [
        take(eval_batches(open_source(data, "validation"), data, batch_size=8, host_index=host, num_hosts=2))
        for host in range(2)
    ]
    labels = np.concatenate([batch["label"][batch["weight"] == 1] for batch in found])
    assert sorted(labels.tolist()) == list(range(37))
    expected = take(eval_batches(open_source(files, "validation"), files, batch_size=8))
    assert_same(expected, take(eval_batches(open_source(data, "validation"), data, batch_size=8)))


def test_the_profile_asks_for_many_rows_at_once(server: Any, records: Path) -> None:
    copy(records)
    table, files = config(), DataConfig(data_dir=str(records), image_size=16, num_label_classes=37)
    source = open_source(table, "train")
    begun = server.calls["ReadRows"]
    found = sample_stages(source, table, batch_size=64, seed=3, num_images=150)  # 8 for the warm-up, then 64 + 64 + 22
    assert server.calls["ReadRows"] - begun == 1 + 3
    expected = sample_stages(open_source(files, "train"), files, batch_size=64, seed=3, num_images=150)
    assert (found.encoded, found.sides) == (expected.encoded, expected.sides)
    assert [stage.name for stage in found.stages] == [s.name for s in expected.stages if s.name != "parse"]


def test_rows_in_the_cache_are_not_asked_for_again(server: Any, records: Path) -> None:
    copy(records)
    asked: list[bytes] = []
    server.on_call = lambda method, request: asked.extend(request.rows.row_keys) if method == "ReadRows" else None
    data = config(cache="decoded", num_parallel_calls=1)
    with train_batches(open_source(data, "train"), data, batch_size=37, seed=0) as batches:
        for _ in range(60):  # more than is read ahead
            next(batches)
        before = len(asked)
        for _ in range(10):
            next(batches)
    assert len(asked) == before


@pytest.mark.long
def test_training_from_a_table_is_training_from_the_records(server: Any, records: Path, tmp_path: Path) -> None:
    copy(records)
    server.failures["ReadRows"].extend([(0, UNAVAILABLE, "gone"), (3, UNAVAILABLE, "gone"), (1, UNAVAILABLE, "gone")])
    options: dict[str, Any] = {
        "image_size": 16, "num_label_classes": 37, "resnet_depth": 8, "resnet_width": 4, "train_batch_size": 16,
        "eval_batch_size": 16, "train_steps": 4, "steps_per_eval": 2, "iterations_per_loop": 2, "num_cores": 1,
    }  # fmt: skip
    table = {"bigtable_instance": "i", "bigtable_project": "p", "bigtable_table": "t"}
    for name, place in (("files", {"data_dir": str(records)}), ("table", table)):
        train(Config().replace(**options, **place, model_dir=str(tmp_path / name)))
    expected, found = (
        [{key: value for key, value in row.items() if key not in VARYING} for row in read_metrics(str(tmp_path / name))]
        for name in ("files", "table")
    )
    assert expected == found
    assert {row["split"] for row in found} == {"train", "eval"}
    assert not server.failures["ReadRows"]

    # a run remembers its table until other data are given
    before = server.calls["ReadRows"]
    assert cli.main(["eval", str(tmp_path / "table"), "--eval_batch_size=16"]) == 0
    after = server.calls["ReadRows"]
    assert after > before
    assert cli.main(["eval", str(tmp_path / "table"), "--eval_batch_size=16", f"--data_dir={records}"]) == 0
    assert server.calls["ReadRows"] == after


def test_the_flags_of_the_original() -> None:
    flags = [f"--bigtable_{name}=x" for name in ("instance", "table", "train_prefix", "eval_prefix", "column_family")]
    data = resnet_main.parse([*flags, "--bigtable_column_qualifier=y", "--project=p"])[0].data
    assert (data.bigtable_instance, data.bigtable_column_qualifier, data.gcp_project) == ("x", "y", "p")
    assert data.location == "bigtable://x/x"
    assert DataConfig(data_dir="photos").location == "photos"


# -------------------------------------------------------------------------------------------- tables that others wrote


def test_rows_of_another_table_are_numbered_by_their_index(
    server: Any, encoded: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    indexes = [12, 3, 0, 100, 1]
    for i in indexes:
        server.put("t", f"train_{i}", example(i, encoded[0]), time=1000)
    server.put("t", "train_3", example(35, encoded[1]), time=3000)  # newer
    server.put("t", "trait", b"")
    with caplog.at_level(logging.WARNING):
        source = open_source(config(num_label_classes=200), "train")
    assert [source[i].label for i in range(len(source))] == [0, 1, 35, 12, 100]
    assert "96 of the indexes from 0 to 100 have no row" in caplog.text
    assert source.class_names is None
    assert source.where(2) == "in row train_3 of Bigtable p/i/t"


def test_keys_without_an_index_come_in_the_order_of_their_bytes(server: Any, encoded: list[bytes]) -> None:
    names = ["b", "a", "10", "9", "c"]
    for i, name in enumerate(names):
        server.put("t", f"train_{name}", example(i, encoded[0]))
    source = open_source(config(), "train")
    assert [names[source[i].label] for i in range(5)] == sorted(names)


def test_keys_may_be_any_bytes(server: Any, encoded: list[bytes]) -> None:
    for key, value in ((b"train_a\xff", example(3, encoded[0])), (b"train_b\xff", b"damaged")):
        server.put("t", key, value)
    source = open_source(config(), "train")
    assert source.where(0) == r"in row train_a\xff of Bigtable p/i/t"
    assert source[0].label == 3
    with pytest.raises(UserError, match=r"Row train_b\\xff of Bigtable p/i/t: got"):
        _ = source[1]


def test_a_large_table_is_scanned_in_parts(server: Any) -> None:
    for i in range(100):
        server.put("t", f"train_{i:010}", example(0, b""))
        server.put("t", f"validation_{i:010}", example(0, b""))
    parts: list[Any] = []
    server.on_call = lambda method, request: method == "ReadRows" and parts.append(request)
    assert len(open_source(config(), "train")) == 100
    assert sum(bool(request.rows.row_ranges) for request in parts) >= 3


# ------------------------------------------------------------------------------------------------------- what is wrong


def test_damaged_rows_are_named(server: Any, encoded: list[bytes]) -> None:
    for i in range(5):
        server.put("t", f"train_{i:010}", example(i, encoded[i]))
    rows = server.make_table("t").rows
    rows[b"train_0000000001"].clear()
    server.put("t", "train_0000000001", b"x", column="tfexample:other")
    server.put("t", "train_0000000002", b"\xff\xff", time=5000)
    server.put("t", "train_0000000003", example(80, encoded[3]), time=5000)
    source = open_source(config(), "train")
    name = "Bigtable p/i/t"
    server.make_table("t").drop(b"train_0000000004")
    for i, message in (
        (1, (f"Row train_0000000001 of {name}: got a row with tfexample:other only, expected an example in "
             "tfexample:example. Write the table again, or pass --skip_bad_records to count such rows and continue.")),
        (2, f"Row train_0000000002 of {name}: got 2 bytes of another kind, expected a tf.train.Example. Write"),
        (4, f"Row train_0000000004 of {name}: got no such row, expected an example in tfexample:example."),
    ):  # fmt: skip
        with pytest.raises(RecordError) as caught:
            source[i]
        assert str(caught.value).startswith(message)
        assert str(caught.value.__reduce__()[0](*caught.value.__reduce__()[1])) == str(caught.value)
    with pytest.raises(UserError, match=rf"Label in row train_0000000003 of {name}: got 81, expected 1 ... 37"):
        source[3]


@pytest.mark.long
def test_damaged_rows_can_be_left_out(server: Any, encoded: list[bytes]) -> None:
    for i in range(10):
        value = example(i, encoded[i]) if i not in (0, 7) else b"\xff"
        server.put("t", f"train_{i:010}", value)
        server.put("t", f"validation_{i:010}", value)
    data = config(skip_bad_records=True)
    batches = train_batches(open_source(data, "train"), data, batch_size=10, seed=0)
    assert set(take(batches, 2)["label"].tolist()) == {1, 2, 3, 4, 5, 6, 8, 9}
    assert set(batches.skipped.values()) == {2}
    found = take(eval_batches(open_source(data, "validation"), data, batch_size=10))
    np.testing.assert_array_equal(found["weight"], [0, 1, 1, 1, 1, 1, 1, 0, 1, 1])
    batches = train_batches(open_source(config(), "validation"), config(), batch_size=10, seed=0)
    with batches, pytest.raises(RecordError):
        next(batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bigtable_table": ""}, "bigtable_table: got nothing, expected text of at least one character"),
        ({"bigtable_train_prefix": ""}, "bigtable_train_prefix: got nothing"),
        ({"bigtable_column_family": ""}, "bigtable_column_family: got nothing"),
        ({"bigtable_table": "u"}, "Bigtable p/i/u: got 404 table .* not found, .* Check bigtable_project"),
        ({"bigtable_train_prefix": "zug_"},
         "got none; the first row of the table is train_0000000000, expected rows whose keys begin with zug_"),
        ({"bigtable_column_qualifier": "image"},
         "Row train_0000000000 .* got a row with tfexample:example only, expected an example in tfexample:image"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refuses_options_that_do_not_fit_the_table(server: Any, options: dict[str, str], message: str) -> None:
    server.put("t", "train_0000000000", example(0, b""))
    with pytest.raises(UserError, match=message):
        open_source(config(**options), "train")


def test_an_empty_table(server: Any) -> None:
    server.make_table("t")
    with pytest.raises(
        UserError, match="Bigtable p/i/t: got an empty table, expected rows whose keys begin with test_"
    ):
        open_source(config(), "test")


def test_a_missing_role_is_named(server: Any, records: Path) -> None:
    copy(records)
    server.failures["ReadRows"].append((0, DENIED, "no bigtable.tables.readRows"))
    with pytest.raises(UserError, match=r"403 no bigtable.tables.readRows, expected the role roles/bigtable.reader"):
        open_source(config(), "train")
    server.failures["GetTable"].append((0, DENIED, "no bigtable.tables.get"))
    with pytest.raises(UserError, match=r"expected the role roles/bigtable.admin\. Give the account the role"):
        copy(records, bigtable_table="new")


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BIGTABLE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    for options in ({}, {"bigtable_project": ""}):
        with pytest.raises(UserError, match=r"key.json was not found, expected credentials.*gcloud auth application"):
            open_source(config(**options), "train")


def test_a_service_that_stays_away_ends_the_training(
    server: Any, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(records)
    monkeypatch.setattr(bigtable_rows, "_PATIENCE_SECS", 0.2)
    data = config()
    with train_batches(open_source(data, "train"), data, batch_size=37, seed=0) as batches:
        next(batches)
        server.close()
        with pytest.raises(UserError, match=r"Bigtable p/i/t: got .*expected an answer from the service"):
            for _ in range(1000):
                next(batches)


def test_closing_does_not_wait_for_an_answer(server: Any, records: Path) -> None:
    copy(records)
    data, answer, asked = config(), threading.Event(), threading.Event()
    source = open_source(data, "train")
    server.on_call = lambda method, request: (asked.set(), answer.wait(60))
    batches = train_batches(source, data, batch_size=37, seed=0)
    reader = threading.Thread(target=lambda: list(batches))
    reader.start()
    assert asked.wait(60)
    batches.close()
    reader.join(30)
    assert not reader.is_alive()
    answer.set()


# ------------------------------------------------------------------------------------------------------------- writing


def test_what_is_interrupted_is_continued(server: Any, records: Path) -> None:
    server.failures["MutateRows"].extend([(0, UNAVAILABLE, "busy"), (0, grpc.StatusCode.INVALID_ARGUMENT, "no")])
    with pytest.raises(UserError, match="Bigtable p/i/t: got 400 no"):
        copy(records)
    with pytest.raises(
        UserError, match="what an interrupted `prepare` left behind: 0 of 37 train rows, expected a fin"
    ):
        open_source(config(), "train")
    calls = server.calls["MutateRows"]
    server.failures["MutateRows"].append((0, UNAVAILABLE, "busy"))
    assert copy(records) == 2 * 37
    assert server.calls["MutateRows"] - calls == 6 + 1  # one per file, and one retry
    table, files = (open_source(data, "train") for data in (config(), DataConfig(data_dir=str(records), num_label_classes=37)))  # fmt: skip  # noqa: E501
    assert [table[i] for i in range(37)] == [files[i] for i in range(37)]
    assert copy(records) == 0


def test_a_write_goes_on_after_the_last_finished_file(server: Any, records: Path) -> None:
    seen: list[bytes] = []

    def watch(method: str, request: Any) -> None:
        if method == "MutateRows":
            seen.extend(entry.row_key for entry in request.entries)
            if len(seen) > 20:
                server.failures["MutateRow"].append((0, DENIED, "no more"))

    server.on_call = watch
    with pytest.raises(UserError, match=r"no more, expected the role roles/bigtable.user"):
        copy(records)
    server.on_call, written = lambda method, request: None, len(seen)
    assert written == 26
    server.failures.clear()
    assert copy(records) == 2 * 37 - 13  # the first file is known to be complete


def test_rows_of_other_data_stay_unless_told_otherwise(server: Any, records: Path, tmp_path: Path) -> None:
    copy(records)
    other = tmp_path / "other"
    other.mkdir()
    with RecordWriter(str(other / "train-00000-of-00001")) as writer:
        writer.write(example(9, b"other"))
    with pytest.raises(
        UserError, match="rows of other data with the prefix train_, such as train_0000000000, expected"
    ):
        copy(other)
    assert len(open_source(config(), "train")) == 37
    assert copy(other, overwrite=True) == 1
    assert [sample.label for sample in iter_samples(config(), "train")] == [9]
    assert len(bigtable_rows.Rows(config(), "train").scan()) == 1
    assert len(open_source(config(), "validation")) == 37
    said = io.StringIO()
    write_table(str(other), config(bigtable_train_prefix="other_"), console=Console(file=said, width=300))
    assert "has no validation split: the table keeps the 37 validation rows" in said.getvalue()
    assert len(open_source(config(bigtable_train_prefix="other_"), "train")) == 1


def test_rows_that_were_about_to_be_deleted_are_deleted_by_the_next_call(
    server: Any, records: Path, tmp_path: Path
) -> None:
    copy(records)
    other = tmp_path / "other"
    other.mkdir()
    with RecordWriter(str(other / "train-00000-of-00001")) as writer:
        writer.write(example(9, b"other"))
    server.failures["DropRowRange"].append((0, DENIED, "not yet"))
    with pytest.raises(UserError, match="not yet"):
        copy(other, overwrite=True)
    assert copy(other) == 1
    assert len(bigtable_rows.Rows(config(), "train").scan()) == 1


def test_an_overwrite_goes_on_after_the_last_finished_file(server: Any, records: Path) -> None:
    copy(records)
    calls = server.calls["MutateRow"]

    def watch(method: str, request: Any) -> None:
        if method == "MutateRow" and server.calls["MutateRow"] - calls > 3:
            server.failures["MutateRow"].append((0, DENIED, "no more"))

    server.on_call = watch
    with pytest.raises(UserError, match="no more"):
        copy(records, overwrite=True)
    server.on_call = lambda method, request: None
    server.failures.clear()
    drops = server.calls["DropRowRange"]
    assert 0 < copy(records, overwrite=True) < 2 * 37
    assert server.calls["DropRowRange"] == drops


def test_rows_that_are_no_longer_there_are_noticed(server: Any, records: Path) -> None:
    copy(records)
    for qualifier in ("image", "example"):
        if qualifier == "example":
            server.make_table("t").drop(b"train_0000000036")
        with pytest.raises(UserError, match=f"not all of which are there, expected examples in tfexample:{qualifier}"):
            copy(records, bigtable_column_qualifier=qualifier)
    assert copy(records, overwrite=True) == 2 * 37


def test_the_description_of_another_family_is_not_taken(server: Any, records: Path) -> None:
    copy(records)
    server.make_table("t").families.add("zzz")
    assert copy(records, overwrite=True, bigtable_column_family="zzz") == 2 * 37
    server.put("t", "resnet_tpu/train_", b"[1", column="tfexample:about", time=1 << 60)
    assert len(open_source(config(bigtable_column_family="zzz"), "train")) == 37


def iter_samples(data: DataConfig, split: Any) -> list[Any]:
    source = open_source(data, split)
    return [source[i] for i in range(len(source))]


def test_a_damaged_description_is_named_and_can_be_replaced(server: Any, records: Path) -> None:
    copy(records)
    server.put("t", "resnet_tpu/train_", b"[1", column="tfexample:about", time=1 << 60)
    with pytest.raises(UserError, match=r"Row resnet_tpu/train_ of Bigtable p/i/t: got .*\[1.*what `prepare` wrote"):
        open_source(config(), "train")
    server.make_table("t").drop(b"resnet_tpu/train_")
    assert len(open_source(config(), "train")) == 37  # found by a scan
    assert copy(records, overwrite=True) == 2 * 37


def test_families_are_made_where_they_are_missing(server: Any, records: Path) -> None:
    server.make_table("t", family="logs")
    copy(records)
    assert server.make_table("t").families == {"logs", "tfexample"}


def test_a_folder_without_records(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"got no records, expected TFRecords named train-*"):
        copy(tmp_path)
    assert cli.main(["prepare", str(tmp_path)]) == 2
    assert "got no OUT, expected a folder to write to" in capsys.readouterr().err


def test_records_that_are_not_whole_are_not_copied(
    server: Any, class_folders: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    run(class_folders, out, train_shards=3)
    (out / "train-00001-of-00003").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"2 of 3 train files \(train-00001-of-00003 is missing\)"):
        copy(out)
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match="what an interrupted `prepare` left behind"):
        copy(out)
    assert not server.calls["CreateTable"]


def test_a_table_has_the_classes_that_its_records_have(server: Any, tmp_path: Path) -> None:
    with RecordWriter(str(tmp_path / "train-0")) as writer:
        for label, name in enumerate(("blue", "green", "red"), 1):
            writer.write(encode_example({"image/encoded": b"x", "image/class/label": label, "image/class/text": name}))
    copy(tmp_path)
    table, files = (
        open_source(data, "train") for data in (config(num_label_classes=None), DataConfig(data_dir=str(tmp_path)))
    )
    assert (
        (table.class_names, table.num_classes)
        == (files.class_names, files.num_classes)
        == (["blue", "green", "red"], 3)
    )


def test_options_of_a_table_without_its_instance_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw").mkdir()
    assert cli.main(["prepare", str(tmp_path / "raw"), str(tmp_path / "out"), "--bigtable_table=t"]) == 2
    assert "bigtable_table: got t, expected nothing, as no table is written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["short_side", "split", "beam"])
def test_options_that_a_copy_of_records_would_ignore_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"short_side": "=9", "split": "=0.8,0.2"}.get(name, "")
    assert cli.main(["prepare", str(tmp_path), "--bigtable_instance=i", f"--{name}{value}"]) == 2
    assert f"{name}: got " in (said := capsys.readouterr().err)
    assert "expected nothing: the table gets the records as they are" in said
