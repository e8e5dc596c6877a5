"""Several processes: what they refuse, how they find each other, agree and stop, and what happens if one is lost."""

import atexit
import errno
import json
import os
import re
import shlex
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import jax
import numpy as np
import pytest

from resnet_tpu.checkpoints import folders
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts, rendezvous
from resnet_tpu.training.loop import train
from tests.comparisons import arrays_of, rows_of

OPTIONS: dict[str, Any] = {
    "data_dir": "synthetic", "image_size": 16, "num_label_classes": 4, "num_train_images": 40, "num_eval_images": 37,
    "resnet_depth": 8, "resnet_width": 4, "precision": "float32", "train_batch_size": 16, "eval_batch_size": 16,
    "learning_rate_schedule": "constant", "iterations_per_loop": 2, "keep_checkpoint_max": 1000,
}  # fmt: skip
"""A training that is quick once compiled; all tests use the same network, so it is compiled only once."""

Started = Callable[..., AbstractContextManager[list[Any]]]

TOTAL = 5


def words(model_dir: Path, verb: str = "train", **changes: Any) -> list[str]:
    """The command line of a training, or of another verb on its result."""
    where = [f"--model_dir={model_dir}"] if verb == "train" else [str(model_dir)]
    options = OPTIONS | changes if verb == "train" else changes
    return [verb, *where, *(f"--{name}={value}" for name, value in options.items())]


def alone(model_dir: Path, devices: int, **changes: Any) -> None:
    """Runs the same training in one process with so many devices."""
    train(Config().replace(**(OPTIONS | {"model_dir": str(model_dir), "num_cores": devices} | changes)))


def newest_arrays(model_dir: Path) -> dict[str, np.ndarray]:
    return arrays_of(model_dir, folders.steps_of_run(str(model_dir))[-1])


def rows_of_split(model_dir: Path, split: str) -> dict[int, dict[str, float]]:
    """The numbers of a split by step."""
    return {
        step: {name: value for name, value in row.items() if name not in ("split", "step")}
        for (of, step), row in rows_of(model_dir).items()
        if of == split
    }


def check_the_same_training(one: Path, other: Path) -> None:
    """Losses and parameters must agree, up to float32 sums that are taken in another order, over few steps."""
    for split, rtol in (("train", 1e-5), ("eval", 1e-4)):
        expected, found = rows_of_split(one, split), rows_of_split(other, split)
        assert expected.keys() == found.keys()
        for step, row in expected.items():
            assert found[step] == pytest.approx(row, rel=rtol), (split, step)
    expected, found = newest_arrays(one), newest_arrays(other)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-4, err_msg=name)


def run(started: Started, folder: Path, arguments: list[str], count: int) -> list[str]:
    """Runs `count` processes, which must end without an error, and returns their output."""
    with started(folder, dict.fromkeys(range(count), arguments)) as processes:
        results = [process.end() for process in processes]
    assert [code for code, _ in results] == [0] * count, results
    return [text for _, text in results]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinator_address": "host"}, r"Several processes: got coordinator_address host alone, expected num_proc"),
        ({"process_id": 1, "num_processes": 2}, r"got num_processes 2, process_id 1 alone, expected coordinator_addre"),
        (
            {"coordinator_address": "host", "num_processes": 2, "process_id": 0},
            r"coordinator_address: got host, expected host:port such as",
        ),
        (
            {"coordinator_address": "host:http", "num_processes": 2, "process_id": 0},
            r"coordinator_address: got host:http, expected host:port",
        ),
        (
            {"coordinator_address": "host:8476", "num_processes": 2, "process_id": 2},
            r"process_id: got 2, expected 0 to 1, as num_processes is 2",
        ),
    ],
)
def test_options_that_do_not_name_a_group_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message), hosts.connected(Config().replace(**options).run):
        pass


def test_on_a_plain_machine_a_process_is_alone() -> None:
    with hosts.connected(Config().run):
        assert hosts.process_group() is None
        assert hosts.is_first()
        assert hosts.exchange("text") == ["text"]
        hosts.agree({"seed": 1}, "")


