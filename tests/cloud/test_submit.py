"""Submitted trainings: the exact requests, checked with the types of Google's clients, and the services' responses."""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import fsspec
import grpc
import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem

from resnet_tpu import cli, storage
from resnet_tpu.cli.run_options import slice_for
from resnet_tpu.cli.submit import SUBMIT
from resnet_tpu.cloud import tpu_vm, vertex
from resnet_tpu.cloud.follow import TrainingFailedError
from resnet_tpu.cloud.job import Job
from resnet_tpu.cloud.slices import find_slice
from resnet_tpu.errors import UserError

TRAINING = ("--recipe=v5e-16", "--data_dir=gs://bucket/imagenet", "--model_dir=memory://bucket/run")
PLACES = {"tpu_vm": "--zone=us-west4-a", "vertex": "--region=us-west4", "gke": "--namespace=default"}
SETTINGS = ("--gcp_project=p", "--job_name=job-1", "--labels=team=vision")


def words(service: str, *options: str, training: tuple[str, ...] = TRAINING) -> list[str]:
    return ["submit", service, PLACES[service], *SETTINGS, *options, "--", *training]


@pytest.fixture
def dry_run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `submit` with --dry_run and returns what it prints."""

    def dry_run(service: str, *options: str, training: tuple[str, ...] = TRAINING) -> str:
        code = cli.main(words(service, "--dry_run", *options, training=training))
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return dry_run


def make_job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "job-1", "project": "p", "slice": find_slice("v5e-16"), "arguments": TRAINING,
        "folder": "memory://bucket/run/jobs/job-1", "image": "image", "package": "",
        "spot": False, "service_account": "", "labels": {},
    }  # fmt: skip
    return Job(**(values | changes))


def write(name: str, text: str) -> None:
    """Writes a file in the job's log folder."""
    fsspec.filesystem("memory").pipe_file(f"/bucket/run/jobs/job-1/{name}", text.encode())


# ----------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "options",
    [(), ("--spot", "--service_account=a@p.iam.gserviceaccount.com", "--network=n", "--subnetwork=s",
          "--noexternal_ips", "--keep", "--image=us-docker.pkg.dev/p/r/i", "--runtime_version=v2-other",
          "--tpu_type=v5litepod-64")],
    ids=["plain", "full"],
)  # fmt: skip
def test_the_request_of_a_tpu_vm_is_one_of_the_service(dry_run: Callable[..., str], options: tuple[str, ...]) -> None:
    tpu_v2 = pytest.importorskip("google.cloud.tpu_v2")
    from google.protobuf import json_format

    asked = json.loads(dry_run("tpu_vm", *options))
    message = tpu_v2.CreateQueuedResourceRequest.pb(tpu_v2.CreateQueuedResourceRequest())
    json_format.ParseDict(asked, message)  # fails for an unknown field
    assert json_format.MessageToDict(message) == without_false(asked)
    (spec,) = asked["queuedResource"]["tpu"]["nodeSpec"]
    assert asked["parent"] == spec["parent"] == "projects/p/locations/us-west4-a"
    assert asked["queuedResourceId"] == spec["nodeId"] == "job-1"
    assert ("spot" in asked["queuedResource"]) == bool(options)
    node = spec["node"]
    assert node["acceleratorType"] == ("v5litepod-64" if options else "v5litepod-16")
    assert node["runtimeVersion"] == ("v2-other" if options else "v2-alpha-tpuv5-lite")
    assert node["labels"] == {"program": "resnet-tpu", "team": "vision"}
    script = node["metadata"]["startup-script"]
    assert ("QUEUED_RESOURCE=''" in script) == bool(options)
    assert shlex.join(["resnet-tpu", "train", *TRAINING]) in script


def without_false(values: Any) -> Any:
    """The values as in a serialised message, which omits what is false."""
    if isinstance(values, dict):
        return {name: without_false(value) for name, value in values.items() if value is not False}
    return [without_false(value) for value in values] if isinstance(values, list) else values


