"""A job that trains in the cloud: its machines, arguments and container."""

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_tpu import storage
from resnet_tpu.checkpoints.pretrained import HUB, PRETRAINED
from resnet_tpu.cloud.package import install_commands, package_in_container
from resnet_tpu.cloud.slices import Slice
from resnet_tpu.errors import UserError
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import FilePath, option

BARE_IMAGE = "python:3.12-slim"
"""A container in which the package is installed first."""

_HOST_NAME = re.compile("[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # the services allow 63; they and we append to the name
_DISPLAY_NAME = re.compile("[A-Za-z][-_A-Za-z0-9]{0,127}")
_LABEL = re.compile("[a-z]([-_a-z0-9]{0,61}[a-z0-9])?=([a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?)?")

_BUCKET_PATHS = (
    "model_dir", "data_dir", "resnet_checkpoint", "export_dir", "lottery_results_dir", "lottery_prune_at",
    "lottery_reset_to", "lottery_reset_global_step_to", "lth_prediction_result_dir",
)  # fmt: skip
_NO_FILES = ("", "null", "synthetic", "reinitialize")


@dataclass(frozen=True)
class JobOptions:
    """Options of a job for any service."""

    tpu_type: str = option("", "TPU slice: v5litepod-8 or v5e-8, v4-32, v6e-16 ... Default: the recipe's.")
    job_name: str = option("", "Name of the job. Default: resnet-tpu and the time.")
    gcp_project: str = option("", "Project that pays. Default: that of the credentials.")
    staging_bucket: FilePath = option("", "Folder in a bucket for logs and --package. Default: MODEL_DIR/jobs.")
    image: str = option("", f"Container image with resnet-tpu. Default: {BARE_IMAGE}; --package is installed there.")
    package: FilePath = option(
        "",
        "What pip installs there: a wheel on this machine or in a bucket, an address such as git+https://..., or a "
        "requirement. Needed without --image: resnet-tpu is not on a package index yet.",
    )
    spot: bool = option(
        False, "Use spot chips: cheaper, but they may be taken away. Run the same command again to continue."
    )
    service_account: str = option("", "E-mail address of the account that the job runs as. Default: the service's.")
    labels: str = option("", "Labels for billing and listing: team=vision,cost=research.")
    check_zone: bool = option(True, "Refuse a zone or region that is not known to have these chips.")
    dry_run: bool = option(False, "Print the exact request, and send nothing.")
    endpoint: str = option("", "Address of the service, such as http://127.0.0.1:8080. Default: Google's.")


@dataclass(frozen=True)
class Job:
    """A job for a service to run."""

    name: str
    project: str
    slice: Slice
    arguments: tuple[str, ...]  # of `resnet-tpu train`
    folder: str  # of its logs
    image: str
    package: str  # installed in the container first; empty: nothing
    spot: bool
    service_account: str
    labels: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """The command to run in the container, on every host."""
        train = ["resnet-tpu", "train", *self.arguments]
        if not self.package:
            return train
        steps = ["set -e", *install_commands(self.package), f"exec {shlex.join(train)}"]
        return ["sh", "-c", "\n".join(steps)]


def make_job(
    options: JobOptions,
    config: Config,
    arguments: Sequence[str],
    rented: Slice,
    project: str,
    *,
    names_hosts: bool = True,
) -> Job:
    """The job that runs `resnet-tpu train` with `arguments`, which give `config`.

    names_hosts: whether the service names machines after the job, so that its name must be valid for a machine.
    Raises UserError for options that do not fit each other or the slice, and for paths that the job could not reach.
    """
    name = options.job_name or f"resnet-tpu-{time.strftime('%Y%m%d-%H%M%S')}"
    _check_name(name, names_hosts=names_hosts)
    _check_training(config, rented)
    staging = (options.staging_bucket or storage.join(config.run.model_dir, "jobs")).rstrip("/")
    if not storage.is_remote(staging):
        raise UserError("--staging_bucket", staging, "a folder in a bucket, gs://...", "Change it.")
    if options.image and options.package:
        do = "Leave one out: your own image has resnet-tpu in it."
        raise UserError("--package", f"one together with --image={options.image}", "one of the two", do)
    folder = storage.join(staging, name)
    return Job(
        name=name,
        project=project,
        slice=rented,
        arguments=tuple(arguments),
        folder=folder,
        image=options.image or BARE_IMAGE,
        package="" if options.image else package_in_container(options.package, folder),
        spot=options.spot,
        service_account=options.service_account,
        labels=_labels(options.labels),
    )


def _check_name(name: str, *, names_hosts: bool) -> None:
    """Raises UserError, with the rule and a similar valid name, for a name that the service does not accept."""
    if (_HOST_NAME if names_hosts else _DISPLAY_NAME).fullmatch(name):
        return
    expected = "at most 128 letters, digits, - and _, starting with a letter"
    if names_hosts:
        expected = "at most 40 of a-z, 0-9 and -, starting with a letter, not ending in -, as it names machines too"
    like = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    do = f"Write --job_name={like}." if _HOST_NAME.fullmatch(like) else "Change it."
    raise UserError("--job_name", repr(name), expected, do)


def _check_training(config: Config, rented: Slice) -> None:
    """Raises UserError for a run that would fail at once on its slice."""
    from resnet_tpu.performance.plan.plan import check_plan

    values = config.flat()
    if not config.run.model_dir:
        raise UserError("model_dir", "nothing", "a folder in a bucket", "Give --model_dir=gs://BUCKET/RUN after --.")
    for name in _BUCKET_PATHS:
        path = values[name]
        if path not in _NO_FILES and not storage.is_remote(path) and not _is_published(name, path):
            do = "Copy it to a bucket: the job cannot see files on this machine."
            raise UserError(name, path, "a path in a bucket, gs://...", do)
    if not config.data.location:
        do = "Give --data_dir=gs://BUCKET/FOLDER or --bigtable_instance after --; null measures speed without images."
        raise UserError("data_dir", "nothing", "images that the job can read", do)
    check_options(config)
    check_plan(config, rented.topology)


def _is_published(option: str, path: str) -> bool:
    """Whether an option names weights that a job can download: not those of the Hub, whose client it does not have."""
    return option == "resnet_checkpoint" and path in PRETRAINED and not path.startswith(HUB)


def _labels(text: str) -> dict[str, str]:
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    for pair in pairs:
        if not _LABEL.fullmatch(pair):
            expected = "key=value of a-z, 0-9, and - and _ within, the key starting with a letter"
            raise UserError("--labels", repr(pair), expected, "For example --labels=team=vision,cost=research.")
    return {"program": "resnet-tpu"} | dict(pair.split("=") for pair in pairs)


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries except those that are None or empty text, which a request leaves out."""
    return {name: value for name, value in values.items() if value not in (None, "")}