@pytest.mark.parametrize(
    ("environment", "is_cluster"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "a"}, False),
        ({"SLURM_NTASKS": "4"}, False),  # in the batch script itself, not under srun
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a[1-4]"}, True),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a[1-4]", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a", "SLURM_STEP_NUM_TASKS": "1"}, False),  # the shell of salloc
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": ""}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "cpu"}, False),
    ],
)
def test_a_cluster_is_known_by_the_environment(
    environment: dict[str, str], is_cluster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAX_PLATFORMS", "TPU_ML_PLATFORM", "TPU_PROCESS_ADDRESSES", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rendezvous.is_in_cluster(Config().run) == is_cluster


@pytest.mark.parametrize(
    ("environment", "do"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Check coordinator_address"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}, r"pip install 'jax\[k8s\]'"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "Check coordinator_address"),
        ({"TPU_PROCESS_ADDRESSES": "a:1,b:1"}, "Check coordinator_address"),
    ],
)
def test_processes_that_cannot_find_each_other_do_not_train_alone(
    environment: dict[str, str], do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def initialize(**_: object) -> None:  # as under Open MPI 5, without Kubernetes' client, or without libtpu
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.delenv("JAX_PLATFORMS")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    expected = rf"coordinator_address should be defined, expected a connection to the others\. {do}.*num_processes"
    with pytest.raises(UserError, match=expected):
        rendezvous.meet(Config().run)


def test_a_tpu_that_is_no_part_of_a_slice_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.distributed, "initialize", Mock(side_effect=ValueError("coordinator_address")))
    for name in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_ML_PLATFORM", "Jax")
    assert rendezvous.is_in_cluster(Config().run)
    rendezvous.meet(Config().run)


def slurm_port(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str | None:
    """The port at which JAX is told to meet in a step of two tasks."""
    found: list[str | None] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: found.append(os.environ.get("JAX_COORDINATOR_PORT")))
    slurm = {"SLURM_JOB_ID": "4200", "SLURM_STEP_NODELIST": "a", "SLURM_STEP_NUM_TASKS": "2"}
    with monkeypatch.context() as patch:
        for name in ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID", "JAX_COORDINATOR_PORT"):
            patch.setenv(name, "")  # so that what is set meanwhile is undone
            patch.delenv(name)
        for name, value in (slurm | environment).items():
            patch.setenv(name, value)
        rendezvous.meet(Config().replace(use_tpu=False).run)
    return found[0]


def test_steps_of_a_slurm_job_do_not_meet_at_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [slurm_port(monkeypatch, SLURM_STEP_ID=str(step)) for step in range(20)]
    assert ports[0] == str(61440 + 4200 % 4096)  # JAX's own
    assert len({*ports}) == 20
    assert all(port is not None and 61440 <= int(port) <= 65535 for port in ports)
    assert slurm_port(monkeypatch, SLURM_STEP_ID="0", SLURM_JOB_ID="4201") not in ports
    assert slurm_port(monkeypatch, SLURM_STEP_ID="1", JAX_COORDINATOR_PORT="5000") == "5000"
    # the processes of one mpirun may belong to different steps
    assert slurm_port(monkeypatch, SLURM_STEP_ID="1", OMPI_COMM_WORLD_SIZE="2") is None


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["", "four", "1" * 5_000], ids=["empty", "word", "digits"])
def test_an_invalid_number_of_processes_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"^\${name} in the environment: got '"):
        rendezvous.is_in_cluster(Config().run)


@pytest.mark.parametrize("port", ["²", "9" * 5_000, "65536", "-1", ""])
def test_an_invalid_port_is_refused(port: str) -> None:
    run = Config().replace(coordinator_address=f"10.0.0.1:{port}", num_processes=2, process_id=0).run
    with pytest.raises(UserError, match="coordinator_address: got 10"):
        rendezvous.meet(run)