@pytest.mark.parametrize("tpu_type", ["v2-8", "v3-32", "v5e-1", "v5e-16", "v6e-8"])
def test_the_request_of_vertex_is_one_of_the_service(dry_run: Callable[..., str], tpu_type: str) -> None:
    region = find_slice(tpu_type).zones[0].rpartition("-")[0]
    account = "--service_account=a@p.iam.gserviceaccount.com"
    asked = json.loads(dry_run("vertex", f"--tpu_type={tpu_type}", f"--region={region}", "--spot", account))
    (pool,) = asked["jobSpec"]["workerPoolSpecs"]
    assert {
        "v2-8": {"machineType": "cloud-tpu", "acceleratorType": "TPU_V2", "acceleratorCount": 8},
        "v3-32": {"machineType": "cloud-tpu", "acceleratorType": "TPU_V3", "acceleratorCount": 32},
        "v5e-1": {"machineType": "ct5lp-hightpu-1t", "tpuTopology": "1x1"},
        "v5e-16": {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"},
        "v6e-8": {"machineType": "ct6e-standard-8t", "tpuTopology": "2x4"},
    }[tpu_type] == pool["machineSpec"]
    assert pool["replicaCount"] == ("4" if tpu_type == "v5e-16" else "1")
    assert shlex.join(["resnet-tpu", "train", *TRAINING]) in pool["containerSpec"]["command"][-1]
    assert asked["jobSpec"]["baseOutputDirectory"] == {"outputUriPrefix": "memory://bucket/run/jobs/job-1"}


@pytest.mark.peer("google-cloud-aiplatform")
def test_vertex_takes_the_request(dry_run: Callable[..., str]) -> None:
    account = "--service_account=a@p.iam.gserviceaccount.com"
    asked = json.loads(dry_run("vertex", "--spot", account))
    types = pytest.importorskip("google.cloud.aiplatform_v1.types")
    from google.protobuf import json_format

    message = types.CustomJob.pb(types.CustomJob())
    json_format.ParseDict(asked, message)
    assert json_format.MessageToDict(message) == asked


@pytest.mark.peer("kubernetes-validate")
@pytest.mark.parametrize("options", [(), ("--spot", "--kubernetes_service_account=trainer")], ids=["plain", "full"])
def test_kubernetes_takes_the_manifest(dry_run: Callable[..., str], options: tuple[str, ...]) -> None:
    kubernetes_validate: Any = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    service, job = yaml.safe_load_all(dry_run("gke", *options))
    for part in (service, job):
        kubernetes_validate.validate(part, version, strict=True)
    job["spec"]["completions"] = "four"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("spot", [False, True])
def test_the_manifest_of_gke(dry_run: Callable[..., str], spot: bool) -> None:
    service, job = yaml.safe_load_all(
        dry_run("gke", "--kubernetes_service_account=trainer", "--namespace=team", *(["--spot"] if spot else []))
    )
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert service["metadata"] == job["metadata"]
    assert job["metadata"]["namespace"] == "team"
    assert service["spec"]["clusterIP"] == "None"  # the text "None" means no address
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == find_slice("v5e-16").hosts == 4
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert pod["restartPolicy"] == "Never"
    assert pod["serviceAccountName"] == "trainer"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "4x4"
    } | ({"cloud.google.com/gke-spot": "true"} if spot else {})  # fmt: skip
    (container,) = pod["containers"]
    assert container["resources"] == {"requests": {"google.com/tpu": 4}, "limits": {"google.com/tpu": 4}}
    assert shlex.join(["resnet-tpu", "train", *TRAINING]) in container["command"][-1]


def test_recipes_are_for_the_slice_they_are_named_after_or_the_v3_of_their_cores() -> None:
    assert slice_for("v5e-8") == "v5e:2x4"
    assert slice_for("randaugment-32") == "v3:4x4"
    assert slice_for("imagenet") is None


def test_cores_alone_rent_no_slice(capsys: pytest.CaptureFixture[str]) -> None:
    training = ("--recipe=finetune", "--num_cores=8", *TRAINING[1:])
    assert cli.main(words("tpu_vm", "--dry_run", training=training)) == 2
    assert "--tpu_type: got nothing, expected a TPU slice" in capsys.readouterr().err


def test_given_image_runs_the_unchanged_command(dry_run: Callable[..., str]) -> None:
    for service in SUBMIT.verbs:
        text = dry_run(service, "--image=us-docker.pkg.dev/p/r/i")
        if service == "gke":
            command = list(yaml.safe_load_all(text))[1]["spec"]["template"]["spec"]["containers"][0]["command"]
        elif service == "vertex":
            command = json.loads(text)["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"]
        else:
            script = json.loads(text)["queuedResource"]["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"]
            line = next(line for line in script.splitlines() if line.startswith("COMMAND="))
            command = shlex.split(line.removeprefix("COMMAND=(").removesuffix(")"))
        assert command == ["resnet-tpu", "train", *TRAINING]


