"""`resnet-tpu submit`: trains in Google Cloud."""

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal

from resnet_tpu import storage
from resnet_tpu.cli.arguments import Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.menu import Menu
from resnet_tpu.cli.run_options import configure, groups_for_trainings, slice_for
from resnet_tpu.cli.train import PHOTOS, with_photos
from resnet_tpu.errors import UserError
from resnet_tpu.options.overrides import names_file

if TYPE_CHECKING:
    from resnet_tpu.cloud.job import Job, JobOptions

log = logging.getLogger(__name__)

_EXAMPLE = "--package=WHEEL -- --recipe=v5e-8 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run"


_TRAINER = Command("resnet-tpu train", groups=groups_for_trainings(), arguments=(PHOTOS,))


def _command(name: str, example: str, options: str, *, without: Collection[str] = ()) -> Command:
    """The command of a service. options: the import path of its own options. without: job options that do not apply."""
    return Command(
        f"resnet-tpu submit {name}",
        "After -- come the arguments of `resnet-tpu train`, unchanged.",
        [Group("the job", "resnet_tpu.cloud.job:JobOptions", without=without), Group(f"only {name}", options)],
        usage="[options] -- [options of resnet-tpu train]",
        examples=(f"resnet-tpu submit {name} {example} {_EXAMPLE}",),
        other_program=_TRAINER.options,
    )


@_command("tpu_vm", "--zone=us-west4-a", "resnet_tpu.cloud.tpu_vm:TpuVmOptions")
def _tpu_vm(given: Given) -> None:
    """Create a TPU slice as a queued resource, train on all its hosts, follow the log, delete it at the end."""
    from resnet_tpu.cloud import tpu_vm

    options = given.fill(tpu_vm.TpuVmOptions)
    common, job = _make_job(given, ("zone", options.zone))
    shown = _to_json(tpu_vm.request(job, options))
    _send(common, job, shown, lambda: tpu_vm.submit(job, options, endpoint=common.endpoint))


@_command("vertex", "--region=us-west4", "resnet_tpu.cloud.vertex:VertexOptions")
def _vertex(given: Given) -> None:
    """A custom job of Vertex AI, the successor of Cloud ML Engine."""
    from resnet_tpu.cloud import vertex

    options = given.fill(vertex.VertexOptions)
    common, job = _make_job(given, ("region", options.region), names_hosts=False)
    shown = _to_json(vertex.request(job, options))
    _send(common, job, shown, lambda: vertex.submit(job, options, endpoint=common.endpoint))


@_command(
    "gke",
    "--namespace=training",
    "resnet_tpu.cloud.gke:GkeOptions",
    without=("check_zone", "service_account", "endpoint"),
)
def _gke(given: Given) -> None:
    """A Job of Google Kubernetes Engine; --dry_run prints its manifest."""
    from resnet_tpu.cloud import gke

    options = given.fill(gke.GkeOptions)
    common, job = _make_job(given)
    if not common.dry_run:
        gke.find_kubectl()  # before anything is uploaded
    _send(common, job, gke.to_yaml(gke.manifest(job, options)), lambda: gke.submit(job, options))


def _check_in_bucket(option: str, paths: Iterable[str]) -> None:
    """Raises UserError for a path on this machine, whose file the job could not read."""
    for path in paths:
        if not storage.is_remote(path):
            do = "Copy it to a bucket, or give its options after -- one by one."
            raise UserError(option, path, "a path in a bucket, gs://...", do)


def _make_job(
    given: Given, location: tuple[Literal["zone", "region"], str] | None = None, *, names_hosts: bool = True
) -> "tuple[JobOptions, Job]":
    """The options that jobs of every service have, and the job, checked against its location.

    location: None if the cluster determines it and the project. names_hosts: see `cloud.job.make_job`.
    """
    from resnet_tpu.cloud.job import JobOptions, make_job
    from resnet_tpu.cloud.slices import find_slice
    from resnet_tpu.storage.gcp import project_of

    training = with_photos(_TRAINER.parse(given.rest).values)
    _check_in_bucket("config_file", training.get("config_file", ()))
    config = configure(training)
    _check_in_bucket("params_override", filter(names_file, training.get("params_override", ())))
    options = given.fill(JobOptions)
    recipe = training.get("recipe", "")
    made_for = recipe and slice_for(recipe)  # without a recipe, num_cores may mean any device
    rented, project = find_slice(options.tpu_type or made_for or ""), options.gcp_project
    if location:
        option, place = location
        if options.check_zone or not place:
            rented.check_location(option, place)
        project = project_of(project)
    return options, make_job(options, config, given.rest, rented, project, names_hosts=names_hosts)


def _send(options: "JobOptions", job: "Job", shown: str, send: Callable[[], None]) -> None:
    """With --dry_run, only prints the request; otherwise uploads what the job needs, then sends it."""
    from resnet_tpu.cloud.package import is_local_wheel, upload

    if options.dry_run:
        sys.stdout.write(shown)
        if is_local_wheel(options.package):
            log.info("Before you send this yourself, copy %s to %s", options.package, job.package)
        return
    upload(options.package, job.package)
    send()


def _to_json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


SUBMIT = Menu(
    "resnet-tpu submit",
    "Train on a TPU in Google Cloud: a TPU VM, Vertex AI or GKE.",
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