NEVER_COMES = [(0, "got not all 2 processes within 1 s"), (1, r"got no answer from 127.0.0.1:\d+ within 1 s")]


@pytest.mark.parametrize(("number", "message"), NEVER_COMES)
def test_a_wait_for_the_others_is_limited(number: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end, at_exit = threading.Event(), Mock()
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: end.wait(60))
    monkeypatch.setattr(atexit, "register", at_exit)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    run = (
        Config()
        .replace(coordinator_address=f"127.0.0.1:{port}", num_processes=2, process_id=number, coordinator_timeout=1)
        .run
    )
    with pytest.raises(UserError, match=f"^Several processes: {message}"):
        rendezvous.meet(run)
    end.set()
    assert at_exit.call_args.args == (os._exit, 2)  # JAX's own end would wait for those who never came


@pytest.mark.long
@pytest.mark.parametrize(("number", "message"), NEVER_COMES)
def test_waiting_for_a_process_that_never_comes_is_limited(
    started: Started, tmp_path: Path, number: int, message: str
) -> None:
    with started(tmp_path, {number: words(tmp_path, coordinator_timeout=1)}, count=2) as (process,):
        code, text = process.end()
    assert code == 2
    assert re.search(f"^Several processes: {message}", text, re.MULTILINE), text
    assert "Traceback" not in text


@pytest.mark.long
@pytest.mark.parametrize("by_slurm", [False, True])
def test_processes_with_other_options_or_data_are_all_refused(started: Started, tmp_path: Path, by_slurm: bool) -> None:
    first, second = words(tmp_path / "run", seed=1), words(tmp_path / "other", seed=2, num_train_images=48)
    with started(tmp_path, {0: first, 1: second}, by_slurm=by_slurm) as processes:
        results = [process.end() for process in processes]
    for code, text in results:
        assert code == 2, text
        assert "seed 1 in process 0, 2 in process 1" in text
        assert "train examples 40 in process 0, 48 in process 1" in text
        assert re.search(r"model_dir .*run in process 0, .*other that process 0 does not write to in process 1", text)
        assert "Traceback" not in text
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not list((tmp_path / "run").glob(".hosts-*"))


@pytest.mark.long
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_ends_all(started: Started, tmp_path: Path, failing: int) -> None:
    there, nowhere = words(tmp_path / "run"), words(tmp_path / "run", data_dir=tmp_path / "nowhere")
    with started(tmp_path, {failing: nowhere, 1 - failing: there}) as processes:
        results = {int(process.log.name[7]): process.end() for process in processes}
    assert [code for code, _ in results.values()] == [2, 2], results
    assert f"Process {failing} of 2 stopped, so this one stops too. data_dir: got" in results[1 - failing][1]
    assert "data_dir: got" in results[failing][1]


@pytest.mark.long
def test_a_damaged_image_of_one_process_in_the_middle_of_a_training_is_told_by_all(
    started: Started, tmp_path: Path
) -> None:
    for number in range(80):
        path = tmp_path / "photos" / f"class {number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((16, 16, 3), number, np.uint8))
    damaged = shutil.copytree(tmp_path / "photos", tmp_path / "damaged")
    for path in damaged.glob("*/*.png"):
        path.write_bytes(b"")
    options: dict[str, Any] = {"mode": "train", "train_steps": 100, "num_train_images": 64}
    whole, other = (words(tmp_path / "run", data_dir=folder, **options) for folder in (tmp_path / "photos", damaged))
    with started(tmp_path, {0: whole, 1: other}) as processes:
        results = [process.end() for process in processes]
    assert [code for code, _ in results] == [2, 2], results
    assert all(re.search(r"Image .*damaged/class \d/\d+\.png: got", text) for _, text in results), results


def test_file_error_has_the_message_of_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Mock(is_ending=False)
    monkeypatch.setattr(hosts, "_group", group)
    monkeypatch.setattr(hosts, "_open_channels", lambda _: None)
    with pytest.raises(UserError, match="File too large"), hosts.connected(Config().run):
        raise OSError(errno.EFBIG, "File too large", "run/metrics.jsonl")
    message, code = group.fail.call_args.args
    assert "File too large" in message
    assert code == 2