def test_the_command_of_cloud_ml_engine(dry_run: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    training = (
        "--data_dir=gs://cloud-tpu-test-datasets/fake_imagenet", "--model_dir=gs://bucket/tpu_resnet_sample",
        "--resnet_depth=50", "--train_steps=1024",
    )  # fmt: skip
    job = ("--job_name=tpu_resnet_sample", "--staging_bucket=gs://bucket", "--region=us-central1")
    asked = json.loads(dry_run("vertex", "--tpu_type=v2-8", *job, training=training))
    assert asked["displayName"] == "tpu_resnet_sample"
    assert asked["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"] == "gs://bucket/tpu_resnet_sample"
    command = asked["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"][-1]
    assert command.endswith(f"exec resnet-tpu train {' '.join(training)}")
    assert cli.main(words("vertex", "--tpu_type=BASIC_TPU", *job, "--dry_run", training=training)) == 2
    assert "--tpu_type: got BASIC_TPU, expected a TPU slice" in (said := capsys.readouterr().err)
    assert said.endswith("That scale tier was a v2-8.\n")


@pytest.mark.parametrize(
    ("service", "name", "do"),
    [
        ("tpu_vm", "tpu_resnet_sample", "Write --job_name=tpu-resnet-sample."),
        ("gke", "My_Run_", "Write --job_name=my-run."),
        ("gke", f"{'a' * 39}__b", f"Write --job_name={'a' * 39}."),
        ("gke", "2_runs", "Change it."),
        ("vertex", "two words", "Write --job_name=two-words."),
        ("vertex", "v" * 129, f"Write --job_name={'v' * 40}."),
    ],
)
def test_names_of_jobs(service: str, name: str, do: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(service, f"--job_name={name}", "--dry_run")) == 2
    said = capsys.readouterr().err
    rule = "at most 128 letters, digits, - and _" if service == "vertex" else "at most 40 of a-z, 0-9 and -"
    assert f"--job_name: got {name!r}, expected {rule}, starting with a letter" in said
    assert said.endswith(f"{do}\n")


@pytest.mark.parametrize("service", SUBMIT.verbs)
def test_a_package_that_is_on_no_index_is_warned_of(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(service, "--dry_run")) == 0
    assert "none has it yet. Give --package=WHEEL, --package=git+https://..., or --image." in capsys.readouterr().err
    for option in ("--image=us-docker.pkg.dev/p/r/i", "--package=git+https://host/repository"):
        assert cli.main(words(service, option, "--dry_run")) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("package", "lines"),
    [
        (
            "git+https://host/o/repository@main",
            [
                "apt-get update --quiet=2",
                "apt-get install --quiet=2 --yes git",
                "resnet-tpu[tpu,gcp] @ git+https://host/o/repository@main",
            ],
        ),
        ("https://host/resnet_tpu-9-py3-none-any.whl", ["resnet-tpu[tpu,gcp] @ https://host/resnet_tpu-9-py3-none-any.whl"]),
        ("resnet-tpu[tpu] @ https://host/a.whl", ["resnet-tpu[tpu] @ https://host/a.whl"]),
        ("resnet-tpu[tpu]==3", ["resnet-tpu[tpu]==3"]),
    ],
)  # fmt: skip
def test_script_installs_package_by_kind(dry_run: Callable[..., str], package: str, lines: list[str]) -> None:
    asked = json.loads(dry_run("vertex", f"--package={package}"))
    script = asked["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"][-1].splitlines()[1:-1]
    assert [line if line.startswith("apt-get") else shlex.split(line)[-1] for line in script] == lines


@pytest.mark.parametrize(
    ("context", "code"),
    [("gke_p_us-west4_cluster", 0), ("gke_other_us-west4_cluster", 2), ("ours", 0), ("", 0)],
)
@pytest.mark.parametrize("given", [True, False])
def test_the_cluster_is_of_the_project(
    tmp_path: Path,
    programs: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    context: str,
    code: int,
    given: bool,
) -> None:
    programs(kubectl=f'[ "$*" = "config current-context" ] && echo "{"" if given else context}" || cat >/dev/null')
    where = (f"--context={context}",) if given and context else ()
    assert cli.main(words("gke", "--image=i", *where)) == code
    if code:
        said = capsys.readouterr().err
        assert f"--gcp_project: got p, and cluster {context} of other, expected a cluster of that project" in said
    log = tmp_path / "bin" / "kubectl.log"
    assert ("apply" in (log.read_text() if log.exists() else "")) == (code == 0)


# ----------------------------------------------------------------------------------------------------- on the machines


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes programs from shell scripts in `tmp_path / "bin"`; each logs its arguments to `NAME.log` there."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")

    def programs(**scripts: str) -> None:
        for name, script in scripts.items():
            path = tmp_path / "bin" / name.replace("_", "-")
            log = shlex.quote(f"{path}.log")
            path.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$*\" >>{log}\n{script}\n")
            path.chmod(0o755)

    return programs


