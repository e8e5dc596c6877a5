"""Trains in a Job of Google Kubernetes Engine: makes its manifest and submits it."""

import logging
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import yaml

from resnet_tpu.cloud.job import Job
from resnet_tpu.errors import UserError
from resnet_tpu.options.fields import option

log = logging.getLogger(__name__)

_PORT = 8471  # of the coordinator, where the processes of a slice meet
_DAY_SECS = 86_400
_NAMESPACE = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class GkeOptions:
    """Options for GKE alone."""

    context: str = option("", "Cluster, as kubectl knows it. Default: the current one.")
    namespace: str = option("default", "Namespace of the job.")
    kubernetes_service_account: str = option("", "Account of the pods in the cluster. Default: the namespace's.")
    retries: int = option(3, "How many times a failed job is restarted; it continues from its checkpoint.", at_least=0)
    keep: bool = option(False, "Keep the finished job in the cluster; otherwise it is deleted after a day.")

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            expected = "at most 63 of a-z, 0-9 and -, without - at either end"
            raise UserError("--namespace", repr(self.namespace), expected, "Change it.")


def manifest(job: Job, options: GkeOptions) -> list[dict[str, Any]]:
    """A headless Service, by which the hosts find each other, and an indexed Job with one pod per host.

    On nodes with TPUs, GKE gives each pod of such a Job its number and the names of the others.
    """
    labels = dict(job.labels)
    about = {"name": job.name, "namespace": options.namespace, "labels": labels}
    selector = {"job-name": job.name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": job.slice.hosts,
        "parallelism": job.slice.hosts,
        "backoffLimit": options.retries * job.slice.hosts,
        "template": {"metadata": {"labels": labels}, "spec": _pod(job, options)},
    }
    if not options.keep:
        spec["ttlSecondsAfterFinished"] = _DAY_SECS
    return [service, {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}]


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """The manifest as input for `kubectl apply --filename=-`."""
    return yaml.dump_all(documents, sort_keys=False, Dumper=_Plain)


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _pod(job: Job, options: GkeOptions) -> dict[str, Any]:
    chips = {"google.com/tpu": job.slice.chips_per_host}
    node = {
        "cloud.google.com/gke-tpu-accelerator": job.slice.gke_label,
        "cloud.google.com/gke-tpu-topology": job.slice.shape,
    }
    if job.spot:
        node["cloud.google.com/gke-spot"] = "true"
    container = {
        "name": "training",
        "image": job.image,
        "command": job.command,
        "ports": [{"containerPort": _PORT}],
        "resources": {"requests": chips, "limits": chips},
    }
    pod: dict[str, Any] = {"subdomain": job.name, "restartPolicy": "Never", "nodeSelector": node}
    if options.kubernetes_service_account:
        pod["serviceAccountName"] = options.kubernetes_service_account
    # time for the checkpoint that training writes when it is told to stop
    return pod | {"terminationGracePeriodSeconds": 120, "containers": [container]}


def find_kubectl() -> str:
    """The path of kubectl. Raises UserError if it is not installed."""
    if kubectl := shutil.which("kubectl"):
        return kubectl
    do = "Install it (gcloud components install kubectl), or apply what --dry_run prints from another machine."
    raise UserError("GKE", "no program kubectl", "it to be installed", do)


def submit(job: Job, options: GkeOptions) -> None:
    """Gives the manifest to `kubectl apply`.

    Raises UserError with kubectl's message if it refuses, if the cluster belongs to another project than the job, and
    if the cluster already has a job of that name, which would not start again.
    """
    kubectl = find_kubectl()
    context = [f"--context={options.context}"] if options.context else []
    if job.project:
        _check_project(job.project, options.context or _current_context(kubectl))
    done = subprocess.run(  # noqa: S603
        [kubectl, *context, "apply", "--filename=-"],
        input=to_yaml(manifest(job, options)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    flags = " ".join([*context, f"--namespace={options.namespace}"])
    delete = f"kubectl {flags} delete job,service {job.name}"
    if f"job.batch/{job.name} unchanged" in done.stdout or "field is immutable" in done.stderr:
        do = f"Delete it, unless it is still running: {delete}"
        raise UserError("--job_name", f"{job.name}, which the cluster already has", "the name of a new job", do)
    if done.returncode:
        words = " ".join(done.stderr.split())[:500]
        do = "Check the cluster: `gcloud container clusters get-credentials CLUSTER` selects it for kubectl."
        raise UserError("kubectl apply", words, "the cluster to accept the job", do)
    log.info("%s", done.stdout.strip())
    log.info("Its log: kubectl %s logs --follow job/%s", flags, job.name)
    log.info("Delete it with: %s", delete)


def _current_context(kubectl: str) -> str:
    """The cluster that kubectl is configured for; empty if there is none."""
    done = subprocess.run([kubectl, "config", "current-context"], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip()


def _check_project(project: str, context: str) -> None:
    """Raises UserError if gcloud's name of the cluster, gke_PROJECT_LOCATION_CLUSTER, contains another project."""
    kind, _, rest = context.partition("_")
    own = rest.partition("_")[0]
    if kind == "gke" and own != project:
        do = "Name one with --context (kubectl config get-contexts lists them), or leave --gcp_project out."
        raise UserError("--gcp_project", f"{project}, and cluster {context} of {own}", "a cluster of that project", do)