@pytest.fixture(scope="module")
def by_two(started: Started, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run by two processes, and the output of each."""
    folder = tmp_path_factory.mktemp("two")
    arguments = words(folder / "run", train_steps=TOTAL, steps_per_eval=3, save_checkpoints_steps=2)
    return folder / "run", run(started, folder, arguments, 2)


@pytest.mark.long
def test_two_processes_train_as_one_with_two_devices(by_two: tuple[Path, list[str]], tmp_path: Path) -> None:
    model_dir, said = by_two
    alone(tmp_path, 2, train_steps=TOTAL, steps_per_eval=3, save_checkpoints_steps=2)
    check_the_same_training(tmp_path, model_dir)
    assert rows_of_split(model_dir, "eval").keys() == {3, TOTAL}  # on 37 images, which two hosts cannot share evenly
    assert {path.name for path in (model_dir / "checkpoints").iterdir()} == {"2", "3", "4", "5"}
    assert len(list(model_dir.glob("events.out.*"))) == 1
    assert "Step 5 of 5" in said[0]
    assert "Step" not in said[1]  # the first process speaks for all


@pytest.mark.long
def test_a_checkpoint_of_two_processes_is_evaluated_and_predicted_by_two(
    started: Started, by_two: tuple[Path, list[str]], tmp_path: Path
) -> None:
    model_dir = tmp_path / "run"
    shutil.copytree(by_two[0], model_dir)
    before = rows_of_split(model_dir, "eval")[TOTAL]
    run(started, tmp_path, words(model_dir, "eval"), 2)
    assert rows_of_split(model_dir, "eval")[TOTAL] == pytest.approx(before, rel=1e-5)
    options = {"split": "validation", "format": "json", "top_k": 1, "output_dir": tmp_path / "report"}
    told, silent = run(started, tmp_path, words(model_dir, "predict", **options), 2)
    assert len(json.loads(told[told.index("[\n") : told.rindex("]") + 1])) == 37
    assert "noise" in told and "noise" not in silent


@pytest.mark.long
def test_a_signal_to_one_stops_all_at_the_same_step_and_a_killed_one_stops_the_rest(
    started: Started, tmp_path: Path
) -> None:
    model_dir = tmp_path / "run"
    endless = words(model_dir, mode="train", train_steps=1_000_000, save_checkpoints_steps=10)
    with started(tmp_path, {0: endless, 1: endless}) as processes:
        processes[0].wait_for("Step 10 of")
        processes[1].popen.send_signal(signal.SIGHUP)  # not the process that writes
        results = [process.end() for process in processes]
    assert [code for code, _ in results] == [129, 129], results
    stopped_at = folders.steps_in(str(model_dir / "checkpoints"))[-1]
    assert stopped_at == max(rows_of_split(model_dir, "train")) + 1  # no work was lost

    listening = [*endless, "--heartbeat_timeout=10"]  # so that a loss is noticed sooner
    with started(tmp_path, {0: listening, 1: listening}) as processes:
        processes[0].wait_for(f"Step {stopped_at // 10 * 10 + 30} of")
        processes[1].popen.kill()
        begin = time.monotonic()
        code, text = processes[0].end()
    assert time.monotonic() - begin < 60
    check_that_a_lost_process_was_said(code, text)
    kept = folders.steps_in(str(model_dir / "checkpoints"))[-1]
    assert kept > stopped_at

    # one process continues from there, with the same images as two would
    shutil.copytree(model_dir, tmp_path / "by_one")
    alone(tmp_path / "by_one", 2, mode="train", train_steps=kept + 3)
    run(started, tmp_path, words(model_dir, mode="train", train_steps=kept + 3), 2)
    check_the_same_training(tmp_path / "by_one", model_dir)


def check_that_a_lost_process_was_said(code: int, text: str) -> None:
    """Reported by us (exit code 3) if a collective noticed the loss first, otherwise by JAX, which aborts."""
    assert (code, "a stop in the middle of the work" in text) == (3, True) or (
        code == -signal.SIGABRT and "another task died" in text
    ), (code, text)


@pytest.mark.slow
def test_a_training_changes_hands_from_two_processes_to_one_to_four(
    started: Started, by_two: tuple[Path, list[str]], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"batch_norm_scope": "global", "mode": "train"}
    shutil.copytree(by_two[0], tmp_path / "run")
    run(started, tmp_path, words(tmp_path / "run", train_steps=TOTAL + 1, **options), 1)
    run(started, tmp_path, words(tmp_path / "run", train_steps=TOTAL + 3, **options), 4)
    shutil.copytree(by_two[0], tmp_path / "alone")
    alone(tmp_path / "alone", 1, train_steps=TOTAL + 3, **options)
    check_the_same_training(tmp_path / "alone", tmp_path / "run")


@pytest.mark.slow
def test_four_processes_train_as_one_with_four_devices(started: Started, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_steps": 3, "steps_per_eval": 3, "batch_norm_group_size": 2}
    run(started, tmp_path, words(tmp_path / "run", **options), 4)
    alone(tmp_path / "alone", 4, **options)
    check_the_same_training(tmp_path / "alone", tmp_path / "run")


@pytest.mark.slow
def test_without_the_first_process_the_others_end_too(started: Started, tmp_path: Path) -> None:
    endless = words(
        tmp_path / "run", mode="train", train_batch_size=15, train_steps=1_000_000, save_checkpoints_steps=10
    )
    with started(tmp_path, dict.fromkeys(range(3), endless)) as processes:
        processes[0].wait_for("Step 20 of")
        processes[0].popen.kill()
        begin = time.monotonic()
        results = [process.end() for process in processes[1:]]
    assert time.monotonic() - begin < 60
    for code, text in results:
        check_that_a_lost_process_was_said(code, text)


@pytest.mark.slow
def test_the_commands_of_the_page_run_together(started: Started, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "hosts.md").read_text()
    block = page.partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ")
    commands = [shlex.split(line.rstrip(" &")) for line in block.splitlines()]
    assert [command[0] for command in commands] == ["resnet-tpu"] * 2
    rng = np.random.default_rng(0)
    for name, grey in (("dark", 60), ("light", 180)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            photo = np.clip(rng.normal(grey, 30, (60, 80, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "photos" / name / f"{number}.jpg"), photo)
    places = {"photos": str(tmp_path / "photos"), "shared": str(tmp_path / "shared")}
    own = ("coordinator_address", "num_processes", "process_id")  # given by the fixture instead, with a free port
    words = [
        [
            f"{name}={places.get(value, value)}" if value else name
            for name, _, value in (word.partition("=") for word in command[1:])
            if name.removeprefix("--") not in own
        ]
        for command in commands
    ]
    with started(tmp_path, dict(enumerate(words))) as processes:
        results = [process.end() for process in processes]
    assert [code for code, _ in results] == [0, 0], results
    assert (tmp_path / "shared" / "report" / "curves.png").exists()


@pytest.mark.slow
def test_two_processes_pass_over_the_same_damaged_checkpoint(
    started: Started, by_two: tuple[Path, list[str]], tmp_path: Path
) -> None:
    model_dir = tmp_path / "run"
    shutil.copytree(by_two[0], model_dir)
    for path in (model_dir / "checkpoints" / str(TOTAL)).rglob("d/*"):
        path.write_bytes(path.read_bytes()[:20])
    options: dict[str, Any] = {"train_steps": TOTAL, "steps_per_eval": 3, "save_checkpoints_steps": 2}
    said = run(started, tmp_path, words(model_dir, **options), 2)
    assert f"Resuming from step {TOTAL - 1}" in said[0]
    assert all("cannot be read and is skipped" in text for text in said)
    assert (model_dir / "checkpoints" / f"{TOTAL}.damaged").exists()
    check_the_same_training(by_two[0], model_dir)