@pytest.mark.parametrize(("host", "code", "keep"), [("0", 0, False), ("3", 0, False), ("0", 7, False), ("0", 0, True)])
def test_script_of_each_host_trains_and_copies_log_and_exit_code(
    tmp_path: Path, programs: Callable[..., None], host: str, code: int, keep: bool
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    programs(
        curl=f"echo {host}",
        gcloud=f'[ "$1 $2" = "storage cp" ] && cp "$4" {bucket}/"${{5##*/}}"',
        docker='while [ "$1" != image ]; do shift; done; shift; exec "$@"',
        python="true",
        resnet_tpu=f'echo "training $# of $3"; sleep 0.3; exit {code}',
    )
    arguments = (*TRAINING, "--params_override=dropblock_groups='3,4',seed=1")
    job = make_job(arguments=arguments, package="resnet-tpu[tpu,gcp]==1", folder="gs://bucket/run/jobs/job-1")
    script = tpu_vm.startup_script(job, tpu_vm.TpuVmOptions(zone="z", keep=keep)).replace("PAUSE=15", "PAUSE=0.1")
    subprocess.run(["bash", "-c", script], env={"PATH": os.environ["PATH"]}, check=False)
    said = {
        name: (tmp_path / "bin" / f"{name}.log").read_text() for name in ("gcloud", "docker", "python", "resnet-tpu")
    }
    assert said["resnet-tpu"].strip() == " ".join(["train", *arguments])
    assert said["python"].endswith("resnet-tpu[tpu,gcp]==1\n")
    assert said["docker"].startswith("run --rm --privileged --network=host image sh -c")
    assert (bucket / f"exit-{host}").read_text() == f"{code}\n"
    assert (bucket / f"log-{host}.txt").read_text() == f"training 5 of {arguments[1]}\n"
    assert ("queued-resources delete job-1 --project=p --zone=z --force" in said["gcloud"]) == (
        host == "0" and not keep
    )


def test_a_wheel_is_taken_along(
    tmp_path: Path,
    dry_run: Callable[..., str],
    programs: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel = tmp_path / "resnet_tpu-9-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    staging = "--staging_bucket=memory://staging/jobs"
    _, manifest = yaml.safe_load_all(dry_run("gke", f"--package={wheel}", staging))
    script = manifest["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    lines = [shlex.split(line) for line in script.splitlines()]
    copied = "memory://staging/jobs/job-1/resnet_tpu-9-py3-none-any.whl"
    assert lines[2][2] == (
        f"import fsspec; files, path = fsspec.url_to_fs('{copied}'); files.get(path, 'resnet_tpu-9-py3-none-any.whl')"
    )
    assert lines[3][-1] == "./resnet_tpu-9-py3-none-any.whl[tpu,gcp]"
    assert cli.main(words("gke", f"--package={wheel}", staging, "--dry_run")) == 0
    assert f"Before you send this yourself, copy {wheel} to {copied}\n" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        assert cli.main(words("gke", f"--package={wheel}", staging)) == 2
    assert "got no program kubectl" in capsys.readouterr().err
    assert not fsspec.filesystem("memory").exists("/staging")  # nothing was uploaded
    programs(kubectl="cat >/dev/null; echo created")
    assert cli.main(words("gke", f"--package={wheel}", staging)) == 0
    assert fsspec.filesystem("memory").cat("/staging/jobs/job-1/resnet_tpu-9-py3-none-any.whl") == b"wheel"


def test_the_container_file_is_in_the_package() -> None:
    text = resources.files("resnet_tpu.cloud").joinpath("Containerfile").read_text()
    assert "\nFROM python:3.12-slim\n" in text
    assert "pip install" in text


# ---------------------------------------------------------------------------------------------------- TPU VM service


def test_the_service_sees_the_request_that_a_dry_run_prints(tpu_service: Any, dry_run: Callable[..., str]) -> None:
    from google.protobuf import json_format

    asked = json.loads(dry_run("tpu_vm", "--spot"))
    assert cli.main(words("tpu_vm", "--spot", "--nofollow", f"--endpoint={tpu_service.address}")) == 0
    (created,) = tpu_service.created
    assert json_format.MessageToDict(type(created).pb(created)) == asked
    assert not tpu_service.deleted


@pytest.mark.parametrize("keep", [False, True])
def test_a_training_is_followed_to_its_end(tpu_service: Any, capsys: pytest.CaptureFixture[str], keep: bool) -> None:
    write("exit-0", "1")  # from an earlier job
    texts = deque(["", "", "one\n", "one\ntwo\n", "one\ntwo\nthree\n"])

    def look() -> None:
        if len(texts) == 3:
            tpu_service.refusals["GetQueuedResource"] = deque(
                [(grpc.StatusCode.UNAVAILABLE, "later"), (grpc.StatusCode.RESOURCE_EXHAUSTED, "reads per minute")]
            )
        write("log-0.txt", texts.popleft())
        if not texts:
            write("exit-0", "0\n")

    tpu_service.on_look = look
    tpu_service.say("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    options = tpu_vm.TpuVmOptions(zone="z", keep=keep)
    tpu_vm.submit(make_job(), options, endpoint=tpu_service.address, pause_secs=0.01)
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert [(request.name, request.force) for request in tpu_service.deleted] == (
        [] if keep else [("projects/p/locations/z/queuedResources/job-1", True)]
    )


def test_a_training_that_fails_shows_its_last_words(tpu_service: Any) -> None:
    def look() -> None:
        write("log-0.txt", "\n".join(map(str, range(100))))
        write("exit-0", "2\n")

    tpu_service.on_look = look
    tpu_service.say("ACTIVE")
    with pytest.raises(
        TrainingFailedError, match=r"(?s)exit code 2, expected 0\. Logs of all hosts.*\n80\n81\n.*99$"
    ) as caught:
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address, pause_secs=0.01)
    assert "79" not in str(caught.value)
    assert len(tpu_service.deleted) == 1


def test_ctrl_c_leaves_the_training_alone(tpu_service: Any, caplog: pytest.LogCaptureFixture) -> None:
    tpu_service.on_look = lambda: os.kill(os.getpid(), signal.SIGINT)
    tpu_service.say("ACTIVE")
    with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt):
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address, pause_secs=60)
    assert not tpu_service.deleted
    command = "gcloud compute tpus queued-resources delete job-1 --project=p --zone=z --force"
    assert f"Training continues. Stop it with: {command}" in caplog.text


def test_the_log_of_a_host_that_starts_again_is_shown_whole(
    tpu_service: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = deque(["one\ntwo\nthree\n", "again\n", "again\nthree\n"])

    def look() -> None:
        write("log-0.txt", texts.popleft())
        if not texts:
            write("exit-0", "0\n")

    tpu_service.on_look = look
    tpu_service.say("ACTIVE")
    tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address, pause_secs=0.01)
    assert capsys.readouterr().out == "one\ntwo\nthree\nagain\nthree\n"


def test_overrides_in_a_file_of_this_machine(
    tmp_path: Path, dry_run: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train_batch_size: 256")
    training = (*TRAINING, f"--params_override={file}")
    assert cli.main(words("tpu_vm", "--dry_run", training=training)) == 2
    assert f"params_override: got {file}, expected a path in a bucket" in capsys.readouterr().err
    assert "train_batch_size=256" in dry_run("tpu_vm", training=(*TRAINING, "--params_override=train_batch_size=256"))


def test_while_nothing_answers_the_training_counts_as_going_on(
    tpu_service: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gcsfs.retry import HttpError

    write("log-0.txt", "one\n")
    answers = deque([None, HttpError({"code": 503, "message": "no network"})] * 2)
    read = MemoryFileSystem.cat_file

    def cat_file(*arguments: Any, **options: Any) -> Any:
        if not answers:
            write("exit-0", "0\n")
        elif error := answers.popleft():
            raise error
        return read(*arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    tpu_service.say("ACTIVE")
    with caplog.at_level(logging.INFO):
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address, pause_secs=0.01)
    (said,) = [record.getMessage() for record in caplog.records if "no answer" in record.getMessage()]
    assert "no network, 503, after several tries" in said
    assert len(tpu_service.deleted) == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [("FAILED", "state FAILED: no more v5e here, expected it to finish"), ("SUSPENDED", "state SUSPENDED, expected")],
)
def test_a_slice_that_is_lost(tpu_service: Any, state: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    tpu_service.say("PROVISIONING", state, message="no more v5e here")
    tpu_service.refusals["DeleteQueuedResource"] = deque([(grpc.StatusCode.NOT_FOUND, "gone")])
    with caplog.at_level(logging.INFO), pytest.raises(TrainingFailedError, match=message):
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address, pause_secs=0.01)
    assert "Training continues" not in caplog.text


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "Permission tpu.nodes.create denied",
         r"403 Permission tpu.nodes.create denied, expected the role roles/tpu.admin\."),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota V5s exceeded. Limit: 0",
         "429 Quota V5s exceeded. Limit: 0, expected less than the quota"),
        (grpc.StatusCode.INVALID_ARGUMENT, "no v5litepod-16 in zone",
         "TPU slice v5litepod-16 in z: got 400 no v5litepod-16 in zone, expected a request that the service accepts"),
        (grpc.StatusCode.UNAUTHENTICATED, "who are you",
         "401 who are you, expected credentials that the service accepts"),
    ],
)  # fmt: skip
def test_what_the_service_says_is_shown_as_it_is(tpu_service: Any, status: Any, said: str, message: str) -> None:
    tpu_service.refusals["CreateQueuedResource"] = deque([(status, said)])
    with pytest.raises(UserError, match=message):
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address)
    assert not tpu_service.deleted


