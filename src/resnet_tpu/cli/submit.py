"""`resnet-tpu submit`: trainings in Google Cloud."""

import json
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Command, Given, Group, Menu
from resnet_tpu.cli.run_options import configure, groups_for_trainings, slice_for
from resnet_tpu.cli.train import PHOTOS, with_photos
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.overrides import names_file

_EXAMPLE = "--package=WHEEL -- --recipe=v5e-8 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run"


@dataclass(frozen=True)
class _Asked:
    """The parsed command line."""

    job: Any  # the options of every service: cloud.job.JobOptions
    own: Any  # the options of this service
    config: Config
    arguments: tuple[str, ...]  # the training's command line
    recipe: str


_TRAINER = Command("resnet-tpu train", groups=groups_for_trainings(), arguments=(PHOTOS,))


def _command(name: str, example: str, options: str, *, without: Collection[str] = ()) -> Command:
    """The command of a service. options: where its own options are. without: job options that do not apply to it."""
    return Command(
        f"resnet-tpu submit {name}",
        "After -- come the arguments of `resnet-tpu train`, as they are.",
        [Group("the job", "resnet_tpu.cloud.job:JobOptions", without), Group(f"only {name}", options)],
        usage="[options] -- [options of resnet-tpu train]",
        examples=(f"resnet-tpu submit {name} {example} {_EXAMPLE}",),
        other_program=_TRAINER.options,
    )


@_command("tpu_vm", "--zone=us-west4-a", "resnet_tpu.cloud.tpu_vm:TpuVmOptions")
def _tpu_vm(given: Given) -> None:
    """Create a TPU slice as a queued resource, train on all its hosts, follow the log, delete it at the end."""
    from resnet_tpu.cloud import tpu_vm

    asked = _read(given, tpu_vm.TpuVmOptions)
    job = _make_job(asked, "zone")
    shown = _to_json(tpu_vm.request(job, asked.own))
    _send(asked, job, shown, lambda: tpu_vm.submit(job, asked.own, endpoint=asked.job.endpoint))


@_command("vertex", "--region=us-west4", "resnet_tpu.cloud.vertex:VertexOptions")
def _vertex(given: Given) -> None:
    """A custom job of Vertex AI, the successor of Cloud ML Engine."""
    from resnet_tpu.cloud import vertex

    asked = _read(given, vertex.VertexOptions)
    job = _make_job(asked, "region", names_hosts=False)
    shown = _to_json(vertex.request(job, asked.own))
    _send(asked, job, shown, lambda: vertex.submit(job, asked.own, endpoint=asked.job.endpoint))


@_command(
    "gke",
    "--namespace=training",
    "resnet_tpu.cloud.gke:GkeOptions",
    without=("check_zone", "service_account", "endpoint"),
)
def _gke(given: Given) -> None:
    """A Job of Google Kubernetes Engine; --dry_run prints its manifest."""
    from resnet_tpu.cloud import gke

    asked = _read(given, gke.GkeOptions)
    job = _make_job(asked)
    _send(asked, job, gke.to_yaml(gke.manifest(job, asked.own)), lambda: gke.submit(job, asked.own))


def _read(given: Given, owner: type[Any]) -> _Asked:
    """Parses the options common to all jobs, those of the service, and the training's."""
    from resnet_tpu.cloud.job import JobOptions

    asked = with_photos(_TRAINER.parse(given.rest).values)
    _check_in_bucket("config_file", asked.get("config_file", ()))
    config = configure(asked)
    _check_in_bucket("params_override", filter(names_file, asked.get("params_override", ())))
    return _Asked(given.fill(JobOptions), given.fill(owner), config, given.rest, asked.get("recipe", ""))


def _check_in_bucket(option: str, paths: Iterable[str]) -> None:
    """Raises UserError for a path on this machine, whose file the job could not read."""
    for path in paths:
        if not storage.is_remote(path):
            do = "Copy it to a bucket, or give its options after -- one by one."
            raise UserError(option, path, "a path in a bucket, gs://...", do)


def _make_job(asked: _Asked, kind: Literal["zone", "region"] | None = None, *, names_hosts: bool = True) -> Any:
    """The job, checked against its zone or region. kind: None if a cluster determines where it runs.

    names_hosts: see `cloud.job.make_job`.
    """
    from resnet_tpu.cloud.job import make_job
    from resnet_tpu.cloud.slices import find_slice
    from resnet_tpu.storage.gcp import project_of

    made_for = asked.recipe and slice_for(asked.recipe)  # num_cores alone may be those of any device
    rented = find_slice(asked.job.tpu_type or made_for or "")
    if kind is None:
        return make_job(asked.job, asked.config, asked.arguments, rented, asked.job.gcp_project)
    location = getattr(asked.own, kind)
    if asked.job.check_zone or not location:
        rented.check_location(kind, location)
    project = project_of(asked.job.gcp_project)
    return make_job(asked.job, asked.config, asked.arguments, rented, project, names_hosts=names_hosts)


def _send(asked: _Asked, job: Any, shown: str, send: Callable[[], None]) -> None:
    """With --dry_run, only prints the request; otherwise uploads what the job needs, then sends it."""
    from resnet_tpu.cloud.job import stage

    if asked.job.dry_run:
        sys.stdout.write(shown)
        return
    stage(job, asked.job.package)
    send()


def _to_json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


SUBMIT = Menu(
    "resnet-tpu submit",
    "Send a training off to a TPU in Google Cloud: a TPU VM, Vertex AI or GKE.",
    {
        "tpu_vm": _tpu_vm,
        "vertex": _vertex,
        "gke": _gke,
    },
    examples=(
        f"resnet-tpu submit tpu_vm --zone=us-west4-a --spot {_EXAMPLE}",
        f"resnet-tpu submit vertex --region=us-west4 --gcp_project=PROJECT {_EXAMPLE}",
        f"resnet-tpu submit gke --dry_run {_EXAMPLE} > job.yaml",
    ),
    details="After -- come the arguments of `resnet-tpu train`, which runs there. Nothing is sent with --dry_run.",
)
