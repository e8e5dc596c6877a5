"""Trains on a TPU slice: requests it as a queued resource, trains on all hosts, follows the log, deletes the slice."""

import functools
import logging
import shlex
from dataclasses import dataclass
from importlib import resources
from typing import Any

from resnet_tpu.cloud.follow import JobState, TrainingFailedError, delete_old_logs, follow, log_stop_command_on_exit
from resnet_tpu.cloud.job import Job, without_empty
from resnet_tpu.errors import UserError, first_line, missing_extra
from resnet_tpu.options.fields import option
from resnet_tpu.storage.gcp import explained

log = logging.getLogger(__name__)

ROLE = "roles/tpu.admin"
_PAUSE_SECS = 15
_LOST = ("FAILED", "SUSPENDING", "SUSPENDED", "DELETING")


@dataclass(frozen=True)
class TpuVmOptions:
    """Options for a TPU VM alone."""

    zone: str = option("", "Zone of the slice, such as us-west4-a.")
    runtime_version: str = option("", "Software of the slice's hosts. Default: Google's for the generation.")
    network: str = option("", "Network of the slice. Default: the project's default.")
    subnetwork: str = option("", "Subnetwork of the slice.")
    external_ips: bool = option(
        True, "Give the hosts public IP addresses. Without them the network needs Private Google Access."
    )
    keep: bool = option(False, "Keep the slice, and pay for it, after the run has ended.")
    follow: bool = option(True, "Show the log until the run has ended.")


def request(job: Job, options: TpuVmOptions) -> dict[str, Any]:
    """The `CreateQueuedResourceRequest` of tpu.googleapis.com v2, as JSON."""
    network = {"network": options.network, "subnetwork": options.subnetwork, "enableExternalIps": options.external_ips}
    node = {
        "acceleratorType": job.slice.accelerator_type,
        "runtimeVersion": options.runtime_version or job.slice.runtime,
        "networkConfig": without_empty(network),
        "labels": dict(job.labels),
        "metadata": {"startup-script": startup_script(job, options)},
    }
    if job.service_account:
        scope = ["https://www.googleapis.com/auth/cloud-platform"]
        node["serviceAccount"] = {"email": job.service_account, "scope": scope}
    parent = f"projects/{job.project}/locations/{options.zone}"
    resource: dict[str, Any] = {"tpu": {"nodeSpec": [{"parent": parent, "nodeId": job.name, "node": node}]}}
    if job.spot:
        resource["spot"] = {}
    return {"parent": parent, "queuedResourceId": job.name, "queuedResource": resource}


def startup_script(job: Job, options: TpuVmOptions) -> str:
    """The script that each host runs: `startup.sh`, preceded by its variables."""
    values = {
        "IMAGE": job.image, "FOLDER": job.folder, "PAUSE": str(_PAUSE_SECS), "PROJECT": job.project,
        "ZONE": options.zone, "QUEUED_RESOURCE": "" if options.keep else job.name,
    }  # fmt: skip
    lines = ["#!/bin/bash", *(f"{name}={shlex.quote(value)}" for name, value in values.items())]
    lines.append(f"COMMAND=({shlex.join(job.command)})")
    return "\n".join([*lines, resources.files("resnet_tpu.cloud").joinpath("startup.sh").read_text()])


def submit(job: Job, options: TpuVmOptions, *, endpoint: str = "", pause_secs: float = _PAUSE_SECS) -> None:
    """Requests the slice and, unless told otherwise, follows training to its end and deletes the slice.

    Raises UserError with the service's message if it refuses, TrainingFailedError if training fails or its slice is
    lost.
    """
    client = _client(endpoint)
    body = request(job, options)
    name = f"{body['parent']}/queuedResources/{job.name}"
    what = f"TPU slice {job.slice.accelerator_type} in {options.zone}"
    do = "Change what this answer names; `resnet-tpu submit --dry_run` shows the request."
    with explained(what, role=ROLE, do=do):
        client.create_queued_resource(request=_as_message(body))
    log.info("Asked for %s. Its log: %s", name, job.folder)
    try:
        with explained(what, role=ROLE, do=do), log_stop_command_on_exit(_delete_command(job, options)):
            delete_old_logs(job.folder)  # only now: if the name is in use, these are the logs of the job that has it
            if not options.follow:
                return
            follow(functools.partial(_poll, client, name), job.folder, pause_secs=pause_secs)
    except TrainingFailedError:
        _end(client, name, job, options)
        raise
    _end(client, name, job, options)


def _poll(client: Any, name: str) -> JobState:
    """The state of the slice. If the service cannot be reached from here, training is assumed to continue."""
    from google.api_core.exceptions import NotFound, RetryError, ServerError, TooManyRequests

    try:
        found = client.get_queued_resource(name=name).state
    except NotFound:
        return JobState("DELETED", is_over=True)
    except (ServerError, RetryError, TooManyRequests) as error:
        return JobState(f"no answer: {first_line(error)}")
    words = found.failed_data.error.message
    return JobState(found.state.name + (f": {words}" if words else ""), is_over=found.state.name in _LOST)


def _end(client: Any, name: str, job: Job, options: TpuVmOptions) -> None:
    """Deletes the slice, or logs the command that does."""
    if options.keep:
        log.info("The slice is kept. Delete it with: %s", _delete_command(job, options))
        return
    from google.api_core.exceptions import FailedPrecondition, NotFound
    from google.cloud import tpu_v2

    try:
        with explained(f"Deleting {name}", role=ROLE, do="Delete it by hand: it costs money."):
            client.delete_queued_resource(request=tpu_v2.DeleteQueuedResourceRequest(name=name, force=True))
        log.info("Deleted %s.", name)
    except UserError as error:  # the first host may have deleted it already
        if not isinstance(error.__cause__, NotFound | FailedPrecondition):
            raise


def _delete_command(job: Job, options: TpuVmOptions) -> str:
    flags = f"--project={job.project} --zone={options.zone}"
    return f"gcloud compute tpus queued-resources delete {job.name} {flags} --force"


def _as_message(body: dict[str, Any]) -> Any:
    """The request as the client library's own type, which checks every field."""
    from google.cloud import tpu_v2
    from google.protobuf import json_format

    message = tpu_v2.CreateQueuedResourceRequest()
    json_format.ParseDict(body, tpu_v2.CreateQueuedResourceRequest.pb(message))
    return message


def _client(endpoint: str) -> Any:
    try:
        from google.cloud import tpu_v2
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
    except ImportError:
        raise missing_extra("Asking for a TPU slice", "google-cloud-tpu", "gcp") from None
    if endpoint.startswith("http://"):  # a local server, without encryption or credentials
        import grpc

        channel = grpc.insecure_channel(endpoint.removeprefix("http://"))
        return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    with explained("Cloud TPU", role=ROLE):
        return tpu_v2.TpuClient(client_options={"api_endpoint": endpoint} if endpoint else None)