def test_a_name_in_use_keeps_its_log(tpu_service: Any) -> None:
    write("log-0.txt", "three days\n")
    write("exit-0", "0\n")
    tpu_service.refusals["CreateQueuedResource"] = deque([(grpc.StatusCode.ALREADY_EXISTS, "job-1 exists")])
    with pytest.raises(UserError, match="409 job-1 exists"):
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address)
    left = fsspec.filesystem("memory").ls("/bucket/run/jobs/job-1", detail=False)
    assert sorted(left) == [f"/bucket/run/jobs/job-1/{name}" for name in ("exit-0", "log-0.txt")]


def test_an_error_while_following_says_how_to_end_the_training(
    tpu_service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tpu_service.refusals["GetQueuedResource"] = deque([(grpc.StatusCode.PERMISSION_DENIED, "taken away")])
    with caplog.at_level(logging.INFO), pytest.raises(UserError, match="403 taken away"):
        tpu_vm.submit(make_job(), tpu_vm.TpuVmOptions(zone="z"), endpoint=tpu_service.address)
    assert "Training continues. Stop it with: gcloud" in caplog.text
    assert not tpu_service.deleted


@pytest.mark.parametrize("follow", [True, False])
def test_where_the_bucket_may_not_be_written_the_slice_is_not_forgotten(
    tpu_service: Any, follow: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise UserError(f"Writing {path}", "permission denied", "a bucket that may be written", "Ask its owner.")

    monkeypatch.setattr(storage, "remove", refuse)
    options = tpu_vm.TpuVmOptions(zone="z", follow=follow)
    with caplog.at_level(logging.INFO), pytest.raises(UserError, match="permission denied"):
        tpu_vm.submit(make_job(), options, endpoint=tpu_service.address)
    assert "Training continues. Stop it with: gcloud" in caplog.text


# ----------------------------------------------------------------------------------------------------- Vertex service


def test_vertex_sees_the_request_that_a_dry_run_prints(vertex_service: Any, dry_run: Callable[..., str]) -> None:
    asked = json.loads(dry_run("vertex"))
    vertex_service.answers.append((200, {"name": "projects/p/locations/us-west4/customJobs/1"}))
    assert cli.main(words("vertex", "--nofollow", f"--endpoint={vertex_service.address}")) == 0
    assert vertex_service.asked == [("POST", "/v1/projects/p/locations/us-west4/customJobs", asked)]


@pytest.mark.parametrize("ends", ["JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED"])
def test_a_job_of_vertex_is_followed_to_its_end(
    vertex_service: Any, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    name = "projects/7/locations/us-west4/customJobs/1"
    for state in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_RUNNING", ends):
        vertex_service.answers.append((200, {"name": name, "state": state}))
    vertex_service.answers[-1][1]["error"] = {"code": 3, "message": "The replica exited with 2."}
    for status in (503, 429):
        vertex_service.answers.insert(2, (status, {"error": {"message": "later"}}))
    options = vertex.VertexOptions(region="us-west4")
    if ends == "JOB_STATE_FAILED":
        with pytest.raises(
            TrainingFailedError, match=r"got JOB_STATE_FAILED: The replica exited with 2\., expected it to succeed"
        ):
            vertex.submit(make_job(), options, endpoint=vertex_service.address, pause_secs=0.01)
    else:
        vertex.submit(make_job(), options, endpoint=vertex_service.address, pause_secs=0.01)
    assert [path for _, path, _ in vertex_service.asked[1:]] == [f"/v1/{name}"] * 5
    assert "Training continues" not in caplog.text


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "403 .*no aiplatform.customJobs.create, expected the role roles/aiplatform.user"),
     (429, "429 .*no aiplatform"),
     (400, "Vertex AI in r: got 400 .*no aiplatform.*expected a request that the service")],
)  # fmt: skip
def test_what_vertex_says_is_shown_as_it_is(vertex_service: Any, status: int, message: str) -> None:
    error = {"code": status, "message": "no aiplatform.customJobs.create", "status": "X"}
    vertex_service.answers.append((status, {"error": error}))
    with pytest.raises(UserError, match=message):
        vertex.submit(make_job(), vertex.VertexOptions(region="r"), endpoint=vertex_service.address)


