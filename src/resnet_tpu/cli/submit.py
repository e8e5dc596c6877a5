"""`resnet-tpu submit`: trainings in Google Cloud."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from resnet_tpu.cli.arguments import Parser, cut_at_dashes, dispatch, fill
from resnet_tpu.cli.run_options import add_training_options, configure_training
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import options_of

T = TypeVar("T")

_EXAMPLE = "-- --recipe=v5e-8 --data_dir=gs://BUCKET/imagenet --model_dir=gs://BUCKET/run"


def submit(arguments: Sequence[str]) -> None:
    """Send a training off to a TPU in Google Cloud: a TPU VM, Vertex AI or GKE."""
    about = (
        f"{submit.__doc__}\n\nAfter -- come the arguments of `resnet-tpu train`, which runs there. "
        "Nothing is sent with --dry_run."
    )
    examples = (
        f"resnet-tpu submit tpu_vm --zone=us-west4-a --spot {_EXAMPLE}",
        f"resnet-tpu submit vertex --region=us-west4 --gcp_project=PROJECT {_EXAMPLE}",
        f"resnet-tpu submit gke --dry_run {_EXAMPLE} > job.yaml",
    )
    dispatch("submit", about, WHATS, arguments, examples=examples)


@dataclass(frozen=True)
class _Asked:
    """What the command line says."""

    job: Any  # the options of every service: cloud.job.JobOptions
    own: Any  # those of the service
    config: Config
    arguments: tuple[str, ...]  # of the training
    recipe: str


def _tpu_vm(arguments: Sequence[str]) -> None:
    """A TPU slice of its own, through queued resources: all hosts started, the log followed, deleted at the end."""
    from resnet_tpu.cloud import tpu_vm

    asked = _parse("tpu_vm", _tpu_vm, tpu_vm.TpuVmOptions, arguments, "--zone=us-west4-a")
    job = _make_job(asked, asked.own.zone)
    shown = _to_json(tpu_vm.request(job, asked.own))
    _send(asked, job, shown, lambda: tpu_vm.submit(job, asked.own, endpoint=asked.job.endpoint))


def _vertex(arguments: Sequence[str]) -> None:
    """A custom job of Vertex AI, the successor of Cloud ML Engine."""
    from resnet_tpu.cloud import vertex

    asked = _parse("vertex", _vertex, vertex.VertexOptions, arguments, "--region=us-west4")
    job = _make_job(asked, asked.own.region, names_hosts=False)
    shown = _to_json(vertex.request(job, asked.own))
    _send(asked, job, shown, lambda: vertex.submit(job, asked.own, endpoint=asked.job.endpoint))


def _gke(arguments: Sequence[str]) -> None:
    """A Job of Google Kubernetes Engine; --dry_run prints its manifest."""
    from resnet_tpu.cloud import gke

    asked = _parse("gke", _gke, gke.GkeOptions, arguments, "--namespace=training")
    job = _make_job(asked)
    _send(asked, job, gke.to_yaml(gke.manifest(job, asked.own)), lambda: gke.submit(job, asked.own))


WHATS = {"tpu_vm": _tpu_vm, "vertex": _vertex, "gke": _gke}
"""The services."""

_NOT_FOR = {"gke": ("check_zone", "service_account", "endpoint")}
"""Options of every service that one has no use for: its cluster knows."""


def _parse(name: str, service: Any, owner: type[T], arguments: Sequence[str], example: str) -> _Asked:
    """The options of the service and the training's."""
    from resnet_tpu.cloud.job import JobOptions

    ours, training = cut_at_dashes(arguments)
    program = f"resnet-tpu submit {name}"
    about = f"{service.__doc__}\n\nAfter -- come the arguments of `resnet-tpu train`, as they are."
    parser = Parser(
        program,
        about,
        usage="[options] -- [options of resnet-tpu train]",
        examples=(f"{program} {example} {_EXAMPLE}",),
    )
    common, own = options_of("job", JobOptions), options_of("own", owner)
    left_out = _NOT_FOR.get(name, ())
    parser.add_options("the job", [found for found in common.values() if found.name not in left_out])
    parser.add_options(f"only {name}", own.values())
    trainer = Parser("resnet-tpu train", "", examples=())
    add_training_options(trainer)
    for argument in ours:
        if trainer.has(argument) and not parser.has(argument):
            do = f"Write {program} [options] -- {argument}"
            raise UserError("Option", argument, f"options of {program} before --, those of the training after it", do)
    given = parser.parse(ours)
    asked = trainer.parse(training)
    for path in asked.get("config_file", ()):
        if "://" not in path:
            do = "Copy it to a bucket, or give its options after -- one by one."
            raise UserError("config_file", path, "a path in a bucket, gs://...", do)
    return _Asked(
        fill(JobOptions, {key: value for key, value in given.items() if key in common}),
        fill(owner, {key: value for key, value in given.items() if key in own}),
        configure_training(asked),
        training,
        asked.get("recipe", ""),
    )


def _make_job(asked: _Asked, place: str | None = None, *, names_hosts: bool = True) -> Any:
    """The job, checked against the zone or region that it is for; None: where it runs, a cluster says.

    names_hosts: see `cloud.job.make_job`.
    """
    from resnet_tpu.cloud.job import make_job
    from resnet_tpu.cloud.slices import find_slice
    from resnet_tpu.performance.plan.topology import slice_for
    from resnet_tpu.storage.gcp import project_of

    rented = find_slice(asked.job.tpu_type or slice_for(asked.recipe, asked.config.run.num_cores) or "")
    if place is None:
        return make_job(asked.job, asked.config, asked.arguments, rented, asked.job.gcp_project)
    if asked.job.check_zone or not place:
        rented.check_zone(place)
    project = project_of(asked.job.gcp_project)
    return make_job(asked.job, asked.config, asked.arguments, rented, project, names_hosts=names_hosts)


def _send(asked: _Asked, job: Any, shown: str, send: Callable[[], None]) -> None:
    """Prints the request, if that is all that is asked for; else sends it, after what the job will need."""
    from resnet_tpu.cloud.job import stage

    if asked.job.dry_run:
        sys.stdout.write(shown)
        return
    stage(job, asked.job.package)
    send()


def _to_json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"
