"""Trains in a custom job of Vertex AI, the successor of Cloud Machine Learning Engine."""

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resnet_tpu.cloud.follow import TrainingFailedError, log_stop_command_on_exit
from resnet_tpu.cloud.job import Job, without_empty
from resnet_tpu.errors import first_line, missing_extra
from resnet_tpu.options.fields import option
from resnet_tpu.storage.gcp import explained

log = logging.getLogger(__name__)

ROLE = "roles/aiplatform.user"
_PAUSE_SECS = 30.0
_SUCCEEDED, _FAILED = "JOB_STATE_SUCCEEDED", ("JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")
_ANSWER_SECS = 60


@dataclass(frozen=True)
class VertexOptions:
    """Options for Vertex AI alone."""

    region: str = option("", "Region of the job, such as us-west1.")
    network: str = option("", "VPC network to reach: projects/NUMBER/global/networks/NAME.")
    timeout_hours: float = option(168, "Hours after which the job is stopped.", at_least=0.01)
    follow: bool = option(True, "Show the job's state until it has ended.")


def request(job: Job, options: VertexOptions) -> dict[str, Any]:
    """The `CustomJob` of aiplatform.googleapis.com v1, as JSON: the body of the POST that `submit` sends.

    Machine types and the field for the topology follow Vertex AI's documentation and client library, whose example has
    one replica for one host. That a larger slice has one replica per host is an inference from GKE, to whose topologies
    the library refers; no source confirms it, and no slice was available to try it.
    """
    is_old = job.slice.vertex_family == "cloud-tpu"
    pool = {
        "machineSpec": _machine(job),
        "replicaCount": "1" if is_old else str(job.slice.hosts),
        "containerSpec": {"imageUri": job.image, "command": job.command},
    }
    scheduling: dict[str, Any] = {"timeout": f"{round(3600 * options.timeout_hours)}s"}
    if job.spot:
        scheduling["strategy"] = "SPOT"
    spec = {
        "workerPoolSpecs": [pool],
        "scheduling": scheduling,
        "serviceAccount": job.service_account,
        "network": options.network,
        "baseOutputDirectory": {"outputUriPrefix": job.folder},
    }
    return {"displayName": job.name, "jobSpec": without_empty(spec), "labels": dict(job.labels)}


def submit(job: Job, options: VertexOptions, *, endpoint: str = "", pause_secs: float = _PAUSE_SECS) -> None:
    """Starts the job and, unless told otherwise, waits for its end.

    Raises UserError with the service's message if it refuses, or if the job fails.
    """
    address = endpoint.rstrip("/") or f"https://{options.region}-aiplatform.googleapis.com"
    session = _session(address)
    what = f"Vertex AI in {options.region}"
    do = "Change what this answer names; `resnet-tpu submit --dry_run` shows the request."
    with explained(what, role=ROLE, do=do):
        jobs = f"{address}/v1/projects/{job.project}/locations/{options.region}/customJobs"
        started = _answer(session.post, jobs, json=request(job, options))
        name = started["name"]
        log.info("Started %s. Its log: gcloud ai custom-jobs stream-logs %s", name, name)
        if options.follow:
            with log_stop_command_on_exit(f"gcloud ai custom-jobs cancel {name}"):
                _follow(functools.partial(_answer, session.get, f"{address}/v1/{name}"), pause_secs)


def _follow(poll: Callable[[], dict[str, Any]], pause_secs: float) -> None:
    """Shows each change of state until the job has ended. Raises TrainingFailedError unless it has succeeded."""
    from google.api_core.exceptions import ServerError, TooManyRequests

    state = ""
    while True:
        try:
            job = poll()
        except (ServerError, TooManyRequests) as error:
            log.info("No answer: %s", first_line(error))
            time.sleep(pause_secs)
            continue
        if job.get("state", "") != state:
            state = job.get("state", "")
            log.info("%s: %s", time.strftime("%H:%M:%S"), state)
        if state == _SUCCEEDED:
            return
        if state in _FAILED:
            words = job.get("error", {}).get("message", "no reason given")
            do = f"Its log says more: gcloud ai custom-jobs stream-logs {job['name']}."
            raise TrainingFailedError(f"Job {job['name']}", f"{state}: {words}", "it to succeed", do)
        time.sleep(pause_secs)


def _machine(job: Job) -> dict[str, Any]:
    rented = job.slice
    if rented.vertex_family == "cloud-tpu":
        kind = f"TPU_{rented.topology.generation.name.upper()}"
        return {"machineType": "cloud-tpu", "acceleratorType": kind, "acceleratorCount": rented.topology.devices}
    return {"machineType": f"{rented.vertex_family}-{rented.chips_per_host}t", "tpuTopology": rented.shape}


def _answer(ask: Callable[..., Any], url: str, **content: Any) -> dict[str, Any]:
    """The service's answer. Raises the error of google.api_core that corresponds to its status."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    try:
        answer = ask(url, timeout=_ANSWER_SECS, **content)
        found = answer.json() if answer.ok else {}  # a proxy may answer with a page
    except (requests.RequestException, TransportError) as error:  # TransportError: from renewing the credentials
        raise exceptions.ServiceUnavailable(str(error)) from error
    if not answer.ok:
        raise exceptions.from_http_response(answer)
    return found


def _session(address: str) -> Any:
    try:
        import google.auth
        import requests
        from google.auth.transport.requests import AuthorizedSession
    except ImportError:
        raise missing_extra("Vertex AI", "google-auth", "gcp") from None
    if address.startswith("http://"):  # a local server, without encryption or credentials
        return requests.Session()
    with explained("Vertex AI", role=ROLE):
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return AuthorizedSession(credentials)