def test_ctrl_c_leaves_a_job_of_vertex_alone(
    vertex_service: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vertex_service.answers.extend([(200, {"name": "jobs/1", "state": "JOB_STATE_PENDING"})] * 2)
    monkeypatch.setattr("time.sleep", lambda _: signal.raise_signal(signal.SIGINT))
    with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt):
        vertex.submit(make_job(), vertex.VertexOptions(region="r"), endpoint=vertex_service.address)
    assert "Training continues. Stop it with: gcloud ai custom-jobs cancel jobs/1" in caplog.text


def test_vertex_whose_credentials_cannot_be_renewed_for_a_moment(
    vertex_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests
    from google.auth.exceptions import TransportError

    errors = deque([TransportError("no network")])

    class Session(requests.Session):
        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            if errors and request.method == "GET":
                raise errors.popleft()
            return super().send(request, **options)

    monkeypatch.setattr(vertex, "_session", lambda _: Session())
    vertex_service.answers.extend(
        (200, {"name": "jobs/1", "state": f"JOB_STATE_{state}"}) for state in ("PENDING", "SUCCEEDED")
    )
    vertex.submit(make_job(), vertex.VertexOptions(region="r"), endpoint=vertex_service.address, pause_secs=0.01)
    assert not errors


def test_a_page_in_place_of_an_answer_of_vertex(vertex_service: Any) -> None:
    vertex_service.answers.append((200, b"<html>Sign in</html>"))
    with pytest.raises(UserError, match=r"Vertex AI in r: got .*Expecting value"):
        vertex.submit(make_job(), vertex.VertexOptions(region="r"), endpoint=vertex_service.address)
    assert len(vertex_service.asked) == 1


def test_vertex_that_cannot_be_reached(vertex_service: Any) -> None:
    vertex_service.close()
    with pytest.raises(UserError, match=r"Connection refused.*expected an answer from the service"):
        vertex.submit(make_job(), vertex.VertexOptions(region="r"), endpoint=vertex_service.address)


# ------------------------------------------------------------------------------------------------------------ kubectl


def test_kubectl_gets_the_manifest_that_a_dry_run_prints(
    tmp_path: Path, programs: Callable[..., None], dry_run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(kubectl=f"cat >{tmp_path}/manifest; echo job.batch/job-1 created")
    assert cli.main(words("gke", "--context=cluster")) == 0
    assert (tmp_path / "manifest").read_text() == dry_run("gke", "--context=cluster")
    assert (tmp_path / "bin" / "kubectl.log").read_text() == "--context=cluster apply --filename=-\n"


def test_what_kubectl_says_is_shown_as_it_is(
    tmp_path: Path, programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs(kubectl="cat >/dev/null; echo 'error: no context exists' >&2; exit 1")
    assert cli.main(words("gke")) == 2
    assert (
        "kubectl apply: got error: no context exists, expected the cluster to accept the job" in capsys.readouterr().err
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(words("gke")) == 2
    assert "GKE: got no program kubectl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    [
        "echo service/job-1 unchanged; echo job.batch/job-1 unchanged",  # the same once more
        """echo service/job-1 unchanged; echo 'The Job "job-1" is invalid: spec: field is immutable' >&2; exit 1""",
    ],
)
def test_a_job_that_the_cluster_has_does_not_start_again(
    script: str,
    tmp_path: Path,
    programs: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    programs(kubectl=f"cat >/dev/null; {script}")
    assert cli.main(words("gke")) == 2
    said = capsys.readouterr().err
    assert "--job_name: got job-1, which the cluster already has, expected the name of a new job." in said
    assert "kubectl --namespace=default delete job,service job-1" in said


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "training", "message"),
    [
        (["--tpu_type=v5litepod-17"], TRAINING, "--tpu_type: got v5litepod-17, expected a TPU slice"),
        (["--zone="], TRAINING, "--zone: got nothing, expected one with v5litepod-16: us-central1-a, us-"),
        (["--zone=us-west4"], TRAINING, "--zone: got us-west4, expected one with v5litepod-16: us-central1-a, us-"),
        (["--zone=us-central1-b"], TRAINING, "--zone: got us-central1-b, expected one with v5litepod-16: us-"),
        ([], TRAINING[1:], "--tpu_type: got nothing"),
        (["--tpu_type=v4-8"], TRAINING, "--zone: got us-west4-a, expected one with v4-8: us-central2-b"),
        (["--recipe=v5e-16"], TRAINING, "Option: got --recipe=v5e-16, expected options of resnet-tpu submit"),
        (["--job_name=Job_1"], TRAINING, "--job_name: got 'Job_1', expected at most 40 of a-z, 0-9 and -"),
        (["--labels=team"], TRAINING, "--labels: got 'team', expected key=value"),
        (["--labels=team=-x"], TRAINING, "--labels: got 'team=-x', expected key=value"),
        (["--image=i", "--package=p"], TRAINING, "--package: got one together with --image=i, expected one of the two"),
        (["--package=no.whl"], TRAINING, "--package: got no.whl, expected an existing file"),
        *(
            ([f"--package={file}"], TRAINING, f"--package: got {file}, expected a wheel, an address or a requirement")
            for file in (".", "photos/", "dist/resnet_tpu-9.tar.gz", "resnet_tpu-9.zip")
        ),
        (["--staging_bucket=here"], TRAINING, "--staging_bucket: got here, expected a folder in a bucket"),
        ([], TRAINING[:2], "model_dir: got nothing, expected a folder in a bucket"),
        ([], (*TRAINING[:2], "--model_dir=runs/1"), "model_dir: got runs/1, expected a path in a bucket"),
        ([], (*TRAINING, "--data_dir=photos"), "data_dir: got photos, expected a path in a bucket"),
        ([], (TRAINING[0], TRAINING[2], "photos"), "data_dir: got photos, expected a path in a bucket"),
        ([], (*TRAINING, "gs://bucket/b"), "resnet-tpu train: got gs://bucket/b and --data_dir="),
        ([], (TRAINING[0], TRAINING[2]), "data_dir: got nothing, expected images that the job can read"),
        ([], (*TRAINING, "--init_from=runs/1"), "resnet_checkpoint: got runs/1, expected a path in a bucket"),
        ([], (*TRAINING, "--init_from=hf:timm/resnet50.a1_in1k"), "resnet_checkpoint: got hf:timm/resnet50.a1_in1k,"),
        *(
            ([], (*TRAINING, f"--params_override={name}=/me"), f"{name}: got /me, expected a path in a bucket")
            for name in (
                "lottery_results_dir", "lottery_prune_at", "lottery_reset_to", "lottery_reset_global_step_to",
                "lth_prediction_result_dir",
            )
        ),
        ([], (*TRAINING, "--config_file=mine.yaml"), "config_file: got mine.yaml, expected a path in a bucket"),
        ([], (*TRAINING, "--train_batch_size=100"), "train_batch_size: got 100, expected a multiple of the 16 devices"),
        ([], (*TRAINING, "--resnet_dept=50"), "Option: got --resnet_dept, expected an option of resnet-tpu train"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_input(
    options: list[str], training: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words("tpu_vm", "--dry_run", *options, training=training)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("vertex", "--region=us-west4-a"),
            "--region: got us-west4-a, expected one with v5litepod-16: us-central1, ",
        ),
        (("vertex", "--timeout_hours=0"), "timeout_hours: got 0, expected at least 0.01"),
        (("gke", "--namespace=My_NS"), "--namespace: got 'My_NS', expected at most 63 of a-z, 0-9 and -"),
        (("gke", "--retries=-1"), "retries: got -1, expected at least 0"),
    ],
)
def test_bad_input_of_other_services(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(*options, "--dry_run")) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--init_from=resnet50", "--params_override=lottery_reset_to=reinitialize"])
def test_a_job_has_published_and_drawn_weights_by_itself(dry_run: Callable[..., str], option: str) -> None:
    assert option in dry_run("tpu_vm", training=(*TRAINING, option))


@pytest.mark.parametrize("service", SUBMIT.verbs)
def test_photos_are_the_first_argument_as_of_train(dry_run: Callable[..., str], service: str) -> None:
    training = ("gs://bucket/photos", TRAINING[0], TRAINING[2])
    assert shlex.join(["resnet-tpu", "train", *training]) in dry_run(service, training=training)


def test_neither_project_nor_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    arguments = words("tpu_vm")
    arguments.remove("--gcp_project=p")
    assert cli.main(arguments) == 2
    assert "expected credentials for Google Cloud. Log in with `gcloud auth" in capsys.readouterr().err
    for service in ("tpu_vm", "vertex"):
        assert cli.main(words(service)) == 2
        assert "key.json was not found, expected credentials for Google Cloud" in capsys.readouterr().err


def test_help_loads_neither_jax_nor_googles_clients() -> None:
    code = (
        "import sys; from resnet_tpu import cli; cli.main(['submit', '--help']); "
        "print([name for name in sys.modules if name in ('jax', 'grpc', 'google.cloud.tpu_v2')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
