"""How several processes find each other: by options, or through Cloud TPU, Slurm, Open MPI or Kubernetes."""

import atexit
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

import jax

from resnet_tpu.errors import UserError, first_line
from resnet_tpu.options.config import RunConfig

_LONGER_SECS = 60  # JAX would abort with a stack trace, so our own timeout ends before JAX's


def meet(run: RunConfig) -> None:
    """Starts `jax.distributed` when the options or the environment say that there are several processes.

    Waits for all of them, at most `coordinator_timeout` seconds. Raises UserError when they do not connect, and for
    invalid options.
    """
    given = {name: getattr(run, name) for name in ("coordinator_address", "num_processes", "process_id")}
    _check(given)
    if jax.distributed.is_initialized():
        return
    if given["coordinator_address"]:
        if given["num_processes"] > 1:
            _initialize(run, given)
    elif is_in_cluster(run):
        _choose_port()
        _initialize(run, {})


def _check(given: Mapping[str, Any]) -> None:
    missing = [name for name, value in given.items() if value in ("", None)]
    if not missing:
        host, _, port = given["coordinator_address"].rpartition(":")
        if not host or not (port.isdecimal() and len(port) < 6) or not 0 < int(port) < 65536:
            do = "Give the host of process 0 and a free port on it, the same in all processes."
            raise UserError("coordinator_address", given["coordinator_address"], "host:port such as 10.0.0.1:8476", do)
        if given["process_id"] >= given["num_processes"]:
            expected = f"0 to {given['num_processes'] - 1}, as num_processes is {given['num_processes']}"
            raise UserError("process_id", given["process_id"], expected, "Number the processes from 0.")
    elif len(missing) < len(given):
        got = ", ".join(f"{name} {value}" for name, value in given.items() if name not in missing)
        do = "Give all three, or none: on Cloud TPU, Slurm and GKE they are detected."
        raise UserError("Several processes", f"{got} alone", f"{' and '.join(missing)} too", do)


def is_in_cluster(run: RunConfig) -> bool:
    """Whether JAX should look for other processes. Only the environment decides, as JAX's own search may block."""
    # importing JAX records in the environment that there are TPU chips, and a metadata server that knows the slice
    knows_slice = "TPU_ML_PLATFORM" in os.environ and "TPU_SKIP_MDS_QUERY" not in os.environ
    return _are_several(run) or (_may_use_tpu(run) and knows_slice)


def _are_several(run: RunConfig) -> bool:
    """Whether the environment says that there are several processes, none of which may train alone."""
    env = os.environ
    hosts = env.get("TPU_PROCESS_ADDRESSES") or env.get("TPU_WORKER_HOSTNAMES") or ""
    return _are_tasks() or _is_pod_of_job() or (_may_use_tpu(run) and "," in hosts)


def _may_use_tpu(run: RunConfig) -> bool:
    return run.use_tpu and "tpu" in (os.environ.get("JAX_PLATFORMS") or "tpu")  # an empty one says nothing


def _is_pod_of_job() -> bool:
    return {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= {*os.environ}


def _are_tasks() -> bool:
    """Whether Slurm or Open MPI has started several processes. An interactive shell counts as one."""
    env = os.environ
    tasks = _count("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS")
    return (tasks > 1 and "SLURM_STEP_NODELIST" in env) or _count("OMPI_COMM_WORLD_SIZE") > 1


def _choose_port() -> None:
    """Gives each step of a Slurm job its own port; JAX's depends only on the job, so steps would find each other.

    Not under mpirun, which JAX asks first: its processes on other nodes belong to another step, but need the same port.
    """
    env = os.environ
    if _are_tasks() and "SLURM_STEP_ID" in env and "OMPI_COMM_WORLD_SIZE" not in env:
        number = _count("SLURM_JOB_ID") + 613 * _count("SLURM_STEP_ID")  # far from the ports of the next jobs
        env.setdefault("JAX_COORDINATOR_PORT", str(61440 + number % 4096))  # the range that JAX uses


def _count(name: str) -> int:
    """The whole number in an environment variable; 1 if it is not set."""
    try:
        return int(os.environ.get(name, "1"))
    except ValueError:
        got = repr(os.environ[name])
        raise UserError(f"${name} in the environment", got, "a whole number", "Unset or correct it.") from None


def _initialize(run: RunConfig, given: Mapping[str, Any]) -> None:
    """`jax.distributed.initialize`, but a timeout raises an error instead of aborting the process."""
    jax.config.update("jax_enable_preemption_service", False)  # it takes over SIGTERM, and ignores Ctrl-C
    outcome: list[BaseException | None] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                **given,
                initialization_timeout=run.coordinator_timeout + _LONGER_SECS,
                heartbeat_timeout_seconds=run.heartbeat_timeout,
            )
            outcome.append(None)
        except Exception as error:  # noqa: BLE001  reported below
            outcome.append(error)

    meeting = threading.Thread(target=initialize, daemon=True)
    meeting.start()
    meeting.join(run.coordinator_timeout)
    if not outcome:
        atexit.register(os._exit, UserError.exit_code)  # else JAX's shutdown waits for the missing processes
        raise UserError(
            "Several processes", _who_is_missing(given, run.coordinator_timeout),
            "all of them to start at about the same time",
            "Check the address and the firewall, and start all; or raise coordinator_timeout.",
        )  # fmt: skip
    if outcome[0] is not None and (given or _are_several(run) or not isinstance(outcome[0], ValueError)):
        do = "Check coordinator_address; give it with num_processes and process_id if they are not detected."
        if not given and _is_pod_of_job():
            do = f"pip install 'jax[k8s]', with which JAX finds them. {do} With num_processes 1, each pod trains alone."
        raise UserError("Several processes", first_line(outcome[0]), "a connection to the others", do) from outcome[0]


def _who_is_missing(given: Mapping[str, Any], seconds: int) -> str:
    if given.get("process_id"):
        host, _, port = given["coordinator_address"].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        except OSError as error:
            return f"no answer from {given['coordinator_address']} within {seconds} s ({error})"
    count = given.get("num_processes", "")
    return f"not all {count} processes within {seconds} s".replace("  ", " ")
